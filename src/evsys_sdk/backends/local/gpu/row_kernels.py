"""Triton kernels outside of the layers: softmax over a vocabulary, repeated keys, caches, merged and four-bit weights.

Each replaces several passes over memory, or a sum with a nondeterministic order.
"""

# pyright: basic, reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 1024


@triton.jit
def _sum_rows(grad, order, ends, output, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    total = tl.zeros([BLOCK], tl.float32)
    # No atomic additions, because their order and the last bits of the gradient would vary from run to run.
    for number in range(tl.load(ends + row), tl.load(ends + row + 1)):
        place = tl.load(order + number).to(tl.int64)
        total += tl.load(grad + place * width + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + row * width + at, total.to(output.dtype.element_ty), mask=inside)


@triton.jit
def _store(
    key,
    value,
    keys,
    values,
    slots,
    positions,
    places,
    key_stride,
    value_stride,
    slot_stride,
    head_stride,
    size,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    number = tl.program_id(0)
    place = tl.load(places + number).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    target = tl.load(slots + number) * slot_stride + tl.load(positions + number) * WIDTH
    # The heads of a token are adjacent in the row, but `head_stride` apart in the cache.
    target += at // WIDTH * head_stride + at % WIDTH
    tl.store(keys + target, tl.load(key + place * key_stride + at, mask=inside), mask=inside)
    tl.store(values + target, tl.load(value + place * value_stride + at, mask=inside), mask=inside)


@triton.jit
def _softmax(logits, totals, width, REPLACE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    # One running maximum per column of the block instead of one per row, to avoid a reduction in the loop.
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK], tl.float32)
    for start in range(0, width, BLOCK):
        at = start + column
        value = tl.load(logits + row * width + at, mask=at < width, other=float("-inf")).to(tl.float32)
        highest = tl.maximum(most, value)
        # A column with only -inf so far has no mass.
        rescale = tl.where(highest == float("-inf"), 0.0, tl.exp(most - highest))
        mass = mass * rescale + tl.where(highest == float("-inf"), 0.0, tl.exp(value - highest))
        most = highest
    highest = tl.max(most, 0)
    total = highest + tl.log(tl.sum(mass * tl.exp(most - highest), 0))
    tl.store(totals + row, total)
    if REPLACE:
        for start in range(0, width, BLOCK):
            at = start + column
            value = tl.load(logits + row * width + at, mask=at < width, other=float("-inf")).to(tl.float32)
            tl.store(logits + row * width + at, tl.exp(value - total).to(logits.dtype.element_ty), mask=at < width)


@triton.jit
def _merge(
    weight, a, b, into, scale, height, width, RANK: tl.constexpr, DEPTH: tl.constexpr, R: tl.constexpr, C: tl.constexpr
):
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.program_id(1) * C + tl.arange(0, C)
    total = tl.zeros([R, C], tl.float32)
    for start in range(0, RANK, DEPTH):
        at = start + tl.arange(0, DEPTH)
        of_b = tl.load(
            b + row[:, None] * RANK + at[None, :], mask=(row < height)[:, None] & (at < RANK)[None, :], other=0.0
        )
        of_a = tl.load(
            a + at[:, None] * width + column[None, :], mask=(at < RANK)[:, None] & (column < width)[None, :], other=0.0
        )
        # Not in TF32, because merged weights must be exact.
        total = tl.dot(of_b, of_a, total, input_precision="ieee")
    inside = (row < height)[:, None] & (column < width)[None, :]
    offset = row[:, None].to(tl.int64) * width + column[None, :]
    plain = tl.load(weight + offset, mask=inside, other=0.0).to(tl.float32)
    tl.store(into + offset, (plain + total * scale).to(into.dtype.element_ty), mask=inside)


class Gather(torch.autograd.Function):
    """Selects rows by index, possibly repeatedly; gradients are summed in float32 in a fixed order.

    `order` lists the indices into `index` that refer to row 0, then to row 1, and so on; `ends` holds the start of each
    row's indices.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, order: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(order, ends)
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        order, ends = ctx.saved_tensors
        grad = grads[0].contiguous()
        count, width = len(ends) - 1, grad[0].numel()
        grad_rows = grad.new_empty(count, *grad.shape[1:])
        _sum_rows[(count, triton.cdiv(width, _COLUMNS))](grad, order, ends, grad_rows, width, BLOCK=_COLUMNS)
        return grad_rows, None, None, None


def softmax_(logits: Tensor, *, replace: bool) -> Tensor:
    """Return the logsumexp of each row, (rows,) in float32; with `replace`, overwrite logits by probabilities."""
    totals = torch.empty(len(logits), device=logits.device, dtype=torch.float32)
    _softmax[(len(logits),)](logits, totals, logits.shape[1], REPLACE=replace, BLOCK=4096, num_warps=8)
    return totals


def merge(weight: Tensor, a: Tensor, b: Tensor, scale: float, output: Tensor) -> None:
    """Write weight + scale * b @ a, computed in float32, to `output`."""
    (height, width), rank = weight.shape, len(a)
    grid = (triton.cdiv(height, 64), triton.cdiv(width, 128))
    depth = min(32, max(16, triton.next_power_of_2(rank)))
    _merge[grid](
        weight, a.contiguous(), b.contiguous(), output, scale, height, width, RANK=rank, DEPTH=depth, R=64, C=128
    )


def store_rows(
    key: Tensor, value: Tensor, cache: tuple[Tensor, Tensor], slots: Tensor, positions: Tensor, places: Tensor
) -> None:
    """Store rows of (tokens, heads, width) at positions of slots in a cache, (slots, heads, length, width)."""
    keys, values = cache
    size, width = key[0].numel(), key.shape[2]
    # Values are a view of the joint product; reading them with its stride avoids a copy.
    _store[(len(slots),)](
        key.contiguous(),
        value if value.stride()[1:] == (width, 1) else value.contiguous(),
        keys,
        values,
        slots,
        positions,
        places,
        size,
        value.stride(0) if value.stride()[1:] == (width, 1) else size,
        keys.stride(0),
        keys.stride(1),
        size,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(size),
    )


@triton.jit
def _unpack(packed, scales, levels, output, size, PER_SCALE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    byte = tl.load(packed + at, mask=inside, other=0).to(tl.int32)
    scale = tl.load(scales + at // PER_SCALE, mask=inside, other=0.0).to(tl.float32)
    first, second = tl.load(levels + (byte >> 4)) * scale, tl.load(levels + (byte & 15)) * scale
    both = tl.interleave(first, second)
    places = tl.program_id(0).to(tl.int64) * BLOCK * 2 + tl.arange(0, BLOCK * 2)
    tl.store(output + places, both.to(output.dtype.element_ty), mask=places < size * 2)


def unpack_four_bit(packed: Tensor, scales: Tensor, levels: Tensor) -> Tensor:
    """Dequantize packed weights, (..., in / 2) bytes, to (..., in) in the dtype of their scales."""
    output = torch.empty(*packed.shape[:-1], packed.shape[-1] * 2, dtype=scales.dtype, device=packed.device)
    size = packed.numel()
    per_scale = packed.shape[-1] // scales.shape[-1]
    _unpack[(triton.cdiv(size, _COLUMNS),)](packed, scales, levels, output, size, per_scale, _COLUMNS)
    return output
