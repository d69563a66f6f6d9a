"""Recurrent layers over one packed row: short causal convolutions and the gated delta rule, state reset per sequence.

Recurrent layers carry a state from token to token. A segment starts from zero, from the final state of its prefix
segment, or from a state in the sampler's cache. All computation is batched over segments: a convolution is a few
gathers, and the delta rule processes one chunk of tokens at a time for all segments together.

    plan = Plan.of(segments)
    y, last = convolve(plan, x, weight, bias, initial)                   # x (T, channels)
    y, last = delta_rule(plan, query, key, value, decay, beta, initial)  # (T, heads, width)
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from .attention import Segment

_CHUNK = 64


@dataclass(frozen=True, slots=True)
class _Level:
    """Segments whose initial states are known at the same time, those with the most chunks first."""

    members: Tensor
    """Numbers of the segments."""
    parents: Tensor | None
    """Index of each member's prefix segment in the order of all levels; None on the first level."""
    active: tuple[int, ...]
    """For each chunk number, the number of members that have this chunk."""


@dataclass(slots=True)
class Plan:
    """The order of computation for the segments of one row, cached for all layers."""

    segments: tuple[Segment, ...]
    parents: tuple[int, ...]
    """Index of each segment's prefix segment, or -1."""
    tokens: int
    _taps: dict[tuple[int, str], tuple[Tensor, Tensor]] = field(default_factory=dict)
    _chunks: dict[str, tuple[list[_Level], Tensor, Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> Plan:
        place = {(segment.start, segment.length): number for number, segment in enumerate(segments)}
        parents = tuple(place[s.prefix_start, s.prefix_length] if s.prefix_length else -1 for s in segments)
        return cls(tuple(segments), parents, sum(segment.length for segment in segments))

    def taps(self, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the row indices that a convolution reads for each token (T, width), and those of each final state.

        Row T + n * (width - 1) + i is row i of the initial state of segment n.
        """
        key = (width, str(device))
        if key not in self._taps:
            before = width - 1
            ends: list[NDArray[np.int64]] = []
            rows = np.empty((self.tokens, width), np.int64)
            for number, (segment, parent) in enumerate(zip(self.segments, self.parents, strict=True)):
                start = self.tokens + number * before
                first = np.arange(start, start + before) if parent < 0 else ends[parent]
                text = np.concatenate([first, np.arange(segment.start, segment.start + segment.length)])
                windows = np.lib.stride_tricks.sliding_window_view(text, width)
                rows[segment.start : segment.start + segment.length] = windows
                ends.append(text[len(text) - before :])
            self._taps[key] = torch.from_numpy(rows).to(device), torch.from_numpy(np.stack(ends)).to(device)
        return self._taps[key]

    def chunks(self, device: torch.device) -> tuple[list[_Level], Tensor, Tensor, Tensor]:
        """Return the levels, each segment's index in their order, each chunk's tokens, and each token's index there.

        Incomplete chunks are padded with token T.
        """
        key = str(device)
        if key not in self._chunks:
            longest = max(segment.length for segment in self.segments)
            size = min(_CHUNK, max(16, 1 << (longest - 1).bit_length()))
            count = [-(-segment.length // size) for segment in self.segments]
            levels: list[_Level] = []
            rows: list[NDArray[np.int64]] = []
            rank: dict[int, int] = {}
            while len(rank) < len(self.segments):
                ready = [n for n, parent in enumerate(self.parents) if n not in rank and (parent < 0 or parent in rank)]
                members = sorted(ready, key=lambda number: (-count[number], number))
                parents = torch.tensor([rank[self.parents[n]] for n in members], device=device) if levels else None
                active = tuple(sum(count[n] > chunk for n in members) for chunk in range(count[members[0]]))
                levels.append(_Level(torch.tensor(members, device=device), parents, active))
                rank |= {number: len(rank) + place for place, number in enumerate(members)}
                for chunk, running in enumerate(active):
                    for number in members[:running]:
                        segment = self.segments[number]
                        inside = np.arange(chunk * size, (chunk + 1) * size)
                        rows.append(np.where(inside < segment.length, segment.start + inside, self.tokens))
            index = np.stack(rows)
            place = np.empty(self.tokens + 1, np.int64)
            place[index.ravel()] = np.arange(index.size)
            order = np.array([rank[number] for number in range(len(rank))])
            tensors = (torch.from_numpy(part).to(device) for part in (order, index, place[: self.tokens]))
            self._chunks[key] = (levels, *tensors)  # pyright: ignore[reportArgumentType]
        return self._chunks[key]


def convolve(
    plan: Plan, x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return a causal convolution per channel (T, channels) and each segment's last inputs (segments, width - 1, c)."""
    width = weight.shape[-1]
    rows, ends = plan.taps(width, x.device)
    begin = x.new_zeros(len(plan.segments), width - 1, x.shape[1]) if initial is None else initial.to(x.dtype)
    inputs = torch.cat([x, begin.flatten(0, 1)])
    output: Any = sum(inputs.index_select(0, rows[:, tap]) * weight[:, tap] for tap in range(width))
    return (output if bias is None else output + bias), inputs[ends]


def delta_rule(
    plan: Plan, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Apply the gated delta rule: (T, heads, width of values), and each segment's last state (segments, heads, k, v).

    For the gradient, only the inputs are kept; intermediate tensors are several times as large and are recomputed.
    """
    inputs = (query, key, value, decay, beta, initial)
    if not torch.is_grad_enabled():
        return _scan(plan, *inputs)
    return checkpoint(_scan, plan, *inputs, use_reentrant=False, preserve_rng_state=False)  # pyright: ignore[reportReturnType]


def _scan(
    plan: Plan, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    levels, order, index, place = plan.chunks(query.device)
    query, key, value, decay, beta = _in_float(query, key, value, decay, beta)
    heads, width = value.shape[1:]

    def in_chunks(x: Tensor) -> Tensor:  # (T, heads, ...) -> (chunks, heads, size, ...)
        # index_select, because the gradient of plain indexing sorts the index, which takes longer than the rest.
        padded = torch.cat([x, x.new_zeros(1, *x.shape[1:])])
        return padded.index_select(0, index.flatten()).unflatten(0, index.shape).transpose(1, 2)

    q, k, v, g, b = (in_chunks(part) for part in (query, key, value, decay, beta))
    total = g.cumsum(-1)
    # The decay of token j's write until token i.
    decays = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
    written = k * b[..., None]
    # Within a chunk, each token corrects the writes of earlier tokens: a triangular system.
    system = (written @ k.transpose(-1, -2) * decays).tril(-1)
    right = torch.cat([v * b[..., None], written * total.exp()[..., None]], dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    new, reads = solved.split([width, k.shape[-1]], dim=-1)
    inside = (q @ k.transpose(-1, -2) * decays).tril()
    q = q * total.exp()[..., None]
    k = (k * (total[..., -1:] - total).exp()[..., None]).transpose(-1, -2)
    remaining = total[..., -1].exp()[..., None, None]
    outputs: list[Tensor] = []
    last = value.new_zeros(0, heads, k.shape[-2], width)
    # Split once: the gradient of each single slice would be as large as the whole tensor.
    sizes = [running for level in levels for running in level.active]
    steps = zip(*(part.split(sizes) for part in (q, k, inside, new, reads, remaining)), strict=True)
    for level in levels:
        if level.parents is not None:
            state = last.index_select(0, level.parents)
        elif initial is None:
            state = value.new_zeros(len(level.members), heads, k.shape[-2], width)
        else:
            state = initial.to(value.dtype).index_select(0, level.members)
        ended: list[Tensor] = []
        for running in level.active:
            if running < len(state):  # members are sorted by length, so the shortest are last
                state, finished = state.split([running, len(state) - running])
                ended.append(finished)
            q_now, k_now, inside_now, new_now, reads_now, remaining_now = next(steps)
            change = new_now - reads_now @ state
            outputs.append(q_now @ state + inside_now @ change)
            state = state * remaining_now + k_now @ change
        last = torch.cat([last, state, *reversed(ended)])
    output = torch.cat(outputs).transpose(1, 2).reshape(-1, heads, width).index_select(0, place)
    return output, last.index_select(0, order)


def step_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    """Convolve one more token per slot: x (slots, channels), state (slots, width - 1, channels)."""
    window = torch.cat([state, x[:, None].to(state.dtype)], dim=1)
    output = (window * weight.T).sum(1).to(x.dtype)
    return (output if bias is None else output + bias), window[:, 1:]


def step_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply the delta rule to one more token per slot: tensors (slots, heads, width), state (slots, heads, k, v)."""
    query, key, value, decay, beta = _in_float(query, key, value, decay, beta)
    state = state * decay.exp()[..., None, None]
    change = (value - (key[..., None, :] @ state)[..., 0, :]) * beta[..., None]
    state = state + key[..., :, None] * change[..., None, :]
    return (query[..., None, :] @ state)[..., 0, :], state


def _in_float(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """Convert to float32 or wider, normalize queries and keys to length 1, and scale queries as in attention."""
    wide = torch.promote_types(query.dtype, torch.float32)
    query, key, value, decay, beta = (part.to(wide) for part in (query, key, value, decay, beta))
    query, key = (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + 1e-6) for part in (query, key))
    groups = value.shape[1] // key.shape[1]
    if groups > 1:
        query, key = (part.repeat_interleave(groups, dim=1) for part in (query, key))
    return query * query.shape[-1] ** -0.5, key, value, decay, beta
