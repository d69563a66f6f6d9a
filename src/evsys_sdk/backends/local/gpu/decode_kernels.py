"""Triton kernels for the products of one decoding step, with everything around them.

A step reads every weight once for a few dozen rows, so that the time goes into starting kernels and into waiting for
memory. Each product therefore takes the norm before it, the gate or the addition after it along. A product that is
divided among several programs is put together by the last of them, always in the same order.
"""

# pyright: basic, reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_ROWS = 128
"""Rows up to which these products are faster than those of torch."""
COLUMNS = 32
"""Columns of a product that a program computes."""
_MOST_PIECES = 4
_PROGRAMS = 128
"""How many programs a product is to be divided among, about one for each processor."""


# Triton compiles again when an integer becomes 1 or a multiple of 16, and these two change while texts are sampled.
@triton.jit(do_not_specialize=["M", "blocks"])
def _product(
    x,
    squares,
    weight,
    bias,
    onto,
    found,
    gain,
    normed,
    new_squares,
    parts,
    arrived,
    low,
    bank,
    table,
    adapters,
    eps,
    M,
    N,
    K,
    blocks,
    stride,
    first_end,
    second_end,
    NORM: tl.constexpr,
    GATE: tl.constexpr,
    BIAS: tl.constexpr,
    ONTO: tl.constexpr,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    BANK: tl.constexpr,
):
    block, rows_at, piece = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = rows_at * ROWS + tl.arange(0, ROWS)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    in_rows, in_columns = (row < M)[:, None], (column < N)[:, None]
    from_x = x + row[:, None] * K
    from_weight = weight + column[:, None].to(tl.int64) * K  # large matrices have more than 2^31 numbers
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    other = tl.zeros([ROWS, COLUMNS], tl.float32)
    # RMS norm is a factor for each row, so it commutes with the product and is applied to the sums at the end.
    if NORM:
        squared = tl.zeros([ROWS], tl.float32)
        for start in range(0, blocks, 32):
            at = start + tl.arange(0, 32)[None, :]
            squared += tl.sum(tl.load(squares + at * M + row[:, None], mask=in_rows & (at < blocks), other=0.0), 1)
        factors = (1.0 / tl.sqrt(squared / K + eps))[:, None]
    # Split-K: each piece is a whole number of steps, so that only the last one has to look where K ends.
    length = tl.cdiv(tl.cdiv(K, SPLIT), DEPTH) * DEPTH
    for start in range(piece * length, tl.minimum((piece + 1) * length, K), DEPTH):
        at = start + tl.arange(0, DEPTH)[None, :]
        inside = at < K
        value = tl.load(from_x + at, mask=in_rows & inside, other=0.0)
        factor = tl.load(from_weight + at, mask=in_columns & inside, other=0.0)
        total = tl.dot(value, tl.trans(factor), total)
        if GATE:
            second = tl.load(from_weight + N * K + at, mask=in_columns & inside, other=0.0)
            other = tl.dot(value, tl.trans(second), other)
    if RANK:
        # Low-rank states of adapters are further columns of x, and their B further columns of the weight. In a row all
        # are zero but those of its adapter. Linear layers that share x lie next to each other: columns choose one.
        place = block * COLUMNS
        part = (place >= first_end).to(tl.int32) + (place >= second_end).to(tl.int32)
        begin = tl.multiple_of(tl.where(part == 0, 0, tl.where(part == 1, first_end, second_end)), COLUMNS)
        rank = tl.arange(0, RANKS)[None, :]
        in_rank = rank < RANK
        from_low = low + (part * BANK * M + row[:, None]) * RANK + rank
        # Loads are wide only where the compiler knows that they begin at multiples of 16.
        of_b = tl.multiple_of(tl.maximum(tl.load(table + 2 * part + 1), 0), 16)
        from_b = bank + of_b + (column[:, None] - begin) * RANK + rank
        if GATE:
            of_second = tl.multiple_of(tl.maximum(tl.load(table + 3), 0), 16)
            from_second = bank + of_second + column[:, None] * RANK + rank
        for adapter in range(tl.where(piece == SPLIT - 1, 0, BANK), tl.load(adapters)):
            own = tl.multiple_of(stride.to(tl.int64) * adapter, 16)
            value = tl.load(from_low + adapter * M * RANK, mask=in_rows & in_rank, other=0.0)
            factor = tl.load(from_b + own, mask=in_columns & in_rank, other=0.0)
            total = tl.dot(value, tl.trans(factor), total)
            if GATE:
                value = tl.load(from_low + (BANK + adapter) * M * RANK, mask=in_rows & in_rank, other=0.0)
                second = tl.load(from_second + own, mask=in_columns & in_rank, other=0.0)
                other = tl.dot(value, tl.trans(second), other)
    if NORM:
        total *= factors
        other *= factors
    if GATE:
        total = total * tl.sigmoid(total) * other
    target = row[:, None] * N + column[None, :]
    written = in_rows & (column < N)[None, :]
    if SPLIT > 1:
        tl.store(parts + piece * M * N + target, total, mask=written)
        tl.debug_barrier()  # every thread of this program has stored its part before the program counts as arrived
        place = arrived + rows_at * tl.num_programs(0) + block
        before = tl.atomic_add(place, 1, sem="acq_rel")
        # The last block adds all parts up from the first to the last: sums in the order of arrival would make the
        # same step give other bits from run to run. The parts bypass L1 (.cg), which may hold what was there before.
        if before == SPLIT - 1:
            total = tl.zeros([ROWS, COLUMNS], tl.float32)
            for number in range(SPLIT):
                total += tl.load(parts + number * M * N + target, mask=written, other=0.0, cache_modifier=".cg")
            _finish(
                total,
                bias,
                onto,
                found,
                gain,
                normed,
                new_squares,
                row,
                column,
                M,
                N,
                block,
                target,
                written,
                BIAS,
                ONTO,
            )
            tl.store(place, 0)  # for the next product: captured graphs never clear it
    else:
        _finish(
            total, bias, onto, found, gain, normed, new_squares, row, column, M, N, block, target, written, BIAS, ONTO
        )


