"""Attention over one packed row: every token sees the earlier tokens of its own sequence, and no other sequence.

transformers lets a model take its attention from a table by name. Ours is entered there; how the row is divided comes
with each call as `evsys_layout`, which the model hands down to every layer. No mask is ever built for a whole row.

A segment may have a prefix elsewhere in the row, which several segments share: prompts of a group are read once.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import BackendError

NAME = "evsys_packed"


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the row that attends to itself, and to a prefix if it has one."""

    start: int
    length: int
    prefix_start: int = 0
    prefix_length: int = 0


@dataclass(frozen=True, slots=True)
class Traits:
    """What the model asks of attention."""

    scale: float | None
    window: int | None = None
    """How far back a token sees; None all the way."""
    softcap: float | None = None
    layer: int = 0


class Layout(Protocol):
    """How attention works on a row: tensors are (heads, tokens, width), and so is what it returns."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor: ...


class PackedLayout:
    """Sequences next to each other, for training and for reading prompts."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = tuple(segments)
        self._on_device: _VarlenIndex | None = None
        self._masks: dict[tuple[int, int, int | None], Tensor] = {}
        """Made once for all layers."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor:
        half = query.dtype in (torch.float16, torch.bfloat16)  # all that the kernels for such rows take
        if query.is_cuda and half and traits.softcap is None and has_varlen():
            return self._attend_varlen(query, key, value, traits)
        return torch.cat([self._attend_segment(s, query, key, value, traits) for s in self.segments], dim=1)

    def _attend_segment(self, segment: Segment, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor:
        own = slice(segment.start, segment.start + segment.length)
        q, k, v = query[:, own], key[:, own], value[:, own]
        if segment.prefix_length:
            prefix = slice(segment.prefix_start, segment.prefix_start + segment.prefix_length)
            k, v = torch.cat([key[:, prefix], k], dim=1), torch.cat([value[:, prefix], v], dim=1)
        total = segment.prefix_length + segment.length
        plain = not segment.prefix_length and (traits.window is None or total <= traits.window)
        seen = None if plain else self._mask(segment.length, total, traits.window, q.device)
        return masked_attention(q[None], k[None], v[None], seen, traits)[0]

    def _mask(self, queries: int, keys: int, window: int | None, device: Any) -> Tensor:
        if (queries, keys, window) not in self._masks:
            self._masks[queries, keys, window] = _causal(queries, keys, window, device)
        return self._masks[queries, keys, window]

    def attend_rows(self, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor:
        """The same for (tokens, heads, width), by the kernels of a GPU for rows of varying length."""
        if self._on_device is None:
            self._on_device = _VarlenIndex.of(self.segments, query.device)
        index = self._on_device
        if index.gather is not None:
            key, value = _Gather.apply(key, index.gather), _Gather.apply(value, index.gather)
        varlen = _varlen()
        assert varlen is not None
        return varlen(query, key, value, index, traits)

    def _attend_varlen(self, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor:
        q, k, v = (tensor.transpose(0, 1).contiguous() for tensor in (query, key, value))
        return self.attend_rows(q, k, v, traits).transpose(0, 1)


class _Gather(torch.autograd.Function):
    """Rows by number; where one is asked for several times, its gradients are added in float32."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.count = len(rows)
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        [grad] = grads
        total = torch.zeros(ctx.count, *grad.shape[1:], device=grad.device).index_add_(0, index, grad.float())
        return total.to(grad.dtype), None


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
    """The attention function as transformers calls it; (1, heads, tokens, width) in, (1, tokens, heads, width) out."""
    if evsys_layout is None or others.get("s_aux") is not None or not getattr(module, "is_causal", True):
        raise BackendError(
            f"{type(module).__name__} uses a kind of attention that the local backend does not have. "
            "Use a model of another architecture, such as Llama, Qwen or Mistral."
        )
    traits = Traits(scaling, sliding_window, softcap, getattr(module, "layer_idx", 0))
    found = evsys_layout.attend(query[0], key[0], value[0], traits)
    return found.transpose(0, 1)[None], None


