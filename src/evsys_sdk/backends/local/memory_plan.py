"""How much memory a run will take, and what it does differently where memory is short; before its model is loaded.

Counted are the base, the adapter with its gradient and optimizer, what a row keeps for its gradient, a piece of the
output layer's work, the merged copy that is sampled from, and the cache of samples. It is right to about a third; what
really happens when memory runs out is dealt with where it happens (`memory`). Where the estimate is more than is free,
rows and the cache of samples become smaller, layers are recomputed, no merged copy is made to sample from: in this
order, only as far as needed, and nothing that the config sets itself. One line of the log says what and why.

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
"""Of what is free; the rest goes to what is not counted."""
_SURE = 0.7
"""An estimate may be too high by this much, so only what would not fit even then is refused."""
_LEAST = {"tokens_at_once": 256, "cached_tokens": 4096}
# As in `fused_layers`, which needs a base.
_SCATTERED = 1.25
"""On a CPU the C library keeps pieces that do not fit what is asked for next."""
_BANK, _MOST_ARMS = 16, 8
"""Adapters that a joint sampler holds, and runs that share a GPU at most: larger passes are no faster per run."""
_COPIES = 6
"""Of the adapter: weights, gradients of a row, of a call and of a step, and two moments."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What of a model decides how much memory it takes."""

    architecture: str
    parameters: int
    linears: dict[str, Linear]
    """Layers that can be adapted, without memory behind them."""
    layers: int
    hidden: int
    queries: int
    """Values of all queries of a token."""
    keys: int
    """Values of all its keys; as many again are its values."""
    inner: int
    """Values of a token between the two halves of the layer behind attention."""
    heads_normed: bool
    vocabulary: int

    @classmethod
    def of(cls, config: Any) -> Sizes:
        """The sizes of a model of this config, found out without making room for it."""
        from transformers import AutoModelForCausalLM

        config = copy.deepcopy(config)  # that of a model which is in use stays as it is
        # Shapes without memory: the layers are counted as the library really builds them.
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
        """What the base takes."""
        if not four_bit:
            return self.parameters * dtype.itemsize
        small = sum(one.weight.numel() for one in self.linears.values() if can_quantize(one.weight))
        return (self.parameters - small) * dtype.itemsize + small // 2 + small // BLOCK * dtype.itemsize

    def adapter(self, rank: int, targets: Sequence[str] | None) -> tuple[int, int]:
        """How many numbers an adapter has, and how many the weights have that it changes."""
        try:
            names = target_layers(Switch(layers=self.linears), targets)
        except BackendError:  # raised again, where the layers really are
            names = target_layers(Switch(layers=self.linears), None)
        chosen = [self.linears[name] for name in names]
        numbers = sum(math.prod(one.experts) * (one.out_features + one.in_features) for one in chosen)
        return rank * numbers, sum(one.weight.numel() for one in chosen)


def _of_experts(text: Any) -> int:
    """The inner values of all experts that a token goes to; they are no linear layers of their own."""
    experts = _first(text, ("num_experts_per_tok",), 0)
    width = _first(text, ("moe_intermediate_size", "intermediate_size"), 0)
    return experts * width + (_first(text, ("shared_expert_intermediate_size",), 0) if experts else 0)


def _first(text: Any, names: Sequence[str], otherwise: int) -> int:
    found = (_read_setting(text, name) for name in names)
    return next((value for value in found if isinstance(value, int) and value > 0), otherwise)


def _read_setting(text: Any, name: str) -> Any:
    try:
        return getattr(text, name, None)
    except RuntimeError:  # it differs from layer to layer
        return None


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run wants of a model."""

    device: torch.device
    dtype: torch.dtype
    rank: int
    targets: Sequence[str] | None
    tokens_at_once: int
    cached_tokens: int
    merge: bool
    recompute: bool
    recompute_from: int = 0
    """Shorter rows fit without it."""
    loaded: bool = False
    """Whether the base is there already."""
    dropout: bool = False
    four_bit: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes, by what they are for."""

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
            # Of four bits all weights are made dense to sample from.
            merged=(sizes.parameters if needs.four_bit else changed) * size if needs.merge else 0,
            cache=needs.cached_tokens * sizes.layers * 2 * sizes.keys * size,
        )

    @property
    def total(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self))

    def describe(self, needs: Needs) -> str:
        """All parts in GiB, with what each depends on."""
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
    """What each token of a row takes until its gradient is there."""
    is_scattered = needs.device.type == "cpu" and not needs.recompute
    return int(_per_token(sizes, needs) * (_SCATTERED if is_scattered else 1))


def _per_token(sizes: Sizes, needs: Needs) -> int:
    size, hidden = needs.dtype.itemsize, sizes.hidden
    kept = _bytes_by_layer(sizes, needs)
    # While a layer is differentiated: gradients of its inner values, and of queries, keys and values.
    passing = size * (3 * sizes.inner + 3 * hidden + 2 * (sizes.queries + 2 * sizes.keys))
    at_the_top = hidden * (4 * size + 12)  # the last norm, and the gradient that the output layer gives
    if needs.recompute:
        return sizes.layers * size * hidden + max(kept + passing, at_the_top)
    return sizes.layers * kept + passing + at_the_top


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


