"""Triton kernels for the operations between the large products of a model: norms, rotations, gates.

Each needs one pass over memory instead of five to ten in plain torch. Weights are frozen, so only inputs have
gradients. Sums are in float32. `fused_body` uses them on a GPU in bfloat16.
"""

# pyright: basic, reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_HEADS = 8
"""Number of heads per program."""
_COLUMNS = 1024

# Row numbers are converted to 64 bits before multiplication, because offsets exceed 2^31.


@triton.jit
def _norm_forward(x, weight, y, scales, eps, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + row * width + at, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / width + eps)
    factor = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    # Stored for the gradient, to avoid another sum over the row.
    tl.store(scales + row, scale)
    tl.store(y + row * width + at, (value * scale * factor).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _norm_backward(grad, straight, x, weight, scales, output, width, STRAIGHT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    offset = row * width + at
    value = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
    weighted = tl.load(grad + offset, mask=inside, other=0.0).to(tl.float32)
    weighted *= tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(scales + row)
    # y = x * s(x) with s = (mean x^2 + eps)^-1/2, so dx = g * s - x * (g . x) * s^3 / width.
    along = tl.sum(weighted * value, 0) * scale * scale * scale / width
    total = weighted * scale - value * along
    if STRAIGHT:
        total += tl.load(straight + offset, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + offset, total.to(output.dtype.element_ty), mask=inside)


@triton.jit
def _heads_forward(
    qkv, q_weight, k_weight, cos, sin, q, k, eps, H, K, NORM: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    column = tl.arange(0, HALF)
    width: tl.constexpr = 2 * HALF
    inside = (head < H + K)[:, None]
    source = qkv + token * (H + 2 * K) * width + head[:, None] * width + column[None, :]
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        scale = 1.0 / tl.sqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / width + eps)
        is_q = (head < H)[:, None]
        first *= scale[:, None] * tl.where(
            is_q, tl.load(q_weight + column)[None, :], tl.load(k_weight + column)[None, :]
        )
        second *= scale[:, None] * tl.where(
            is_q, tl.load(q_weight + HALF + column)[None, :], tl.load(k_weight + HALF + column)[None, :]
        )
    turn = token * width + column
    cos_1, cos_2 = tl.load(cos + turn).to(tl.float32)[None, :], tl.load(cos + turn + HALF).to(tl.float32)[None, :]
    sin_1, sin_2 = tl.load(sin + turn).to(tl.float32)[None, :], tl.load(sin + turn + HALF).to(tl.float32)[None, :]
    turned_1 = (first * cos_1 - second * sin_1).to(q.dtype.element_ty)
    turned_2 = (second * cos_2 + first * sin_2).to(q.dtype.element_ty)
    to_q = q + token * H * width + head[:, None] * width + column[None, :]
    to_k = k + token * K * width + (head[:, None] - H) * width + column[None, :]
    for_q, for_k = (head < H)[:, None], ((head >= H) & (head < H + K))[:, None]
    tl.store(to_q, turned_1, mask=for_q)
    tl.store(to_q + HALF, turned_2, mask=for_q)
    tl.store(to_k, turned_1, mask=for_k)
    tl.store(to_k + HALF, turned_2, mask=for_k)


@triton.jit
def _heads_backward(
    grad_q,
    grad_k,
    grad_v,
    qkv,
    q_weight,
    k_weight,
    cos,
    sin,
    output,
    eps,
    H,
    K,
    NORM: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, HALF)[None, :]
    width: tl.constexpr = 2 * HALF
    is_q, is_k = head < H, (head >= H) & (head < H + K)
    is_v = (head >= H + K) & (head < H + 2 * K)
    offset = token * (H + 2 * K) * width + head * width + column
    from_q = grad_q + token * H * width + head * width + column
    from_k = grad_k + token * K * width + (head - H) * width + column
    from_v = grad_v + token * K * width + (head - H - K) * width + column
    grad_1 = tl.load(from_q, mask=is_q, other=0.0).to(tl.float32) + tl.load(from_k, mask=is_k, other=0.0).to(tl.float32)
    grad_2 = tl.load(from_q + HALF, mask=is_q, other=0.0).to(tl.float32)
    grad_2 += tl.load(from_k + HALF, mask=is_k, other=0.0).to(tl.float32)
    turn = token * width + column
    cos_1, cos_2 = tl.load(cos + turn).to(tl.float32), tl.load(cos + turn + HALF).to(tl.float32)
    sin_1, sin_2 = tl.load(sin + turn).to(tl.float32), tl.load(sin + turn + HALF).to(tl.float32)
    # The transpose of the rotation, then the gradient of the norm.
    back_1 = grad_1 * cos_1 + grad_2 * sin_2
    back_2 = grad_2 * cos_2 - grad_1 * sin_1
    if NORM:
        turned = is_q | is_k
        first = tl.load(qkv + offset, mask=turned, other=0.0).to(tl.float32)
        second = tl.load(qkv + offset + HALF, mask=turned, other=0.0).to(tl.float32)
        # Recomputed instead of stored, because the heads are loaded anyway.
        scale = 1.0 / tl.sqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / width + eps)[:, None]
        back_1 *= tl.where(is_q, tl.load(q_weight + column), tl.load(k_weight + column)).to(tl.float32)
        back_2 *= tl.where(is_q, tl.load(q_weight + HALF + column), tl.load(k_weight + HALF + column)).to(tl.float32)
        along = (tl.sum(back_1 * first, 1) + tl.sum(back_2 * second, 1))[:, None] * scale * scale * scale / width
        back_1 = back_1 * scale - first * along
        back_2 = back_2 * scale - second * along
    # Values were neither normalized nor rotated, so their gradient is copied.
    back_1 = tl.where(is_v, tl.load(from_v, mask=is_v, other=0.0).to(tl.float32), back_1)
    back_2 = tl.where(is_v, tl.load(from_v + HALF, mask=is_v, other=0.0).to(tl.float32), back_2)
    in_heads = head < H + 2 * K
    tl.store(output + offset, back_1.to(output.dtype.element_ty), mask=in_heads)
    tl.store(output + offset + HALF, back_2.to(output.dtype.element_ty), mask=in_heads)


@triton.jit
def _gate_forward(both, output, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(both + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + row * width + at, (gate * tl.sigmoid(gate) * up).to(output.dtype.element_ty), mask=inside)


@triton.jit
def _gate_backward(grad, both, output, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(both + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    slope = tl.load(grad + row * width + at, mask=inside, other=0.0).to(tl.float32)
    open_ = tl.sigmoid(gate)
    # d silu(g) / dg = sigmoid(g) * (1 + g * (1 - sigmoid(g)))
    to_gate = slope * up * open_ * (1.0 + gate * (1.0 - open_))
    tl.store(output + row * 2 * width + at, to_gate.to(output.dtype.element_ty), mask=inside)
    tl.store(output + row * 2 * width + width + at, (slope * gate * open_).to(output.dtype.element_ty), mask=inside)


class Norm(torch.autograd.Function):
    """x -> (RMS norm of x, x): the residual passes through, so that one kernel sums both gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        y, scales = torch.empty_like(x), torch.empty(len(x), device=x.device, dtype=torch.float32)
        width = x.shape[1]
        _norm_forward[(len(x),)](x, weight, y, scales, eps, width, BLOCK=triton.next_power_of_2(width))
        ctx.save_for_backward(x, weight, scales)
        return y, x.view_as(x)  # a view, because autograd does not allow an input as an output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        x, weight, scales = ctx.saved_tensors
        grad, straight = grads
        grad_x, width = torch.empty_like(x), x.shape[1]
        residual = grad if straight is None else straight.contiguous()
        _norm_backward[(len(x),)](
            grad.contiguous(),
            residual,
            x,
            weight,
            scales,
            grad_x,
            width,
            STRAIGHT=straight is not None,
            BLOCK=triton.next_power_of_2(width),
        )
        return grad_x, None, None


class Heads(torch.autograd.Function):
    """(T, heads * width) -> normalized and rotated queries and keys, and values, (T, heads, width) each."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, shape: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        H, K, width, eps = shape
        q, k = qkv.new_empty(len(qkv), H, width), qkv.new_empty(len(qkv), K, width)
        norm = q_weight is not None
        weights = (q_weight, k_weight) if norm else (qkv, qkv)
        grid = (len(qkv), triton.cdiv(H + K, _HEADS))
        _heads_forward[grid](qkv, *weights, cos, sin, q, k, eps, H, K, NORM=norm, HALF=width // 2, HEADS=_HEADS)
        ctx.save_for_backward(qkv, cos, sin, *weights)
        ctx.shape, ctx.norm = shape, norm
        # Values are a view, not a copy.
        return q, k, qkv.view(len(qkv), -1, width)[:, H + K :]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        qkv, cos, sin, q_weight, k_weight = ctx.saved_tensors
        H, K, width, eps = ctx.shape
        grad_qkv = torch.empty_like(qkv)
        grid = (len(qkv), triton.cdiv(H + 2 * K, _HEADS))
        _heads_backward[grid](
            *(grad.contiguous() for grad in grads),
            qkv,
            q_weight,
            k_weight,
            cos,
            sin,
            grad_qkv,
            eps,
            H,
            K,
            NORM=ctx.norm,
            HALF=width // 2,
            HEADS=_HEADS,
        )
        return grad_qkv, None, None, None, None, None


class Gate(torch.autograd.Function):
    """SwiGLU: (T, 2 * width) -> silu of the first half times the second half, (T, width)."""

    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        width = both.shape[1] // 2
        output = both.new_empty(len(both), width)
        _gate_forward[(len(both), triton.cdiv(width, _COLUMNS))](both, output, width, BLOCK=_COLUMNS)
        ctx.save_for_backward(both)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Tensor:
        (both,) = ctx.saved_tensors
        width, grad_both = both.shape[1] // 2, torch.empty_like(both)
        grid = (len(both), triton.cdiv(width, _COLUMNS))
        _gate_backward[grid](grads[0].contiguous(), both, grad_both, width, BLOCK=_COLUMNS)
        return grad_both
