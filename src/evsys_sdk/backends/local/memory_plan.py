"""Estimate the memory of a run before its model is loaded, and adapt the settings if memory is short.

The estimate covers the base, the adapter with gradient and optimizer, the activations of a row, one block of logits,
the merged weights for sampling, and the KV cache. It is accurate to about a third; `memory` handles actual
out-of-memory errors. If the estimate exceeds free memory, `fit` reduces row and cache sizes, then recomputes layers,
then samples without merged weights: only as far as needed, and without changing values set in the config. It logs the
changes.

    needs = fit(Sizes.of(config), wanted, fixed={"tokens_at_once"}, model="./model")
    Estimate.of(sizes, needs).total
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from ...errors import BackendError
from ...log import get_logger
from . import memory
from .base.families import FUSED
from .base.four_bit import BLOCK, can_quantize
from .base.head import _VALUES_AT_ONCE
from .base.lora import Linear, Switch, install, target_layers
from .memory import GIB

_USED = 0.9
"""Share of free memory to plan with; the rest is for memory that is not estimated."""
_SURE = 0.7
"""Estimates may be too high, so a run is refused only if this share of the uncertain part does not fit."""
_LEAST = {"tokens_at_once": 256, "cached_tokens": 4096}
_SCATTERED = 1.25
"""Factor for memory fragmentation on a CPU."""
_BANK, _MOST_ARMS = 16, 8
"""Adapters that a joint sampler holds, and the maximum number of runs per GPU: larger passes are no faster per run."""
_COPIES = 6
"""Copies of the adapter: weights, gradients of a row, of a call and of a step, and two moments."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a model that determine its memory."""

    architecture: str
    parameters: int
    linears: dict[str, Linear]
    """Layers that can be adapted, on the meta device."""
    layers: int
    hidden: int
    queries: int
    """Number of query elements per token, over all heads."""
    keys: int
    """Number of key elements per token, over all heads; the same for values."""
    inner: int
    """Intermediate size of the MLP, or of all active experts."""
    heads_normed: bool
    vocabulary: int

    @classmethod
    def of(cls, config: Any) -> Sizes:
        """Return the sizes of a model with this config without allocating its weights."""
        from transformers import AutoModelForCausalLM

        config = copy.deepcopy(config)  # the config may belong to a model in use
        # On the meta device, so that the layers are those that transformers builds, without memory.
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        text = config.get_text_config()
        parameters = sum(parameter.numel() for parameter in model.parameters())
        switch = install(model, skip=[module for module in [model.get_output_embeddings()] if module is not None])
        linears = switch.layers
        outputs = sum(linear.out_features for linear in linears.values() if not linear.experts)
        heads = _first(text, ("num_attention_heads", "n_head"), 1)
        hidden = _first(text, ("hidden_size", "n_embd", "d_model"), 1)
        width = _first(text, ("head_dim",), max(1, hidden // heads))
        keys = _first(text, ("num_key_value_heads", "num_kv_heads"), heads) * width
        layers = _first(text, ("num_hidden_layers", "n_layer"), 1)
        attention = heads * width + 2 * keys + 2 * hidden
        return cls(
            type(model).__name__,
            parameters,
            linears,
            layers,
            hidden,
            heads * width,
            keys,
            _of_experts(text) or max(0, outputs // layers - attention) // 2 or 4 * hidden,
            any(name.endswith("q_norm") for name, _ in model.named_modules()),
            _first(text, ("vocab_size",), 1),
        )

    def weight_bytes(self, dtype: torch.dtype, four_bit: bool) -> int:
        """Return the bytes of the base weights."""
        if not four_bit:
            return self.parameters * dtype.itemsize
        small = sum(linear.weight.numel() for linear in self.linears.values() if can_quantize(linear.weight))
        return (self.parameters - small) * dtype.itemsize + small // 2 + small // BLOCK * dtype.itemsize

    def adapter(self, rank: int, targets: Sequence[str] | None) -> tuple[int, int]:
        """Return the number of parameters of an adapter, and of the layers that it changes."""
        try:
            names = target_layers(Switch(layers=self.linears), targets)
        except BackendError:  # raised again when the adapter is created
            names = target_layers(Switch(layers=self.linears), None)
        chosen = [self.linears[name] for name in names]
        numbers = sum(math.prod(linear.experts) * (linear.out_features + linear.in_features) for linear in chosen)
        return rank * numbers, sum(linear.weight.numel() for linear in chosen)


def _of_experts(text: Any) -> int:
    """Return the total intermediate size of the active experts of a token; 0 without experts."""
    experts = _first(text, ("num_experts_per_tok",), 0)
    width = _first(text, ("moe_intermediate_size", "intermediate_size"), 0)
    return experts * width + (_first(text, ("shared_expert_intermediate_size",), 0) if experts else 0)


def _first(text: Any, names: Sequence[str], otherwise: int) -> int:
    values = (_read_setting(text, name) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), otherwise)


def _read_setting(text: Any, name: str) -> Any:
    try:
        return getattr(text, name, None)
    except RuntimeError:  # transformers raises this for settings that differ between layers
        return None


@dataclass(frozen=True, slots=True)
class Needs:
    """The requirements of a run that determine its memory."""

    device: torch.device
    dtype: torch.dtype
    rank: int
    targets: Sequence[str] | None
    tokens_at_once: int
    cached_tokens: int
    merge: bool
    recompute: bool
    recompute_from: int = 0
    """Rows shorter than this are not recomputed."""
    loaded: bool = False
    """Whether the base is already loaded."""
    dropout: bool = False
    four_bit: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated bytes by purpose."""

    base: int
    adapter: int
    row: int
    head: int
    merged: int
    cache: int

    @classmethod
    def of(cls, sizes: Sizes, needs: Needs) -> Estimate:
        numbers, changed = sizes.adapter(needs.rank, needs.targets)
        size = needs.dtype.itemsize
        logits = min(_VALUES_AT_ONCE.get(needs.device.type, 1 << 27), needs.tokens_at_once * sizes.vocabulary)
        return cls(
            base=0 if needs.loaded else sizes.weight_bytes(needs.dtype, needs.four_bit),
            adapter=numbers * 4 * _COPIES,
            row=needs.tokens_at_once * bytes_per_token(sizes, needs),
            head=logits * 8,
            # With four bits, all weights are dequantized for sampling.
            merged=(sizes.parameters if needs.four_bit else changed) * size if needs.merge else 0,
            cache=needs.cached_tokens * sizes.layers * 2 * sizes.keys * size,
        )

    @property
    def total(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self))

    def describe(self, needs: Needs) -> str:
        """Describe all parts in GiB, with the settings that they depend on."""
        kind = "nf4" if needs.four_bit else str(needs.dtype).removeprefix("torch.")
        parts = [
            (self.base, f"weights as {kind}" if self.base else "weights, which are loaded already"),
            (self.adapter, f"an adapter of rank {needs.rank} with gradients and optimizer, in float32"),
            (self.row, f"a row of {needs.tokens_at_once} tokens{', recomputed' if needs.recompute else ''}"),
            (self.head, "logits"),
            (self.merged, "merged weights to sample from" if needs.merge else "no merged weights"),
            (self.cache, f"samples of {needs.cached_tokens} tokens together"),
        ]
        return "; ".join(f"{part / GIB:.2f} for {meaning}" for part, meaning in parts)


def bytes_per_token(sizes: Sizes, needs: Needs) -> int:
    """Return the estimated bytes per token of a row until its gradient is computed."""
    is_scattered = needs.device.type == "cpu" and not needs.recompute
    return int(_per_token(sizes, needs) * (_SCATTERED if is_scattered else 1))


def _per_token(sizes: Sizes, needs: Needs) -> int:
    size, hidden = needs.dtype.itemsize, sizes.hidden
    stored = _bytes_by_layer(sizes, needs)
    # In the backward pass of a layer: gradients of the intermediate activations, and of queries, keys and values.
    passing = size * (3 * sizes.inner + 3 * hidden + 2 * (sizes.queries + 2 * sizes.keys))
    at_the_top = hidden * (4 * size + 12)  # the last norm, and the gradient from the output layer
    if needs.recompute:
        return sizes.layers * size * hidden + max(stored + passing, at_the_top)
    return sizes.layers * stored + passing + at_the_top


def _bytes_by_layer(sizes: Sizes, needs: Needs) -> int:
    size, hidden, queries, keys, inner = needs.dtype.itemsize, sizes.hidden, sizes.queries, sizes.keys, sizes.inner
    numbers, _ = sizes.adapter(needs.rank, needs.targets)
    low = needs.rank * len(sizes.linears) // max(1, sizes.layers) if numbers else 0
    if _is_fused(sizes, needs):
        return size * (4 * hidden + 3 * queries + 3 * keys + 3 * inner + low)
    normed = 4 * (queries + keys) if sizes.heads_normed else 0
    dropped = 5 * hidden if needs.dropout else 0
    return 4 * 2 * hidden + normed + size * (2 * hidden + 3 * queries + 2 * keys + 4 * inner + low + dropped)


def _is_fused(sizes: Sizes, needs: Needs) -> bool:
    is_on_gpu = needs.device.type == "cuda" and needs.dtype == torch.bfloat16
    return is_on_gpu and sizes.architecture in FUSED and not needs.dropout


def fit(sizes: Sizes, requested: Needs, *, fixed: Collection[str], model: str) -> Needs:
    """Return the requirements, reduced if memory is short; `fixed` names settings that must not change."""
    free = memory.available_bytes(requested.device)
    if free is None:
        return requested

    def fits(needs: Needs) -> bool:
        return Estimate.of(sizes, needs).total <= free * _USED

    chosen = next((needs for needs in _list_fallbacks(requested, fixed) if fits(needs)), None)
    if chosen is None:
        chosen = refuse_if_hopeless(sizes, requested, fixed=fixed, model=model, room=free, where=str(requested.device))
    elif chosen != requested:
        chosen = _restore(chosen, requested, fits)
    if chosen.recompute and not requested.recompute:
        chosen = replace(chosen, recompute_from=_longest_kept(sizes, chosen, free))
    log = get_logger(__name__)
    if chosen == requested:
        log.info("a run takes about %.1f of %.1f GiB", Estimate.of(sizes, requested).total / GIB, free / GIB)
    else:
        log.warning(
            "memory is short: this run would take %.1f GiB, and %s has %.1f GiB free; so %s, which takes %.1f GiB",
            Estimate.of(sizes, requested).total / GIB,
            requested.device,
            free / GIB,
            _differences(requested, chosen),
            Estimate.of(sizes, chosen).total / GIB,
        )
    return chosen


def arms_that_fit(model: str, needs_on: Callable[[Any, Any], Needs], dtype: str) -> int:
    """Return how many runs of a model fit on one GPU: they share base, row and cache, and each has an adapter.

    Returns 1 if unknown. Does not initialize CUDA, because the calling process is not the one that computes.
    """
    from transformers import AutoConfig

    free = memory.free_on_gpus()
    if free is None:
        return 1
    try:
        sizes = Sizes.of(AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False))
    except Exception:  # loading the model reports the error
        return 1
    needs = needs_on(torch.device("cuda"), torch.float32 if dtype == "float32" else torch.bfloat16)
    estimate, size = Estimate.of(sizes, replace(needs, merge=False)), needs.dtype.itemsize
    numbers, _ = sizes.adapter(needs.rank, needs.targets)
    # A joint pass holds a second copy of each adapter and its gradient, and the sampler holds `_BANK` adapters.
    each, bank = estimate.adapter + numbers * (size + 4), _BANK * numbers * size
    return max(1, min(_MOST_ARMS, int((free * _USED - (estimate.total - estimate.adapter) - bank) // each)))


def _list_fallbacks(requested: Needs, fixed: Collection[str]) -> Iterator[Needs]:
    """Yield requirements with decreasing memory, those with the smallest slowdown first."""
    needs = requested
    yield needs
    tokens = () if "tokens_at_once" in fixed else ("tokens_at_once",)
    cache = () if "cached_tokens" in fixed else ("cached_tokens",)
    for part in (*tokens, *cache) * 2:
        needs = _halve(needs, part, requested)
        yield needs
    if "recompute" not in fixed:
        needs = replace(needs, recompute=True)
        yield needs
    if "merge_samplers" not in fixed:
        needs = replace(needs, merge=False)
        yield needs
    for part in (*cache, *tokens):  # last, because many small rows are the slowest
        while (smaller := _halve(needs, part, requested)) != needs:
            needs = smaller
            yield needs


def _halve(needs: Needs, part: str, requested: Needs) -> Needs:
    least = min(_LEAST[part], getattr(requested, part))
    return replace(needs, **{part: max(least, getattr(needs, part) // 2)})


def _restore(needs: Needs, requested: Needs, fits: Callable[[Needs], bool]) -> Needs:
    """Undo reductions that are not needed: `_list_fallbacks` applies them cumulatively."""
    for part in ("merge", "recompute"):
        if fits(back := replace(needs, **{part: getattr(requested, part)})):
            needs = back
    for part in ("tokens_at_once", "cached_tokens"):
        while getattr(needs, part) < getattr(requested, part):
            back = replace(needs, **{part: min(getattr(requested, part), 2 * getattr(needs, part))})
            if not fits(back):
                break
            needs = back
    return needs


def _longest_kept(sizes: Sizes, needs: Needs, free: int) -> int:
    """Return the largest number of tokens of a row that fits without recomputation."""
    estimate, full = Estimate.of(sizes, needs), Estimate.of(sizes, replace(needs, recompute=False))
    room = free * _USED - (estimate.total - estimate.row)
    return int(needs.tokens_at_once * max(0.0, room) / full.row)


def _differences(requested: Needs, chosen: Needs) -> str:
    changes: list[str] = []
    if chosen.tokens_at_once != requested.tokens_at_once:
        changes.append(f"tokens_at_once is {chosen.tokens_at_once} (not {requested.tokens_at_once})")
    if chosen.cached_tokens != requested.cached_tokens:
        changes.append(f"cached_tokens is {chosen.cached_tokens} (not {requested.cached_tokens})")
    if chosen.recompute != requested.recompute:
        changes.append(f"layers are recomputed in the backward pass of rows of {chosen.recompute_from} tokens or more")
    if chosen.merge != requested.merge:
        changes.append("samples are taken without a merged copy of the weights")
    return ", ".join(changes)


def refuse_if_hopeless(
    sizes: Sizes, requested: Needs, *, fixed: Collection[str], model: str, room: int, where: str
) -> Needs:
    """Raise if even the smallest requirements do not fit into `room` bytes; otherwise return these."""
    [*_, least] = _list_fallbacks(requested, fixed)
    estimate = Estimate.of(sizes, least)
    certain = estimate.base + estimate.adapter
    if certain + _SURE * (estimate.total - certain) > room:
        raise BackendError(
            f"training {model} takes about {estimate.total / GIB:.1f} GiB, and {where} has {room / GIB:.1f} GiB free, "
            f"with everything as small as it goes ({estimate.describe(least)}). Free memory on the machine, choose a "
            "smaller model, lower lora_rank, adapt fewer layers (backend.params.lora_targets), set "
            "backend.params.dtype to bfloat16 or nf4, or train elsewhere, such as on tinker; of backend.params, "
            "tokens_at_once, cached_tokens, recompute and merge_samplers are kept where they are set."
        )
    return least