@triton.jit
def _finish(
    total,
    bias,
    onto,
    found,
    gain,
    normed,
    new_squares,
    row,
    column,
    M,
    N,
    block,
    target,
    written,
    BIAS: tl.constexpr,
    ONTO: tl.constexpr,
):
    if BIAS:
        total += tl.load(bias + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
    if ONTO:
        total += tl.load(onto + target, mask=written, other=0.0).to(tl.float32)
    # The sums of squares are those of what is stored, not of what was computed: the norm must see the rounded states.
    rounded = total.to(found.dtype.element_ty)
    tl.store(found + target, rounded, mask=written)
    if ONTO:
        # What the next norm wants of it: the sums of its squares, and its product with the weights of the norm.
        wide = tl.where(written, rounded.to(tl.float32), 0.0)
        factor = tl.load(gain + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
        tl.store(normed + target, (wide * factor).to(normed.dtype.element_ty), mask=written)
        tl.store(new_squares + block * M + row, tl.sum(wide * wide, 1), mask=row < M)


@triton.jit(do_not_specialize=["M"])
def _shrink(
    x,
    bank,
    table,
    rows_of_bank,
    adapters,
    low,
    scale,
    M,
    K,
    stride,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    BANK: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    part, adapter = tl.program_id(0) // BANK, tl.program_id(0) % BANK
    if adapter < tl.load(adapters):
        row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        of_row = tl.load(rows_of_bank + row, mask=row < M, other=-1)
        own = (of_row == adapter)[:, None]
        from_a = tl.load(table + 2 * part)
        is_needed = (from_a >= 0) & (tl.sum(own.to(tl.int32)) > 0)
        rank = tl.arange(0, RANKS)
        from_x = x + row[:, None] * K
        begin = tl.multiple_of(adapter.to(tl.int64) * stride + tl.maximum(from_a, 0), 16)
        from_bank = bank + begin + rank[:, None] * K
        total = tl.zeros([ROWS, RANKS], tl.float32)
        for start in range(0, tl.where(is_needed, K, 0), DEPTH):
            at = start + tl.arange(0, DEPTH)[None, :]
            value = tl.load(from_x + at, mask=own & (at < K), other=0.0)
            factor = tl.load(from_bank + at, mask=(rank < RANK)[:, None] & (at < K), other=0.0)
            total = tl.dot(value, tl.trans(factor), total)
        target = low + (tl.program_id(0) * M + row[:, None]) * RANK + rank[None, :]
        tl.store(target, (total * scale).to(low.dtype.element_ty), mask=(row < M)[:, None] & (rank < RANK)[None, :])


@triton.jit
def _begin(x, gain, normed, squares, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + row * width + at, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(gain + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row * width + at, (value * factor).to(normed.dtype.element_ty), mask=inside)
    tl.store(squares + row, tl.sum(value * value, 0))


class FewRows:
    """The states of a few dozen tokens on their way through the layers.

    Next to the states there are always their products with the weights of the next norm, and sums of their squares; so
    a norm needs no separate pass: it is a factor for each row of the product that follows.
    """

    def __init__(self, x: Tensor, norm: Any, room: Room, bank: tuple[Any, Tensor] | None = None) -> None:
        self.x, self._norm, self._room, self._bank = x, norm, room, bank
        self._normed = torch.empty_like(x)
        self._squares = torch.empty(1, len(x), device=x.device, dtype=torch.float32)
        width = x.shape[1]
        _begin[(len(x),)](x, norm.weight, self._normed, self._squares, width, BLOCK=triton.next_power_of_2(width))

    def times(self, product: Any, *, gate: bool = False) -> Tensor:
        """The product of the normed states with a matrix; with `gate`, its first half gates the second."""
        height = len(product.weight) // 2 if gate else len(product.weight)
        found = self.x.new_empty(len(self.x), height)
        self._launch(self._normed, product, found, _plan(self.x, height, gate=gate), gate=gate)
        return found

    def add(self, x: Tensor, product: Any, norm: Any) -> None:
        """Add a product to the states; `norm` comes next."""
        plan = _plan(x, self.x.shape[1], divide=True)
        squares = torch.empty(triton.cdiv(self.x.shape[1], COLUMNS), len(x), device=x.device, dtype=torch.float32)
        self._launch(x, product, self.x, plan, norm=norm, squares=squares)
        self._norm, self._squares = norm, squares

    def _launch(
        self,
        x: Tensor,
        product: Any,
        found: Tensor,
        plan: _Plan,
        *,
        gate: bool = False,
        norm: Any = None,
        squares: Tensor | None = None,
    ) -> None:
        height, width = found.shape[1], x.shape[1]
        adds, bias = norm is not None, product.bias
        added = None if self._bank is None else _Added.of(*self._bank, x, product)
        _product[(triton.cdiv(height, COLUMNS), triton.cdiv(len(x), plan.rows), plan.pieces)](
            x,
            self._squares,
            product.weight,
            x if bias is None else bias,
            found,
            found,
            norm.weight if adds else x,
            self._normed,
            squares if adds else self._squares,
            self._room.parts,
            self._room.arrived,
            *((x, x, x, x) if added is None else (added.low, added.bank, added.table, added.adapters)),
            self._norm.variance_epsilon,
            len(x),
            height,
            width,
            len(self._squares),
            0 if added is None else added.bank.stride(0),
            *((height, height) if added is None or gate else added.ends),
            NORM=not adds,
            GATE=gate,
            BIAS=bias is not None,
            ONTO=adds,
            SPLIT=plan.pieces,
            ROWS=plan.rows,
            COLUMNS=COLUMNS,
            DEPTH=plan.depth,
            RANK=0 if added is None else added.rank,
            RANKS=16 if added is None else max(16, triton.next_power_of_2(added.rank)),
            BANK=1 if added is None else len(added.bank),
            num_warps=4,
            num_stages=plan.stages,
        )


@dataclass(frozen=True, slots=True)
class _Added:
    """What adapters of a bank add to a product."""

    low: Tensor
    """Low-rank states, (linear layers, rows of the bank, rows, rank)."""
    bank: Tensor
    table: Tensor
    """Where A and B of each linear layer begin in a row of the bank; -1 where it is not adapted."""
    adapters: Tensor
    """How many rows of the bank are in use."""
    ends: tuple[int, int]
    """Where the columns of the first and the second linear layer end."""
    rank: int

    @classmethod
    def of(cls, bank: Any, rows: Tensor, x: Tensor, product: Any) -> _Added | None:
        """`rows` says which row of the bank each row of x belongs to."""
        table, ends = bank.places[id(product)]
        if table is None:
            return None
        (count, width), rank = x.shape, bank.rank
        low = x.new_empty(len(table), len(bank.weights), count, rank)
        at_once = min(64, max(16, triton.next_power_of_2(count)))
        _shrink[(len(table) * len(bank.weights), triton.cdiv(count, at_once))](
            x,
            bank.weights,
            table,
            rows,
            bank.used,
            low,
            bank.scale,
            count,
            width,
            bank.weights.stride(0),
            RANK=rank,
            RANKS=max(16, triton.next_power_of_2(rank)),
            BANK=len(bank.weights),
            ROWS=at_once,
            DEPTH=128,
            num_warps=4,
            num_stages=4,
        )
        return cls(low, bank.weights, table, bank.used, ends, rank)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a product is divided among programs."""

    rows: int
    depth: int
    pieces: int
    stages: int


def _plan(x: Tensor, height: int, *, gate: bool = False, divide: bool = False) -> _Plan:
    """What was fastest on an H200; with less memory in a processor, as many stages as fit."""
    rows = len(x)
    at_once = min(64, max(16, triton.next_power_of_2(rows)))
    blocks = triton.cdiv(height, COLUMNS) * triton.cdiv(rows, at_once)
    pieces = max(1, min(_MOST_PIECES, _PROGRAMS // blocks)) if divide else 1
    depth = 256 if divide else 64 if gate and rows > at_once else 128
    most = torch.cuda.get_device_properties(x.device).shared_memory_per_block_optin
    stages = (most - 4096) // ((at_once + COLUMNS * (2 if gate else 1)) * depth * 2)
    if stages < 2:
        return _Plan(at_once, 64, pieces, 2)
    return _Plan(at_once, depth, pieces, min(4 if divide or (rows > at_once and not gate) else 6, stages))


class Room:
    """Memory in which divided products are put together; captured graphs keep pointing to it."""

    def __init__(self, width: int, device: torch.device) -> None:
        size = max(_MOST_PIECES * MOST_ROWS * width, _PROGRAMS * 64 * COLUMNS)
        self.parts = torch.empty(size, device=device, dtype=torch.float32)
        self.arrived = torch.zeros(width, dtype=torch.int32, device=device)
