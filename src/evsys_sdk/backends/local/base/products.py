"""Products with a fixed matrix, for a handful of rows at a time, as decoding makes them by the thousand.

On a CPU the matrix is stored once more in the order in which the kernels of oneDNN read it, which nearly halves the
time. Where this is not to be had, or memory is short, it is an ordinary product.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import memory
from .four_bit import Weight, dense

_ROWS = 16
"""How many rows the stored order is best for; it serves any number."""


@dataclass(frozen=True, slots=True)
class Product:
    """x -> xW' + b, added onto another tensor where one is given."""

    weight: Weight
    """In four bits only for products that make it dense themselves."""
    bias: Tensor | None = None
    packed: Tensor | None = None

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None = None, *, pack: bool) -> Product:
        return cls(weight, bias, torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS) if pack else None)

    def __call__(self, x: Tensor, onto: Tensor | None = None) -> Tensor:
        if self.packed is None:
            found = F.linear(x, dense(self.weight), self.bias)
            return found if onto is None else onto + found
        if onto is None:
            return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return torch.ops.mkldnn._linear_pointwise.binary(x, onto, self.packed, self.bias, "add")


def can_pack(device: torch.device, dtype: torch.dtype, size: int) -> bool:
    """Whether matrices of `size` bytes can be stored once more."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight") or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    free = memory.available_bytes(device)
    return free is not None and size < free // 4
