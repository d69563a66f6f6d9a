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
_MOST_PIECES, _COLUMNS = 4, 32
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
    eps,
    M,
    N,
    K,
    blocks,
    NORM: tl.constexpr,
    GATE: tl.constexpr,
    BIAS: tl.constexpr,
    ONTO: tl.constexpr,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
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
        # Whoever comes last adds all parts up from the first to the last: sums in the order of arrival would make the
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

    Beside the states there are always their products with the weights of the next norm, and sums of their squares; so a
    norm needs no pass of its own: it is a factor for each row of the product that follows.
    """

    def __init__(self, x: Tensor, norm: Any, room: Room) -> None:
        self.x, self._norm, self._room = x, norm, room
        self._normed = torch.empty_like(x)
        self._squares = torch.empty(1, len(x), device=x.device, dtype=torch.float32)
        width = x.shape[1]
        _begin[(len(x),)](x, norm.weight, self._normed, self._squares, width, BLOCK=triton.next_power_of_2(width))

    @property
    def normed(self) -> tuple[Tensor, Tensor, float]:
        """The states times the weights of the norm, sums of their squares, and the norm's epsilon."""
        return self._normed, self._squares, self._norm.variance_epsilon

    def times(self, product: Any, *, gate: bool = False) -> Tensor:
        """The product of the normed states with a matrix; with `gate`, its first half gates the second."""
        height = len(product.weight) // 2 if gate else len(product.weight)
        found = self.x.new_empty(len(self.x), height)
        self._launch(self._normed, product, found, _plan(self.x, height, gate=gate), gate=gate)
        return found

    def add(self, x: Tensor, product: Any, norm: Any) -> None:
        """Add a product to the states; `norm` comes next."""
        plan = _plan(x, self.x.shape[1], divide=True)
        squares = torch.empty(triton.cdiv(self.x.shape[1], _COLUMNS), len(x), device=x.device, dtype=torch.float32)
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
        _product[(triton.cdiv(height, _COLUMNS), triton.cdiv(len(x), plan.rows), plan.pieces)](
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
            self._norm.variance_epsilon,
            len(x),
            height,
            width,
            len(self._squares),
            NORM=not adds,
            GATE=gate,
            BIAS=bias is not None,
            ONTO=adds,
            SPLIT=plan.pieces,
            ROWS=plan.rows,
            COLUMNS=_COLUMNS,
            DEPTH=plan.depth,
            num_warps=4,
            num_stages=plan.stages,
        )


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
    blocks = triton.cdiv(height, _COLUMNS) * triton.cdiv(rows, at_once)
    pieces = max(1, min(_MOST_PIECES, _PROGRAMS // blocks)) if divide else 1
    depth = 256 if divide else 64 if gate and rows > at_once else 128
    most = torch.cuda.get_device_properties(x.device).shared_memory_per_block_optin
    stages = (most - 4096) // ((at_once + _COLUMNS * (2 if gate else 1)) * depth * 2)
    if stages < 2:
        return _Plan(at_once, 64, pieces, 2)
    return _Plan(at_once, depth, pieces, min(4 if divide or (rows > at_once and not gate) else 6, stages))


class Room:
    """Memory in which divided products are put together; captured graphs keep pointing to it."""

    def __init__(self, width: int, device: torch.device) -> None:
        self.parts = torch.empty(_MOST_PIECES * MOST_ROWS * width, device=device, dtype=torch.float32)
        self.arrived = torch.zeros(width, dtype=torch.int32, device=device)
