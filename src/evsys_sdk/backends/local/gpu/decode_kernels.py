"""Triton kernels for the products of one decoding step, fused with the operations around them.

A step reads every weight once for a few dozen rows, so kernel launches and memory bandwidth dominate. Each product is
therefore fused with the norm before it and the gate or addition after it. If a product is split among several programs
(split-K), the last program sums the parts in a fixed order.
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

from .bank_kernels import AdapterArguments, compute_states
from .early import fetch, launch_early

MOST_ROWS = 128
"""Maximum number of rows for which these products are faster than those of torch."""
COLUMNS = 32
"""Columns of a product per program."""
_MOST_PIECES = 4
_PROGRAMS = 128
"""Target number of programs per product, about one per multiprocessor."""
_MOST_WIDE = 256
"""Maximum number of ranks of all adapters together that are added in one product."""
_COUNTERS = 1 + 3 * 16
"""Counters of a block of rows: one for all, and one for each linear layer of each adapter of a bank."""


# Triton recompiles when an integer becomes 1 or a multiple of 16, and these two change during sampling.
@triton.jit(do_not_specialize=["M", "blocks"])
def _product(
    x,
    squares,
    weight,
    bias,
    onto,
    output,
    gain,
    normed,
    new_squares,
    parts,
    arrived,
    partials,
    states,
    bank,
    table,
    owners,
    adapters,
    ready,
    scale,
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
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDE: tl.constexpr,
    SHARES: tl.constexpr,
    SHRINKS: tl.constexpr,
    ALL: tl.constexpr,
    EARLY: tl.constexpr,
):
    # The first programs compute the low-rank states; the others wait for them at their end.
    number, rows_at = tl.program_id(0), tl.program_id(1)
    if RANK:  # noqa: SIM102 - a compile-time constant, unlike the next condition
        if number < SHRINKS:
            compute_states(
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
                ROWS,
                RANK,
                RANKS,
                PARTS,
                GROUP,
                WIDE,
                SHARES,
                EARLY,
            )
            return
    next_part: tl.constexpr = RANKS if GROUP > 1 else WIDE
    rank = tl.arange(0, RANKS)[None, :]
    block = (number - SHRINKS) % tl.cdiv(N, COLUMNS)
    piece = (number - SHRINKS) // tl.cdiv(N, COLUMNS)
    row = rows_at * ROWS + tl.arange(0, ROWS)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    in_rows, in_columns = (row < M)[:, None], (column < N)[:, None]
    from_x = x + row[:, None] * K
    from_weight = weight + column[:, None].to(tl.int64) * K  # large matrices have more than 2^31 numbers
    # Split-K: each piece is a whole number of steps, so that only the last piece reaches the end of K.
    length = tl.cdiv(tl.cdiv(K, SPLIT), DEPTH) * DEPTH
    ends = tl.minimum((piece + 1) * length, K)
    if RANK:
        # Add the adapter of each row. The columns determine the linear layer, because layers that share x are joined.
        place = block * COLUMNS
        part = (place >= first_end).to(tl.int32) + (place >= second_end).to(tl.int32)
        begin = tl.multiple_of(tl.where(part == 0, 0, tl.where(part == 1, first_end, second_end)), COLUMNS)
        in_rank = rank < RANK
        of_b = tl.multiple_of(tl.maximum(tl.load(table + 2 * part + 1), 0), 16)
        from_b = bank + of_b + (column[:, None] - begin) * RANK + rank
        owner = tl.load(owners + row, mask=row < M, other=-1)
        is_last = piece == SPLIT - 1
        limit = tl.where(is_last, tl.load(adapters) * (PARTS // GROUP), 0)
        states_per_row: tl.constexpr = PARTS // GROUP * WIDE
        from_states = states + row[:, None] * states_per_row + part // GROUP * WIDE + part % GROUP * RANKS
        from_second_states = from_states + next_part
        if GATE:
            of_second = tl.multiple_of(tl.maximum(tl.load(table + 3), 0), 16)
            from_second = bank + of_second + column[:, None] * RANK + rank
        if ALL:
            every = tl.arange(0, ALL * RANKS)[None, :]
            of_every = (every // RANKS).to(tl.int64) * stride + column[:, None] * RANK + every % RANKS
            used_every = in_columns & (every % RANKS < RANK) & (every // RANKS < limit // (PARTS // GROUP))
            all_b = tl.load(bank + of_b - begin * RANK + of_every, mask=used_every, other=0.0)
            if GATE:
                second_b = tl.load(bank + of_second + of_every, mask=used_every, other=0.0)
    if EARLY:
        if ROWS <= 32:  # with more rows, loading the rows takes longer than the weights
            fetch(weight, block * COLUMNS, N - block * COLUMNS, piece * length, ends, K, COLUMNS)
            if GATE:
                fetch(weight, N + block * COLUMNS, N - block * COLUMNS, piece * length, ends, K, COLUMNS)
        gdc_wait()
        gdc_launch_dependents()
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    other = tl.zeros([ROWS, COLUMNS], tl.float32)
    # RMS norm is one factor per row, so it is applied to the sums at the end.
    if NORM:
        squared = tl.zeros([ROWS], tl.float32)
        for start in range(0, blocks, 32):
            at = start + tl.arange(0, 32)[None, :]
            squared += tl.sum(tl.load(squares + at * M + row[:, None], mask=in_rows & (at < blocks), other=0.0), 1)
        factors = (1.0 / tl.sqrt(squared / K + eps))[:, None]
    for start in range(piece * length, ends, DEPTH):
        at = start + tl.arange(0, DEPTH)[None, :]
        inside = at < K
        value = tl.load(from_x + at, mask=in_rows & inside, other=0.0)
        factor = tl.load(from_weight + at, mask=in_columns & inside, other=0.0)
        total = tl.dot(value, tl.trans(factor), total)
        if GATE:
            second = tl.load(from_weight + N * K + at, mask=in_columns & inside, other=0.0)
            other = tl.dot(value, tl.trans(second), other)
    if RANK:
        while tl.atomic_add(ready + rows_at, 0, sem="acquire") < limit:
            pass
        if ALL:
            # Each row has states for its own adapter only, so that one product adds all adapters.
            mine_of_every = (tl.where(is_last, owner, -1)[:, None] == every // RANKS) & (every % RANKS < RANK)
            states_of_all = tl.load(from_states + every % RANKS, mask=mine_of_every, other=0.0, cache_modifier=".cg")
            total = tl.dot(states_of_all, tl.trans(all_b), total)
            if GATE:
                of_second_states = from_second_states + every % RANKS
                second_states = tl.load(of_second_states, mask=mine_of_every, other=0.0, cache_modifier=".cg")
                other = tl.dot(second_states, tl.trans(second_b), other)
        else:
            # Rows of an owner are mostly adjacent, so that only the adapters between the first and the last are needed.
            begin_at = tl.where(is_last, tl.min(tl.where(row < M, owner, 1 << 30)), 0)
            end_at = tl.where(is_last, tl.max(owner) + 1, 0)
            used_rows = (row < tl.where(is_last, M, 0))[:, None] & in_rank
            state = tl.load(from_states + rank, mask=used_rows, other=0.0, cache_modifier=".cg")
            if GATE:
                other_state = tl.load(from_second_states + rank, mask=used_rows, other=0.0, cache_modifier=".cg")
            for adapter in range(begin_at, end_at):
                offset = tl.multiple_of(stride.to(tl.int64) * adapter, 16)
                # Choose rows of the product, not of the states: these keep their layout for all adapters.
                b = tl.load(from_b + offset, mask=in_columns & in_rank, other=0.0)
                total += tl.where(owner[:, None] == adapter, tl.dot(state, tl.trans(b)), 0.0)
                if GATE:
                    b = tl.load(from_second + offset, mask=in_columns & in_rank, other=0.0)
                    other += tl.where(owner[:, None] == adapter, tl.dot(other_state, tl.trans(b)), 0.0)
    if NORM:
        total *= factors
        other *= factors
    if GATE:
        total = total * tl.sigmoid(total) * other
    target = row[:, None] * N + column[None, :]
    written = in_rows & (column < N)[None, :]
    before = SPLIT - 1
    if SPLIT > 1:
        tl.store(parts + piece * M * N + target, total, mask=written)
        tl.debug_barrier()  # all threads must store their part before the program counts as arrived
        place = arrived + rows_at * tl.cdiv(N, COLUMNS) + block
        before = tl.atomic_add(place, 1, sem="acq_rel")
        # The last program sums all parts in a fixed order; the order of arrival would make results nondeterministic.
        # The parts bypass L1 (.cg), which may hold stale values.
        if before == SPLIT - 1:
            total = tl.zeros([ROWS, COLUMNS], tl.float32)
            for number in range(SPLIT):
                total += tl.load(parts + number * M * N + target, mask=written, other=0.0, cache_modifier=".cg")
            tl.store(place, 0)  # reset for the next product, because captured graphs do not clear it
    if before == SPLIT - 1:
        if BIAS:
            total += tl.load(bias + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
        if ONTO:
            total += tl.load(onto + target, mask=written, other=0.0).to(tl.float32)
        # The squares are computed from the rounded states, which are the input of the norm.
        rounded = total.to(output.dtype.element_ty)
        tl.store(output + target, rounded, mask=written)
        if ONTO:
            # Inputs of the next norm: the sums of squares, and the states times the weights of the norm.
            wide = tl.where(written, rounded.to(tl.float32), 0.0)
            factor = tl.load(gain + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
            tl.store(normed + target, (wide * factor).to(normed.dtype.element_ty), mask=written)
            tl.store(new_squares + block * M + row, tl.sum(wide * wide, 1), mask=row < M)


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
    """The hidden states of a few dozen tokens, with norms fused into the products.

    It also stores the states times the weights of the next norm, and the sums of squares. So a norm needs no separate
    pass: it is a factor for each row of the following product.
    """

    def __init__(self, x: Tensor, norm: Any, room: Room, bank: tuple[Any, Tensor] | None = None) -> None:
        self.x, self._norm, self._room, self._bank = x, norm, room, bank
        self._normed = torch.empty_like(x)
        self._squares = torch.empty(1, len(x), device=x.device, dtype=torch.float32)
        products = 0 if bank is None else len(bank[0].places)
        self._ready = iter(
            torch.zeros(products, _COUNTERS, triton.cdiv(len(x), 16), device=x.device, dtype=torch.int32)
        )
        width = x.shape[1]
        _begin[(len(x),)](x, norm.weight, self._normed, self._squares, width, BLOCK=triton.next_power_of_2(width))

    def times(self, product: Any, *, gate: bool = False) -> Tensor:
        """Multiply the normalized states by a matrix; with `gate`, its first half gates the second."""
        height = len(product.weight) // 2 if gate else len(product.weight)
        output = self.x.new_empty(len(self.x), height)
        self._launch(
            self._normed, product, output, _plan(self.x, height, gate=gate, pairs=self._bank is not None), gate=gate
        )
        return output

    def add(self, x: Tensor, product: Any, norm: Any) -> None:
        """Add a product to the states; `norm` is the next norm."""
        plan = _plan(x, self.x.shape[1], divide=True, pairs=self._bank is not None)
        squares = torch.empty(triton.cdiv(self.x.shape[1], COLUMNS), len(x), device=x.device, dtype=torch.float32)
        self._launch(x, product, self.x, plan, norm=norm, squares=squares)
        self._norm, self._squares = norm, squares

    def _launch(
        self,
        x: Tensor,
        product: Any,
        output: Tensor,
        plan: _Plan,
        *,
        gate: bool = False,
        norm: Any = None,
        squares: Tensor | None = None,
    ) -> None:
        height, width = output.shape[1], x.shape[1]
        adds, bias = norm is not None, product.bias
        added = None if self._bank is None else AdapterArguments.of(*self._bank, next(self._ready), x, product)
        shrinks = 0 if added is None else added.shares * added.groups * added.most
        _product[(shrinks + triton.cdiv(height, COLUMNS) * plan.pieces, triton.cdiv(len(x), plan.rows))](
            x,
            self._squares,
            product.weight,
            x if bias is None else bias,
            output,
            output,
            norm.weight if adds else x,
            self._normed,
            squares if adds else self._squares,
            self._room.parts,
            self._room.arrived,
            *((x,) * 7 if added is None else (added.partials, added.states, added.bank, added.table, added.owners)),
            *(() if added is None else (added.adapters, added.ready)),
            1.0 if added is None else added.scale,
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
            RANKS=16 if added is None else added.ranks,
            PARTS=1 if added is None else len(added.table),
            GROUP=1 if added is None else len(added.table) // added.groups,
            WIDE=16 if added is None else added.states.shape[2],
            SHARES=1 if added is None else added.shares,
            SHRINKS=shrinks,
            ALL=0 if added is None or added.most * added.ranks > _MOST_WIDE else added.most,
            num_warps=4,
            num_stages=plan.stages,
            **launch_early(x.device, product.weight),
        )


@dataclass(frozen=True, slots=True)
class _Plan:
    """The division of a product among programs."""

    rows: int
    depth: int
    pieces: int
    stages: int


def _plan(x: Tensor, height: int, *, gate: bool = False, divide: bool = False, pairs: bool = False) -> _Plan:
    """Return the fastest plan on an H200; with less shared memory, use as many stages as fit.

    With `pairs` and many rows, two programs fit into a multiprocessor, so that low-rank states run concurrently.
    """
    rows = len(x)
    pairs = pairs and rows > 64
    at_once = min(64, max(16, triton.next_power_of_2(rows)))
    blocks = triton.cdiv(height, COLUMNS) * triton.cdiv(rows, at_once)
    pieces = max(1, min(_MOST_PIECES, _PROGRAMS // blocks)) if divide else 1
    depth = 256 if divide and not pairs else 64 if gate and rows > at_once else 128
    most = torch.cuda.get_device_properties(x.device).shared_memory_per_block_optin // (2 if pairs else 1)
    stages = (most - 4096) // ((at_once + COLUMNS * (2 if gate else 1)) * depth * 2)
    if stages < 2:
        return _Plan(at_once, 64, pieces, 2)
    return _Plan(at_once, depth, pieces, min(4 if divide or pairs or (rows > at_once and not gate) else 6, stages))


class Room:
    """Working memory of split products; captured graphs refer to its address."""

    def __init__(self, width: int, device: torch.device) -> None:
        size = max(_MOST_PIECES * MOST_ROWS * width, _PROGRAMS * 64 * COLUMNS)
        self.parts = torch.empty(size, device=device, dtype=torch.float32)
        self.arrived = torch.zeros(width, dtype=torch.int32, device=device)
