"""The products of an adapted linear layer with explicit gradients, because autograd would keep and copy more."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .four_bit import Weight, dense


class Frozen(torch.autograd.Function):
    """y = xW' + b; a four-bit weight is dequantized again for the gradient instead of being kept dense."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        ctx.weight = weight
        return F.linear(x, dense(weight), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        return grads[0] @ dense(ctx.weight), None, None


class AddLoRA(torch.autograd.Function):
    """y = onto + xW' + b + scale * (xA')B' for adapted layers with the same input x.

    `spans` are the output columns of each layer. All A are concatenated, and all B form one block-diagonal matrix, so
    that three products suffice. Matrices of several adapters are stacked, (adapters, ...): each adapter applies to its
    own rows, and all have the same number of rows.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        onto: Tensor | None,
        weight: Weight,
        bias: Tensor | None,
        scale: float,
        spans: Sequence[tuple[int, int]],
        *matrices: Tensor,
    ) -> Tensor:
        a, b = _join(matrices, spans, weight.shape[0], x.dtype)
        rows = x.reshape(*a.shape[:-2], -1, x.shape[-1])
        low = rows @ a.mT
        if onto is None:
            y = F.linear(x, dense(weight), bias)  # not a view: models may change it in place
        else:
            y = torch.addmm(onto, x, dense(weight).T)
            if bias is not None:
                y += bias
        _add(y.view(*rows.shape[:-1], -1), low, b.mT, scale)
        ctx.save_for_backward(rows, low, a, b)
        ctx.weight, ctx.scale, ctx.spans, ctx.shape = weight, scale, spans, x.shape
        ctx.has_onto, ctx.dtype = onto is not None, matrices[0].dtype
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        rows, low, a, b = ctx.saved_tensors
        grad = grads[0].contiguous()
        grad_rows = grad.view(*rows.shape[:-1], -1)
        # First, because the rank is small and the other gradients are computed from this.
        grad_low = grad_rows @ b
        if ctx.scale != 1:
            grad_low *= ctx.scale
        # Gradients have the dtype of the adapter's matrices, e.g. float32; the products use the dtype of the base.
        grad_a, grad_b = (grad_low.mT @ rows).to(ctx.dtype), grad_rows.mT @ low
        rank = a.shape[-2] // len(ctx.spans)
        part_grads: list[Tensor] = []
        for number, (start, end) in enumerate(ctx.spans):
            part = slice(number * rank, (number + 1) * rank)
            grad_of_b = grad_b[..., start:end, part].to(ctx.dtype)
            part_grads += [grad_a[..., part, :], grad_of_b * ctx.scale if ctx.scale != 1 else grad_of_b]
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_rows @ dense(ctx.weight)
            grad_x = _add(grad_x, grad_low, a, 1.0).view(ctx.shape)
        return grad_x, grad if ctx.has_onto else None, None, None, None, None, *part_grads


def _add(onto: Tensor, left: Tensor, right: Tensor, scale: float) -> Tensor:
    """Add a product of matrices, or of batches of matrices, in place."""
    add = onto.addmm_ if onto.ndim == 2 else onto.baddbmm_
    return add(left, right, alpha=scale)


def _join(matrices: Sequence[Tensor], spans: Any, height: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    if len(spans) == 1 and tuple(spans[0]) == (0, height):
        return matrices[0].to(dtype), matrices[1].to(dtype)
    a = torch.cat(matrices[0::2], dim=-2).to(dtype)
    # Zeros off the diagonal: each layer uses only its own part of the low-rank states.
    b = a.new_zeros(*a.shape[:-2], height, a.shape[-2])
    rank = matrices[0].shape[-2]
    for number, (start, end) in enumerate(spans):
        b[..., start:end, number * rank : (number + 1) * rank] = matrices[2 * number + 1]
    return a, b
