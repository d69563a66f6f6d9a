"""The Triton kernel that adds the products of several adapters to those of a decoding step."""

# pyright: basic, reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

_DEPTH = 128


# Triton compiles again when an integer becomes 1 or a multiple of 16, and these change while texts are sampled.
@triton.jit(do_not_specialize=["M", "blocks"])
def _add_lora(
    x,
    squares,
    bank,
    table,
    order,
    starts,
    found,
    scale,
    eps,
    M,
    N,
    K,
    blocks,
    stride,
    NORM: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    tile, adapter, rows_at = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first, last = tl.load(starts + adapter), tl.load(starts + adapter + 1)
    at = first + rows_at * ROWS + tl.arange(0, ROWS)
    from_a = tl.load(table + 2 * tile)
    if (first + rows_at * ROWS < last) & (from_a >= 0):
        from_b = tl.load(table + 2 * tile + 1)
        inside = at < last
        row = tl.load(order + at, mask=inside, other=0).to(tl.int64)
        own = bank + adapter.to(tl.int64) * stride
        rank = tl.arange(0, RANKS)
        low = tl.zeros([ROWS, RANKS], tl.float32)
        for start in range(0, K, DEPTH):
            depth = start + tl.arange(0, DEPTH)
            value = tl.load(
                x + row[:, None] * K + depth[None, :], mask=inside[:, None] & (depth < K)[None, :], other=0.0
            )
            factor = tl.load(
                own + from_a + rank[:, None] * K + depth[None, :],
                mask=(rank < RANK)[:, None] & (depth < K)[None, :],
                other=0.0,
            )
            low = tl.dot(value, tl.trans(factor), low)
        if NORM:
            # RMS norm is a factor for each row, so that it commutes with the product.
            squared = tl.zeros([ROWS], tl.float32)
            for start in range(0, blocks, 32):
                block = start + tl.arange(0, 32)[None, :]
                seen = inside[:, None] & (block < blocks)
                squared += tl.sum(tl.load(squares + block * M + row[:, None], mask=seen, other=0.0), 1)
            low *= (1.0 / tl.sqrt(squared / K + eps))[:, None]
        column = tl.arange(0, COLUMNS)
        wide = tl.load(own + from_b + column[:, None] * RANK + rank[None, :], mask=(rank < RANK)[None, :], other=0.0)
        added = tl.dot(low.to(wide.dtype), tl.trans(wide)) * scale
        target = found + row[:, None] * N + tile * COLUMNS + column[None, :]
        before = tl.load(target, mask=inside[:, None], other=0.0).to(tl.float32)
        tl.store(target, (before + added).to(found.dtype.element_ty), mask=inside[:, None])


def add_lora(
    states: tuple[Tensor, Tensor | None, float],
    bank: Tensor,
    table: Tensor,
    order: Tensor,
    starts: Tensor,
    found: Tensor,
    form: tuple[int, float, int],
) -> None:
    """Add to some rows of `found` what each row's adapter adds; `form` is rank, scale and columns of a tile."""
    x, squares, eps = states
    rank, scale, tile = form
    rows = 16 if len(x) <= 128 else 32 if len(x) <= 256 else 64
    grid: Any = (found.shape[1] // tile, len(bank), triton.cdiv(len(x), rows))
    _add_lora[grid](
        x,
        x if squares is None else squares,
        bank,
        table,
        order,
        starts,
        found,
        scale,
        eps,
        len(x),
        found.shape[1],
        x.shape[1],
        1 if squares is None else len(squares),
        bank.stride(0),
        NORM=squares is not None,
        RANK=rank,
        RANKS=max(16, triton.next_power_of_2(rank)),
        ROWS=rows,
        COLUMNS=tile,
        DEPTH=_DEPTH,
        num_warps=4,
        num_stages=3,
    )
