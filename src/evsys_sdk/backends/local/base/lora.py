"""LoRA on a frozen base: low-rank matrices added to its linear layers, any number of adapters per base.

`install` replaces every linear layer of the base by a `LoRALinear`, which looks up the active change: none, an adapter
in training, or a merged weight. So several runs share one base, and switching between them costs nothing. The matrices
are float32 for any dtype of the base. Experts of a mixture are adapted only if the targets name them; each expert then
has its own matrices.

    switch = install(model)                       # once per base
    adapter = LoRAAdapter.create(switch, rank=32, alpha=32, targets=None, seed=0)
    with switch.using(adapter.parts()): ...       # forward and backward
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import contextlib
import fnmatch
import math
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....errors import BackendError, suggest
from .experts import EXPERT_PARAMETERS, find_experts, route_experts
from .four_bit import FourBit, Weight, can_quantize, dense
from .lora_products import AddLoRA, Frozen

_EXPERT = re.compile(r"(^|\.)experts\.\d+(\.|$)")


@dataclass(frozen=True, slots=True)
class LoRAPart:
    """The part of an adapter for one linear layer, which adds scale * B(A(x))."""

    a: Tensor
    """(rank, in), or (experts, rank, in)"""
    b: Tensor
    """(out, rank), or (experts, out, rank)"""
    scale: float
    dropout: float = 0.0
    generator: torch.Generator | None = None


@dataclass(frozen=True, slots=True)
class StackedPart:
    """The parts of several adapters for one linear layer; each applies to an equally large share of the rows."""

    a: Tensor
    """(adapters, rank, in)"""
    b: Tensor
    """(adapters, out, rank)"""
    scale: float


@dataclass(frozen=True, slots=True)
class RowParts:
    """The parts of several adapters, each for its own rows, without a gradient: pairs of rows and part."""

    pieces: tuple[tuple[slice | Tensor, LoRAPart], ...]


type Change = LoRAPart | StackedPart | RowParts | Tensor
"""A change of a linear layer: parts of adapters to add, or a replacement of its weight."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A frozen linear layer of the base: x -> xW' + b."""

    weight: Weight
    """(out, in), or (experts, out, in)"""
    bias: Tensor | None
    transposed: bool = False
    """Whether the base stores its weight as (in, out), as GPT-2 does; `weight` is then a view of that."""

    @property
    def in_features(self) -> int:
        return self.weight.shape[-1]

    @property
    def out_features(self) -> int:
        return self.weight.shape[-2]

    @property
    def experts(self) -> tuple[int, ...]:
        """The number of experts as a tuple; empty for an ordinary layer."""
        return tuple(self.weight.shape[:-2])

    @classmethod
    def of(cls, module: nn.Module) -> Linear | None:
        """Return the linear layer for a module; None if the module is not linear."""
        kind: Any = module
        if type(module) is nn.Linear:
            return cls(kind.weight, kind.bias)
        if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
            return cls(kind.weight.T, kind.bias, transposed=True)
        return None


@dataclass(slots=True)
class Switch:
    """The active changes of a base's linear layers. Hold the turn of the base while using it."""

    layers: dict[str, Linear] = field(default_factory=dict[str, "Linear"])
    """All linear layers that can be adapted, by their name in the model."""
    active: Mapping[str, Change] = field(default_factory=dict[str, Change])

    @contextlib.contextmanager
    def noting(self) -> Generator[set[str]]:
        """Collect the names of the layers used in a block, without any change active."""
        recorder = _LayerRecorder()
        with self.using(recorder):
            yield recorder.names

    @contextlib.contextmanager
    def using(self, changes: Mapping[str, Change]) -> Generator[None]:
        """Activate these changes within a block."""
        before, self.active = self.active, changes
        try:
            yield
        finally:
            self.active = before