def fit(sizes: Sizes, wanted: Needs, *, fixed: Collection[str], model: str) -> Needs:
    """What is wanted, with less of it where memory is short; `fixed` names what must stay as it is."""
    free = memory.available_bytes(wanted.device)
    if free is None:
        return wanted

    def fits(needs: Needs) -> bool:
        return Estimate.of(sizes, needs).total <= free * _USED

    chosen = next((needs for needs in _list_fallbacks(wanted, fixed) if fits(needs)), None)
    if chosen is None:
        chosen = refuse_if_hopeless(sizes, wanted, fixed=fixed, model=model, room=free, where=str(wanted.device))
    elif chosen != wanted:
        chosen = _take_back(chosen, wanted, fits)
    if chosen.recompute and not wanted.recompute:
        chosen = replace(chosen, recompute_from=_longest_kept(sizes, chosen, free))
    log = get_logger(__name__)
    if chosen == wanted:
        log.info("a run takes about %.1f of %.1f GiB", Estimate.of(sizes, wanted).total / GIB, free / GIB)
    else:
        log.warning(
            "memory is short: this run would take %.1f GiB, and %s has %.1f GiB free; so %s, which takes %.1f GiB",
            Estimate.of(sizes, wanted).total / GIB,
            wanted.device,
            free / GIB,
            _differences(wanted, chosen),
            Estimate.of(sizes, chosen).total / GIB,
        )
    return chosen


def arms_that_fit(model: str, want: Callable[[Any, Any], Needs], dtype: str) -> int:
    """How many runs of a model share one GPU of this machine: one base, row and cache, and an adapter for each.

    1 where no one can tell. CUDA is not touched, because the process that asks is not the one that computes.
    """
    from transformers import AutoConfig

    free = memory.free_on_gpus()
    if free is None:
        return 1
    try:
        sizes = Sizes.of(AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False))
    except Exception:  # loading the model says what is wrong with it
        return 1
    needs = want(torch.device("cuda"), torch.float32 if dtype == "float32" else torch.bfloat16)
    estimate, size = Estimate.of(sizes, replace(needs, merge=False)), needs.dtype.itemsize
    numbers, _ = sizes.adapter(needs.rank, needs.targets)
    # In a joint pass an adapter and its gradient are there once more, and the sampler has a bank of adapters.
    each, bank = estimate.adapter + numbers * (size + 4), _BANK * numbers * size
    return max(1, min(_MOST_ARMS, int((free * _USED - (estimate.total - estimate.adapter) - bank) // each)))


def _list_fallbacks(wanted: Needs, fixed: Collection[str]) -> Iterator[Needs]:
    """Ways to do with less, each taking less than the one before; what costs little comes first."""
    needs = wanted
    yield needs
    tokens = () if "tokens_at_once" in fixed else ("tokens_at_once",)
    cache = () if "cached_tokens" in fixed else ("cached_tokens",)
    for part in (*tokens, *cache) * 2:
        needs = _halve(needs, part, wanted)
        yield needs
    if "recompute" not in fixed:
        needs = replace(needs, recompute=True)
        yield needs
    if "merge_samplers" not in fixed:
        needs = replace(needs, merge=False)
        yield needs
    for part in (*cache, *tokens):  # many small rows are the slowest of all
        while (smaller := _halve(needs, part, wanted)) != needs:
            needs = smaller
            yield needs


def _halve(needs: Needs, part: str, wanted: Needs) -> Needs:
    least = min(_LEAST[part], getattr(wanted, part))
    return replace(needs, **{part: max(least, getattr(needs, part) // 2)})


def _take_back(needs: Needs, wanted: Needs, fits: Callable[[Needs], bool]) -> Needs:
    """Take back what turned out not to be needed: the remedies were tried one on top of the other."""
    for part in ("merge", "recompute"):
        if fits(back := replace(needs, **{part: getattr(wanted, part)})):
            needs = back
    for part in ("tokens_at_once", "cached_tokens"):
        while getattr(needs, part) < getattr(wanted, part):
            back = replace(needs, **{part: min(getattr(wanted, part), 2 * getattr(needs, part))})
            if not fits(back):
                break
            needs = back
    return needs


def _longest_kept(sizes: Sizes, needs: Needs, free: int) -> int:
    """How long a row may be that is not recomputed."""
    estimate, kept = Estimate.of(sizes, needs), Estimate.of(sizes, replace(needs, recompute=False))
    room = free * _USED - (estimate.total - estimate.row)
    return int(needs.tokens_at_once * max(0.0, room) / kept.row)


def _differences(wanted: Needs, chosen: Needs) -> str:
    changes: list[str] = []
    if chosen.tokens_at_once != wanted.tokens_at_once:
        changes.append(f"tokens_at_once is {chosen.tokens_at_once} (not {wanted.tokens_at_once})")
    if chosen.cached_tokens != wanted.cached_tokens:
        changes.append(f"cached_tokens is {chosen.cached_tokens} (not {wanted.cached_tokens})")
    if chosen.recompute != wanted.recompute:
        changes.append(f"layers are recomputed in the backward pass of rows of {chosen.recompute_from} tokens or more")
    if chosen.merge != wanted.merge:
        changes.append("samples are taken without a merged copy of the weights")
    return ", ".join(changes)


def refuse_if_hopeless(
    sizes: Sizes, wanted: Needs, *, fixed: Collection[str], model: str, room: int, where: str
) -> Needs:
    """Refuse a run that would not fit into `room` bytes, however little it does with; returns that."""
    [*_, least] = _list_fallbacks(wanted, fixed)
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
