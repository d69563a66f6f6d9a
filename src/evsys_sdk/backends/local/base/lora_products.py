"""The products of an adapted linear layer with their gradients, written out: autograd would keep and copy more."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .four_bit import Weight, dense


class Frozen(torch.autograd.Function):
    """y = xW' + b, where a weight in four bits is made dense once more for the gradient, and not kept meanwhile."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        ctx.weight = weight
        return F.linear(x, dense(weight), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        return grads[0] @ dense(ctx.weight), None, None


class AddLoRA(torch.autograd.Function):
    """y = xW' + b + scale * (xA')B'."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Weight, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        a, b = a.to(x.dtype), b.to(x.dtype)
        # (T, rank): all that the gradient needs of the adapter's own work.
        low = rows @ a.T
        y = F.linear(x, dense(weight), bias)  # not a view: models may continue to change it in place
        y.view(-1, y.shape[-1]).addmm_(low, b.T, alpha=scale)
        ctx.save_for_backward(rows, low, a, b)
        ctx.weight, ctx.scale, ctx.shape = weight, scale, x.shape
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        rows, low, a, b = ctx.saved_tensors
        grad = grads[0].reshape(-1, grads[0].shape[-1])
        grad_low = (grad @ b).mul_(ctx.scale)
        # Masters are float32, and so are their gradients; the products run in the type of the base.
        grad_b = (grad.T @ low).float().mul_(ctx.scale)
        grad_a = (grad_low.T @ rows).float()
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = (grad @ dense(ctx.weight)).addmm_(grad_low, a).view(ctx.shape)
        return grad_x, None, None, grad_a, grad_b, None


class AddStacked(torch.autograd.Function):
    """y = onto + xW' + b + scale * (xA')B' for several adapters, whose rows lie one after another and are as many.

    Several adapted layers may read the same x: `spans` are the columns that each of them writes. Their A lie below each
    other, and their B on the diagonal of one matrix.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        onto: Tensor | None,
        weight: Weight,
        bias: Tensor | None,
        scale: float,
        spans: Any,
        *matrices: Tensor,
    ) -> Tensor:
        a, b = _stack(matrices, spans, weight.shape[0])
        count = len(a)
        low = torch.bmm(x.view(count, -1, x.shape[-1]), a.transpose(1, 2))
        if scale != 1:
            low *= scale
        if onto is None:
            y = F.linear(x, dense(weight), bias)
        else:
            y = torch.addmm(onto, x, dense(weight).T)
            if bias is not None:
                y += bias
        y.view(count, -1, y.shape[-1]).baddbmm_(low, b.transpose(1, 2))
        ctx.save_for_backward(x, low, a, b)
        ctx.weight, ctx.scale, ctx.spans, ctx.has_onto = weight, scale, spans, onto is not None
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        x, low, a, b = ctx.saved_tensors
        grad = grads[0].contiguous()
        own = grad.view(len(a), -1, grad.shape[-1])
        grad_low = torch.bmm(own, b)
        if ctx.scale != 1:
            grad_low *= ctx.scale
        rows = x.view(len(a), -1, x.shape[-1])
        grad_a, grad_b = torch.bmm(grad_low.transpose(1, 2), rows), torch.bmm(own.transpose(1, 2), low)
        rank = a.shape[1] // len(ctx.spans)
        found: list[Tensor] = []
        for number, (start, end) in enumerate(ctx.spans):
            part = slice(number * rank, (number + 1) * rank)
            found += [grad_a[:, part], grad_b[:, start:end, part]]
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = grad @ dense(ctx.weight)
            grad_x.view(len(a), -1, grad_x.shape[-1]).baddbmm_(grad_low, a)
        return grad_x, grad if ctx.has_onto else None, None, None, None, None, *found


def _stack(matrices: Sequence[Tensor], spans: Any, height: int) -> tuple[Tensor, Tensor]:
    """All A and all B of layers that read the same x, (adapters, layers * rank, in) and (adapters, height, ...)."""
    if list(spans) == [(0, height)]:
        return matrices[0], matrices[1]
    a = torch.cat(matrices[0::2], dim=1)
    b = a.new_zeros(len(a), height, a.shape[1])
    rank = matrices[0].shape[1]
    for number, (start, end) in enumerate(spans):
        b[:, start:end, number * rank : (number + 1) * rank] = matrices[2 * number + 1]
    return a, b
