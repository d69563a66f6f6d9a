"""Attention over one packed row: every token sees the earlier tokens of its sequence, and no other sequence.

transformers looks up attention functions in a table by name; `register` adds this one. The segments of the row come
with each call as `evsys_layout`, which the model passes to every layer. No mask is built for a whole row. Models that
need more than `Traits`, e.g. a mask or a bias, are refused.

A segment may have a prefix elsewhere in the row. Several segments may share it, so the prompt of a group is read once.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from . import recurrence

NAME = "evsys_packed"
_WIDEST_VARLEN = 256
"""Largest head dimension of torch's variable-length kernels."""
_IGNORED = {
    "position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states", "is_causal",
    "output_router_logits", "position_embeddings", "logits_to_keep", "past_key_values", "return_dict", "head_mask",
}  # fmt: skip
"""Keyword arguments that do not change the result of attention."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of the row that attend to each other, and to the prefix if there is one."""

    start: int
    length: int
    prefix_start: int = 0
    prefix_length: int = 0


@dataclass(frozen=True, slots=True)
class Traits:
    """The parameters of a layer's attention."""

    scale: float | None
    window: int | None = None
    """Size of the sliding window; None for full attention."""
    softcap: float | None = None
    layer: int = 0
    sinks: Tensor | None = None
    """(heads,): attention sink logit of each head, as in gpt-oss."""

    @property
    def is_plain(self) -> bool:
        """Whether the standard kernels support it: no softcap and no sinks."""
        return self.softcap is None and self.sinks is None