def register() -> None:
    """Enter our attention into the table of transformers."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, attention)


def masked_attention(query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None, traits: Traits) -> Tensor:
    """Attention of (..., heads, q, width) on (..., kv heads, k, width); `seen` says which keys, None means causal."""
    if traits.softcap is None:
        shared = query.shape[-3] != key.shape[-3]
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=seen, is_causal=seen is None, scale=traits.scale, enable_gqa=shared
        )
    groups = query.shape[-3] // key.shape[-3]
    key, value = (tensor.repeat_interleave(groups, dim=-3) for tensor in (key, value))
    scale = traits.scale if traits.scale is not None else query.shape[-1] ** -0.5
    scores = torch.tanh((query @ key.transpose(-1, -2)) * (scale / traits.softcap)) * traits.softcap
    mask = _causal(query.shape[-2], key.shape[-2], None, query.device) if seen is None else seen
    weights = scores.float().masked_fill(torch.logical_not(mask), float("-inf")).softmax(dim=-1)
    return weights.to(query.dtype) @ value


def _causal(queries: int, keys: int, window: int | None, device: Any) -> Tensor:
    """Which keys each query sees, where the last query stands at the last key."""
    at = torch.arange(keys - queries, keys, device=device)[:, None]
    key = torch.arange(keys, device=device)[None]
    seen = key <= at
    return seen if window is None else seen & (key > at - window)


@dataclass(frozen=True, slots=True)
class _VarlenIndex:
    """The segments as the kernels for rows of varying length want them."""

    queries: Tensor
    keys: Tensor
    longest_query: int
    longest_key: int
    gather: Tensor | None
    """Where the keys of each segment lie in the row; None when they are the row itself."""

    @classmethod
    def of(cls, segments: Sequence[Segment], device: Any) -> _VarlenIndex:
        lengths = [s.length for s in segments]
        totals = [s.prefix_length + s.length for s in segments]
        gather = None
        if totals != lengths:
            pieces = [
                piece
                for s in segments
                for piece in (
                    torch.arange(s.prefix_start, s.prefix_start + s.prefix_length),
                    torch.arange(s.start, s.start + s.length),
                )
            ]
            gather = torch.cat(pieces).to(device)
        ends = [
            F.pad(torch.tensor(sizes).cumsum(0), (1, 0)).to(device=device, dtype=torch.int32)
            for sizes in (lengths, totals)
        ]
        return cls(ends[0], ends[1], max(lengths), max(totals), gather)


def varlen_rows(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, traits: Traits) -> Tensor:
    """Attention of (tokens, heads, width) whose sequences end where `ends` says, 0 first."""
    return _varlen()(query, key, value, _VarlenIndex(ends, ends, longest, longest, None), traits)


def has_varlen() -> bool:
    """Whether torch has attention for rows of varying length."""
    return _varlen() is not None


@functools.cache
def _varlen() -> Any:
    """torch's attention for rows of varying length, as a function of our own shape; None where it is missing."""
    import inspect

    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    takes = inspect.signature(varlen_attn).parameters

    def call(q: Tensor, k: Tensor, v: Tensor, index: _VarlenIndex, traits: Traits) -> Tensor:
        back = -1 if traits.window is None else traits.window - 1
        options: dict[str, Any] = {"scale": traits.scale} if "scale" in takes else {}
        options |= {"window_size": (back, 0)} if "window_size" in takes else {"is_causal": True}
        if q.shape[1] != k.shape[1]:
            # Before there was this option, the kernels took fewer heads of keys than of queries without asking.
            options |= {"enable_gqa": True} if "enable_gqa" in takes else {}
        return varlen_attn(q, k, v, index.queries, index.keys, index.longest_query, index.longest_key, **options)

    return call