class _LayerRecorder(dict[str, Change]):
    """An empty mapping of changes that records which keys were looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.names.add(key)
        return default


class LoRALinear(nn.Module):
    """A frozen linear layer that applies its active change."""

    def __init__(self, name: str, linear: Linear, switch: Switch) -> None:
        super().__init__()
        self.name, self.switch = name, switch
        self.weight, self.bias = linear.weight, linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        change = self.switch.active.get(self.name)
        if change is None:
            return Frozen.apply(x, self.weight, self.bias)
        if isinstance(change, Tensor):
            return F.linear(x, change, self.bias)
        if isinstance(change, RowParts):
            return self._with_row_parts(x, change)
        if isinstance(change, LoRAPart) and change.dropout:
            return self._with_dropout(x, change)
        whole = [(0, self.out_features)]
        return AddLoRA.apply(x, None, self.weight, self.bias, change.scale, whole, change.a, change.b)

    def _with_row_parts(self, x: Tensor, parts: RowParts) -> Tensor:
        output = F.linear(x, dense(self.weight), self.bias)
        rows, added = x.reshape(-1, x.shape[-1]), output.view(-1, output.shape[-1])
        for index, part in parts.pieces:
            low = rows[index] @ part.a.T.to(x.dtype)
            added[index] += part.scale * (low @ part.b.T.to(x.dtype))
        return output

    def _with_dropout(self, x: Tensor, part: LoRAPart) -> Tensor:
        keep = torch.rand(x.shape, generator=part.generator, device=x.device, dtype=torch.float32) >= part.dropout
        dropped = x * keep.to(x.dtype) / (1 - part.dropout)
        low = F.linear(F.linear(dropped, part.a.to(x.dtype)), part.b.to(x.dtype))
        return Frozen.apply(x, self.weight, self.bias) + part.scale * low


def install(model: nn.Module, *, skip: Sequence[nn.Module] = ()) -> Switch:
    """Replace the linear layers of a model, except those in `skip`, e.g. the output layer."""
    switch = Switch()
    skipped = {id(module) for module in skip}
    # List all modules first: replacing one changes the iteration.
    modules = [(name, Linear.of(module)) for name, module in model.named_modules() if id(module) not in skipped]
    for name, linear in modules:
        if linear is None or _EXPERT.search(name):
            continue
        parent, _, last = name.rpartition(".")
        switch.layers[name] = linear
        setattr(model.get_submodule(parent), last, LoRALinear(name, linear, switch))
    for name, module in find_experts(model).items():
        switch.layers |= {f"{name}.{part}": Linear(getattr(module, part), None) for part in EXPERT_PARAMETERS}
        route_experts(name, module, switch)
    if not switch.layers:
        raise BackendError(
            f"{type(model).__name__} has no linear layer that an adapter could be added to. "
            "Use a model of another architecture."
        )
    return switch


@torch.no_grad()
def quantize(model: nn.Module, switch: Switch, device: torch.device) -> None:
    """Quantize all adaptable layers to four bits on a device, if their row length is a multiple of `BLOCK`."""
    for name, linear in switch.layers.items():
        if not can_quantize(linear.weight):
            continue
        parent, _, last = name.rpartition(".")
        small = FourBit.quantize(dense(linear.weight).to(device).contiguous())
        holder: Any = model.get_submodule(parent)
        if linear.experts:
            delattr(holder, last)
            setattr(holder, last, small)
        else:
            layer: Any = getattr(holder, last)
            del layer.weight
            layer.weight = small
        switch.layers[name] = replace(linear, weight=small)


@dataclass(slots=True)
class LoRAAdapter:
    """One adapter: float32 matrices A and B for each of its layers."""

    rank: int
    alpha: float
    weights: dict[str, tuple[Tensor, Tensor]]
    """Layer -> (A, B)."""
    transposed: bool = False
    """Whether the base stores the weights of these layers as (in, out); PEFT needs this in its config."""
    flat: Tensor | None = None
    """All matrices as one vector; None until `lay_flat` is called."""

    @classmethod
    def create(
        cls, switch: Switch, *, rank: int, alpha: float, targets: Sequence[str] | None, seed: int, device: Any = "cpu"
    ) -> LoRAAdapter:
        """Create an adapter with B zero and A random from the seed, so that it changes nothing yet."""
        # Always on the CPU, so that an adapter starts with the same values on every device.
        generator = torch.Generator().manual_seed(seed & (2**63 - 1))
        weights: dict[str, tuple[Tensor, Tensor]] = {}
        names = target_layers(switch, targets)
        for name in names:
            linear = switch.layers[name]
            # Same initialization as PEFT: Kaiming uniform with a = sqrt(5) has this bound.
            bound = 1 / math.sqrt(linear.in_features)
            shape = (*linear.experts, rank, linear.in_features)
            a = (torch.rand(shape, generator=generator, dtype=torch.float32) * 2 - 1) * bound
            b = torch.zeros(*linear.experts, linear.out_features, rank, device=device, dtype=torch.float32)
            weights[name] = (a.to(device), b)
        return cls(rank, alpha, weights, any(switch.layers[name].transposed for name in names))

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    @property
    def form(self) -> tuple[Any, ...]:
        """A key that is equal for adapters that can be applied together."""
        return self.rank, self.alpha, *((name, a.shape, b.shape) for name, (a, b) in self.weights.items())

    @property
    def has_experts(self) -> bool:
        return any(a.ndim > 2 for a, _ in self.weights.values())

    def tensors(self) -> list[Tensor]:
        """Return all matrices in a fixed order."""
        return [tensor for pair in self.weights.values() for tensor in pair]

    def lay_flat(self) -> Tensor:
        """Store all matrices consecutively in one vector and return it."""
        if self.flat is None:
            flat = torch.cat([tensor.detach().flatten() for tensor in self.tensors()])
            views = iter(self.split(flat))
            self.weights = {name: (next(views), next(views)) for name in self.weights}
            self.flat = flat
        return self.flat

    def split(self, flat: Tensor) -> list[Tensor]:
        """Split the last dimension of a tensor into the shapes of the matrices; keep leading dimensions."""
        tensors = self.tensors()
        if flat.ndim == 1:  # one call for hundreds of views, because each snapshot makes them
            return list(torch._utils._unflatten_dense_tensors(flat, tensors))
        parts = flat.split([tensor.numel() for tensor in tensors], dim=-1)
        return [part.view(*flat.shape[:-1], *tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def parts(self, *, dropout: float = 0.0, generator: torch.Generator | None = None) -> dict[str, Change]:
        """Return the changes for `Switch.using`."""
        return {name: LoRAPart(a, b, self.scale, dropout, generator) for name, (a, b) in self.weights.items()}

    def make_trainable(self) -> LoRAAdapter:
        """Make the matrices require gradients; return the adapter."""
        for tensor in self.tensors():
            tensor.requires_grad_()
        return self

    def copy(self) -> LoRAAdapter:
        """Return a copy that does not share memory."""
        flat = self.lay_flat().clone()
        parts = iter(self.split(flat))
        weights = {name: (next(parts), next(parts)) for name in self.weights}
        return LoRAAdapter(self.rank, self.alpha, weights, self.transposed, flat)

    def is_zero(self) -> bool:
        """Whether all B are zero, so that the adapter changes nothing."""
        return not any(bool(b.any()) for _, b in self.weights.values())

    @torch.no_grad()
    def merge(self, switch: Switch) -> dict[str, Change]:
        """Return copies of the adapted layers' weights with the adapter merged in, for faster sampling."""
        merged: dict[str, Change] = {}
        for name, (a, b) in self.weights.items():
            weight = dense(switch.layers[name].weight)
            if weight.ndim == 2:
                merged[name] = torch.addmm(weight.float(), b, a, alpha=self.scale).to(weight.dtype)
                continue
            merged[name] = added = torch.empty_like(weight)
            for number, expert in enumerate(weight):  # one by one: all in float32 would take twice the layer's memory
                added[number] = torch.addmm(expert.float(), b[number], a[number], alpha=self.scale)
        return merged


def target_layers(switch: Switch, targets: Sequence[str] | None) -> list[str]:
    """Return the layers for the targets (end of a name, or a glob pattern); None means all but experts."""
    if targets is None:
        return [name for name, linear in switch.layers.items() if not linear.experts]
    chosen = dict.fromkeys(name for name in switch.layers if any(matches_target(name, target) for target in targets))
    for target in targets:
        if not any(matches_target(name, target) for name in switch.layers):
            endings = sorted({name.rpartition(".")[2] for name in switch.layers})
            hint = suggest(target, endings) or f"It has {', '.join(endings)}."
            raise BackendError(f"backend.params.lora_targets: the model has no linear layer '{target}'. {hint}")
    return list(chosen)


def matches_target(name: str, target: str) -> bool:
    """Whether a target matches the name of a layer."""
    return name == target or name.endswith(f".{target}") or fnmatch.fnmatch(name, target)
