"""Triton kernels for the adapters of a bank, where each row has an owner: the bank row of its adapter.

`compute_states` is the part of a fused product that computes low-rank states of a few dozen rows. `add_adapters` adds
adapters to any number of rows. Rows of one owner should be adjacent, because a program computes its rows once for each
owner between its first and its last.
"""

# pyright: basic, reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .early import fetch

_ROWS, _DEPTH, _PROGRAMS = 64, 128, 256
_MOST_SHARES, _MOST_RANKS = 8, 128
"""Maximum number of programs that divide the columns of a row among them, and of ranks that a program computes."""


@triton.jit
def compute_states(
    number,
    rows_at,
    x,
    partials,
    states,
    bank,
    table,
    owners,
    adapters,
    ready,
    scale,
    M,
    K,
    stride,
    ROWS: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDE: tl.constexpr,
    SHARES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Compute the low-rank states of one adapter's rows from a share of the columns; the last share sums them."""
    used = tl.load(adapters)
    groups: tl.constexpr = PARTS // GROUP
    if number < groups * SHARES * used:
        share, adapter = number % SHARES, number // SHARES % used
        first_part = number // SHARES // used * GROUP
        row = rows_at * ROWS + tl.arange(0, ROWS)
        mine = (tl.load(owners + row, mask=row < M, other=-1) == adapter)[:, None]
        # The A of all linear layers of the group, side by side.
        rank, part = tl.arange(0, WIDE) % RANKS, tl.arange(0, WIDE) // RANKS
        from_a = tl.load(table + 2 * (first_part + part), mask=part < GROUP, other=-1)
        adapted = ((from_a >= 0) & (rank < RANK))[:, None]
        # `multiple_of` lets the compiler emit wide loads.
        start_of_a = tl.multiple_of(adapter.to(tl.int64) * stride + tl.maximum(from_a, 0), [16])
        from_bank = bank + start_of_a[:, None] + rank[:, None] * K
        from_x = x + row[:, None] * K
        depth: tl.constexpr = 128 if WIDE <= 32 else 64 if WIDE <= 128 else 32
        length = tl.cdiv(tl.cdiv(K, SHARES), depth) * depth
        last = tl.where(tl.sum(mine.to(tl.int32)) > 0, tl.minimum((share + 1) * length, K), 0)
        if EARLY:
            for each in tl.static_range(GROUP):
                start_of_part = tl.load(table + 2 * (first_part + each))
                rows_of_a = tl.where(start_of_part >= 0, RANK, 0)
                from_part = bank + adapter.to(tl.int64) * stride + tl.maximum(start_of_part, 0)
                fetch(from_part, 0, rows_of_a, share * length, last, K, RANKS)
            gdc_wait()
            gdc_launch_dependents()
        total = tl.zeros([ROWS, WIDE], tl.float32)
        for start in range(share * length, last, depth):
            at = start + tl.arange(0, depth)[None, :]
            value = tl.load(from_x + at, mask=mine & (at < K), other=0.0)
            factor = tl.load(from_bank + at, mask=adapted & (at < K), other=0.0)
            total = tl.dot(value, tl.trans(factor), total)
        entry = row[:, None] * groups * WIDE + first_part // GROUP * WIDE + tl.arange(0, WIDE)[None, :]
        share_size = M * groups * WIDE
        tl.store(partials + share * share_size + entry, total, mask=mine)
        tl.debug_barrier()  # all threads must store their states before the program counts as arrived
        # The last program of an adapter sums the shares in a fixed order, so that readers load one state.
        count = ready + (1 + first_part // GROUP * used + adapter) * tl.num_programs(1) + rows_at
        if tl.atomic_add(count, 1, sem="acq_rel") == SHARES - 1:
            total = tl.zeros([ROWS, WIDE], tl.float32)
            for other_share in tl.static_range(SHARES):
                other_states = partials + other_share * share_size + entry
                total += tl.load(other_states, mask=mine, other=0.0, cache_modifier=".cg")
            tl.store(states + entry, (total * scale).to(states.dtype.element_ty), mask=mine)
            tl.debug_barrier()
            tl.atomic_add(ready + rows_at, 1, sem="release")


@triton.jit
def _load_owners(owners, row, M):
    """Load the owner of each row, and the first and the last owner."""
    owner = tl.load(owners + row, mask=row < M, other=-1)
    return owner[:, None], tl.min(tl.where(row < M, owner, 1 << 30)), tl.max(owner)


@triton.jit
def _shrink(
    x,
    bank,
    table,
    owners,
    low,
    M,
    K,
    stride,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    SHARES: tl.constexpr,
):
    part, share = tl.program_id(1), tl.program_id(2)
    row, rank = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, RANKS)
    owner, first, last = _load_owners(owners, row, M)
    from_a = tl.load(table + 2 * part)
    length = tl.cdiv(tl.cdiv(K, SHARES), DEPTH) * DEPTH
    end = tl.where(from_a >= 0, tl.minimum((share + 1) * length, K), 0)  # zeros for a layer without an adapter
    from_x = x + row[:, None].to(tl.int64) * K
    total = tl.zeros([ROWS, RANKS], tl.float32)
    for adapter in range(first, last + 1):
        mine = owner == adapter
        # `multiple_of` lets the compiler emit wide loads.
        start_of_a = tl.multiple_of(stride.to(tl.int64) * adapter + tl.maximum(from_a, 0), 16)
        for start in range(share * length, end, DEPTH):
            at = start + tl.arange(0, DEPTH)[None, :]
            value = tl.load(from_x + at, mask=mine & (at < K), other=0.0)
            factor = tl.load(
                bank + start_of_a + rank[:, None] * K + at, mask=(rank < RANK)[:, None] & (at < K), other=0.0
            )
            total = tl.dot(value, tl.trans(factor), total)
    target = low + ((part * SHARES + share).to(tl.int64) * M + row[:, None]) * RANK + rank[None, :]
    tl.store(target, total, mask=(row < M)[:, None] & (rank < RANK)[None, :])


@triton.jit
def _expand(
    low,
    bank,
    table,
    owners,
    onto,
    scale,
    M,
    N,
    stride,
    first_end,
    second_end,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SHARES: tl.constexpr,
):
    place = tl.program_id(1) * COLUMNS
    part = (place >= first_end).to(tl.int32) + (place >= second_end).to(tl.int32)
    from_b = tl.load(table + 2 * part + 1)
    if from_b >= 0:
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        column, rank = place + tl.arange(0, COLUMNS), tl.arange(0, RANKS)[None, :]
        begin = tl.multiple_of(tl.where(part == 0, 0, tl.where(part == 1, first_end, second_end)), COLUMNS)
        owner, first, last = _load_owners(owners, row, M)
        inside = (row < M)[:, None] & (rank < RANK)
        state = tl.zeros([ROWS, RANKS], tl.float32)
        for share in tl.static_range(SHARES):
            state += tl.load(
                low + ((part * SHARES + share).to(tl.int64) * M + row[:, None]) * RANK + rank, mask=inside, other=0.0
            )
        state = (state * scale).to(bank.dtype.element_ty)
        target = onto + row[:, None].to(tl.int64) * N + column[None, :]
        written = (row < M)[:, None] & (column < N)[None, :]
        total = tl.load(target, mask=written, other=0.0).to(tl.float32)
        for adapter in range(first, last + 1):
            start_of_b = tl.multiple_of(stride.to(tl.int64) * adapter + from_b, 16)
            from_b_rows = bank + start_of_b + (column[:, None] - begin) * RANK + rank
            factor = tl.load(from_b_rows, mask=(column < N)[:, None] & (rank < RANK), other=0.0)
            total += tl.where(owner == adapter, tl.dot(state, tl.trans(factor)), 0.0)
        tl.store(target, total.to(onto.dtype.element_ty), mask=written)


@dataclass(frozen=True, slots=True)
class AdapterArguments:
    """The arguments of a product for the adapters of a bank."""

    partials: Tensor
    """Low-rank states in shares to sum, (shares, rows, groups, ranks of a group)."""
    states: Tensor
    """Their sums, (rows, groups, ranks of a group)."""
    bank: Tensor
    table: Tensor
    """Offsets of A and B of each linear layer in a row of the bank; -1 if it is not adapted."""
    owners: Tensor
    """Bank row of each row's adapter."""
    adapters: Tensor
    """Number of bank rows in use."""
    ends: tuple[int, int]
    """Ends of the columns of the first and the second linear layer."""
    rank: int
    ready: Tensor
    """For each block of rows, the number of groups of adapters whose states are summed, then the shares of each."""
    scale: float
    most: int
    """Maximum number of bank rows in use."""

    @classmethod
    def of(cls, bank: Any, owners: Tensor, ready: Tensor, x: Tensor, product: Any) -> AdapterArguments | None:
        table, ends = bank.places[id(product)]
        if table is None:
            return None
        parts, ranks = len(table), _padded(bank.rank)
        # One program computes the states of all linear layers with the same input, if they fit into registers.
        wide = ranks * triton.next_power_of_2(parts)
        groups, wide = (1, wide) if wide <= _MOST_RANKS else (parts, ranks)
        shares = min(_MOST_SHARES, triton.cdiv(x.shape[1], 256))
        partials = torch.empty(shares, len(x), groups, wide, device=x.device, dtype=torch.float32)
        states = torch.empty(len(x), groups, wide, device=x.device, dtype=bank.weights.dtype)
        return cls(
            partials, states, bank.weights, table, owners, bank.used, ends, bank.rank, ready, bank.scale, bank.most
        )

    @property
    def shares(self) -> int:
        return len(self.partials)

    @property
    def ranks(self) -> int:
        return _padded(self.rank)

    @property
    def groups(self) -> int:
        return self.states.shape[1]


def add_adapters(bank: Any, product: Any, x: Tensor, onto: Tensor, owners: Tensor) -> None:
    """Add the adapters of a bank to `onto`, the product of `x` with the base weights; `owners` has each row's bank row.

    Columns of a program must belong to one linear layer, so the ends of layers are multiples of 32.
    """
    table, ends = bank.places[id(product)]
    if table is None:
        return
    (rows, width), height, parts = x.shape, onto.shape[1], len(table)
    at_once = min(_ROWS, max(16, triton.next_power_of_2(rows)))
    blocks = triton.cdiv(rows, at_once)
    shares = max(1, min(_MOST_SHARES, triton.cdiv(width, 2 * _DEPTH), _PROGRAMS // (blocks * parts)))
    columns = 64 if not any(end % 64 for end in (*ends, height)) else 32
    low = torch.empty(parts, shares, rows, bank.rank, device=x.device, dtype=torch.float32)
    sizes = {"RANK": bank.rank, "RANKS": _padded(bank.rank), "ROWS": at_once, "SHARES": shares}
    stride = bank.weights.stride(0)
    _shrink[(blocks, parts, shares)](
        x, bank.weights, table, owners, low, rows, width, stride, DEPTH=_DEPTH, num_warps=4, num_stages=3, **sizes
    )
    _expand[(blocks, triton.cdiv(height, columns))](
        low,
        bank.weights,
        table,
        owners,
        onto,
        bank.scale,
        rows,
        height,
        stride,
        *ends,
        COLUMNS=columns,
        num_warps=4,
        **sizes,
    )


def _padded(rank: int) -> int:
    """Return the rank that programs compute with; `tl.dot` needs at least 16."""
    return max(16, triton.next_power_of_2(rank))