class Layout(Protocol):
    """Computes attention and recurrent layers over one row.

    `attend` takes and returns (heads, tokens, width), `convolve` (tokens, channels), and `delta_rule` (tokens, heads,
    width).
    """

    def attend(self, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor: ...

    def convolve(self, layer: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor: ...

    def delta_rule(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor
    ) -> Tensor: ...


class PackedLayout:
    """A row of packed sequences, for training and prefill."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = tuple(segments)
        self._on_device: VarlenIndex | None = None
        self._masks: dict[tuple[int, int, int | None], Tensor] = {}
        """Cache shared by all layers."""
        self._plan: recurrence.Plan | None = None

    @property
    def plan(self) -> recurrence.Plan:
        """The order in which recurrent layers process the segments."""
        if self._plan is None:
            self._plan = recurrence.Plan.of(self.segments)
        return self._plan

    def convolve(self, layer: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A causal convolution of each channel within each sequence."""
        output, last = recurrence.convolve(self.plan, x, weight, bias, self._initial_state(layer, "inputs"))
        self._keep_state(layer, "inputs", last)
        return output

    def delta_rule(self, layer: int, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
        """The gated delta rule within each sequence."""
        initial = self._initial_state(layer, "memory")
        output, last = recurrence.delta_rule(self.plan, query, key, value, decay, beta, initial)
        self._keep_state(layer, "memory", last)
        return output

    def _initial_state(self, layer: int, kind: str) -> Tensor | None:
        """Return the initial state of segments without a prefix; None means zero."""

    def _keep_state(self, layer: int, kind: str, last: Tensor) -> None:
        """Store the final state of each segment; a sampler overrides this."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor:
        half = query.dtype in (torch.float16, torch.bfloat16)  # the only dtypes that the kernels support
        even = query.shape[-1] == value.shape[-1] <= _WIDEST_VARLEN
        if query.is_cuda and half and even and traits.is_plain and has_varlen():
            return self._attend_varlen(query, key, value, traits)
        return torch.cat([self._attend_segment(s, query, key, value, traits) for s in self.segments], dim=1)

    def _attend_segment(self, segment: Segment, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor:
        span = slice(segment.start, segment.start + segment.length)
        q, k, v = query[:, span], key[:, span], value[:, span]
        if segment.prefix_length:
            prefix = slice(segment.prefix_start, segment.prefix_start + segment.prefix_length)
            k, v = torch.cat([key[:, prefix], k], dim=1), torch.cat([value[:, prefix], v], dim=1)
        total = segment.prefix_length + segment.length
        plain = not segment.prefix_length and (traits.window is None or total <= traits.window)
        # Without a mask, torch can use a causal kernel, which skips half of the work.
        visible = None if plain else self._mask(segment.length, total, traits.window, q.device)
        return masked_attention(q[None], k[None], v[None], visible, traits)[0]

    def _mask(self, queries: int, keys: int, window: int | None, device: Any) -> Tensor:
        if (queries, keys, window) not in self._masks:
            self._masks[queries, keys, window] = _causal(queries, keys, window, device)
        return self._masks[queries, keys, window]

    def attend_rows(self, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor:
        """Compute attention of (tokens, heads, width) with the variable-length kernels of a GPU."""
        if self._on_device is None:
            self._on_device = VarlenIndex.of(self.segments, len(key)).to(query.device)
        return varlen_rows(query, key, value, self._on_device, traits)

    def _attend_varlen(self, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor:
        q, k, v = (tensor.transpose(0, 1).contiguous() for tensor in (query, key, value))
        return self.attend_rows(q, k, v, traits).transpose(0, 1)


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    evsys_layout: Layout | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls: (1, heads, tokens, width) -> (1, tokens, heads, width)."""
    layout = evsys_layout or getattr(others.get("position_ids"), "evsys_layout", None)
    sinks = others.pop("s_aux", None)
    refuse_unknown(module, attention_mask, others)
    if layout is None:
        raise NotUnderstood(f"its {type(module).__name__} gets no layout of the packed sequences")
    traits = Traits(scaling, sliding_window, softcap, module.layer_idx, sinks)
    output = layout.attend(query[0], key[0], value[0], traits)
    return output.transpose(0, 1).contiguous()[None], None


class NotUnderstood(Exception):
    """A model needs a feature that is not supported; the message continues a sentence after 'because'."""


def refuse_unknown(module: Any, attention_mask: Any, others: dict[str, Any]) -> None:
    """Raise `NotUnderstood` for arguments that this attention does not implement."""
    kind = type(module).__name__
    if not getattr(module, "is_causal", True) or others.get("is_causal") is False:
        raise NotUnderstood(f"its {kind} is not causal")
    if attention_mask is not None:
        raise NotUnderstood(f"its {kind} passes its own mask, which does not support packed sequences")
    unknown = [name for name, value in others.items() if name not in _IGNORED and value is not None]
    if unknown:
        raise NotUnderstood(f"its {kind} passes {', '.join(unknown)}, which is not supported")
    if not isinstance(getattr(module, "layer_idx", None), int):
        raise NotUnderstood(f"its {kind} has no `layer_idx`")


def register() -> None:
    """Add `attention` to the attention functions of transformers."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, attention)


def masked_attention(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, traits: Traits) -> Tensor:
    """Attention of (..., heads, q, width) on (..., kv heads, k, width); `visible` is the mask, None means causal."""
    if traits.is_plain:
        shared = query.shape[-3] != key.shape[-3]
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=visible, is_causal=visible is None, scale=traits.scale, enable_gqa=shared
        )
    groups = query.shape[-3] // key.shape[-3]
    key, value = (tensor.repeat_interleave(groups, dim=-3) for tensor in (key, value))
    scale = traits.scale if traits.scale is not None else query.shape[-1] ** -0.5
    scores = (query @ key.transpose(-1, -2)).float() * scale
    if traits.softcap is not None:
        scores = torch.tanh(scores / traits.softcap) * traits.softcap
    mask = _causal(query.shape[-2], key.shape[-2], None, query.device) if visible is None else visible
    scores = scores.masked_fill(torch.logical_not(mask), float("-inf"))
    if traits.sinks is None:
        weights = scores.softmax(dim=-1)
    else:
        # The query heads of a key head may be folded into the query rows; the sinks follow the same order.
        sinks = traits.sinks.float().view(scores.shape[-3], -1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
    return weights.to(query.dtype) @ value


def _causal(queries: int, keys: int, window: int | None, device: Any) -> Tensor:
    """The causal mask (queries, keys); the last query is at the position of the last key."""
    at = torch.arange(keys - queries, keys, device=device)[:, None]
    key = torch.arange(keys, device=device)[None]
    visible = key <= at
    return visible if window is None else visible & (key > at - window)


@dataclass(frozen=True, slots=True)
class VarlenIndex:
    """The segments in the format of torch's variable-length kernels."""

    queries: Tensor
    """Cumulative lengths of the segments, starting with 0."""
    keys: Tensor
    """Cumulative numbers of keys, including prefixes."""
    longest_query: int
    longest_key: int
    gather: Tensor | None
    """Row index of each key, segment by segment; None if no segment has a prefix."""
    order: Tensor | None = None
    """The inverse of `gather`: the indices into it that refer to row 0, then to row 1, and so on."""
    ends: Tensor | None = None
    """Start of each row's indices in `order`."""

    @classmethod
    def of(cls, segments: Sequence[Segment], rows: int) -> VarlenIndex:
        lengths = [s.length for s in segments]
        totals = [s.prefix_length + s.length for s in segments]
        queries, keys = (torch.from_numpy(np.cumsum([0, *sizes]).astype(np.int32)) for sizes in (lengths, totals))
        longest = max(lengths), max(totals)
        if totals == lengths:
            return cls(queries, keys, *longest, None)
        parts = [(s.prefix_start, s.prefix_length) for s in segments], [(s.start, s.length) for s in segments]
        gather = np.concatenate(
            [np.arange(start, start + size) for pair in zip(*parts, strict=True) for start, size in pair]
        )
        # For the gradient: a key of several segments gets the sum of their gradients, in a fixed order.
        order = np.argsort(gather, kind="stable").astype(np.int32)
        ends = np.concatenate([[0], np.bincount(gather, minlength=rows)]).cumsum().astype(np.int32)
        return cls(queries, keys, *longest, *(torch.from_numpy(part) for part in (gather, order, ends)))

    def to(self, device: Any) -> VarlenIndex:
        """Return a copy on a device."""
        parts = (self.queries, self.keys, self.gather, self.order, self.ends)
        queries, keys, *others = (None if part is None else part.to(device) for part in parts)
        assert queries is not None
        assert keys is not None
        return VarlenIndex(queries, keys, self.longest_query, self.longest_key, *others)

    def gather_rows(self, rows: Tensor) -> Tensor:
        """Return the keys or values of all segments, concatenated."""
        if self.gather is None:
            return rows
        if not (torch.is_grad_enabled() and rows.requires_grad and has_triton()):
            return rows.index_select(0, self.gather)
        from ..gpu.row_kernels import Gather

        return Gather.apply(rows, self.gather, self.order, self.ends)


def varlen_rows(query: Tensor, key: Tensor, value: Tensor, index: VarlenIndex, traits: Traits) -> Tensor:
    """Compute attention of (tokens, heads, width) on a GPU."""
    varlen = _varlen()
    assert varlen is not None
    return varlen(query, index.gather_rows(key), index.gather_rows(value), index, traits)


def has_varlen() -> bool:
    """Whether torch has variable-length attention."""
    return _varlen() is not None


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _varlen() -> Any:
    """torch's variable-length attention as a function of a `VarlenIndex` and `Traits`; None if torch lacks it."""
    import inspect

    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    takes = inspect.signature(varlen_attn).parameters

    def call(q: Tensor, k: Tensor, v: Tensor, index: VarlenIndex, traits: Traits) -> Tensor:
        # `traits.window` includes the current token; the kernels count only the tokens before it.
        back = -1 if traits.window is None else traits.window - 1
        options: dict[str, Any] = {"scale": traits.scale} if "scale" in takes else {}
        options |= {"window_size": (back, 0)} if "window_size" in takes else {"is_causal": True}
        if q.shape[1] != k.shape[1]:
            # torch versions without this option always accept fewer key heads than query heads.
            options |= {"enable_gqa": True} if "enable_gqa" in takes else {}
        return varlen_attn(q, k, v, index.queries, index.keys, index.longest_query, index.longest_key, **options)

    return call
