"""Products of a few rows with a fixed matrix, for decoding.

On a CPU, a second copy of the matrix is stored in the memory layout of oneDNN, which nearly halves the time. Without
oneDNN or enough memory, the product is an ordinary one.
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
"""Number of rows that the packed layout is optimized for; it works for any number."""


@dataclass(frozen=True, slots=True)
class Product:
    """x -> xW' + b, plus `onto` if given."""

    weight: Weight
    """Dense or four-bit; a four-bit weight is dequantized in each product."""
    bias: Tensor | None = None
    packed: Tensor | None = None

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None = None, *, pack: bool) -> Product:
        return cls(weight, bias, torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS) if pack else None)

    def __call__(self, x: Tensor, onto: Tensor | None = None) -> Tensor:
        if self.packed is None:
            output = F.linear(x, dense(self.weight), self.bias)
            return output if onto is None else onto + output
        if onto is None:
            return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return torch.ops.mkldnn._linear_pointwise.binary(x, onto, self.packed, self.bias, "add")


def can_pack(device: torch.device, dtype: torch.dtype, size: int) -> bool:
    """Whether oneDNN supports the dtype and memory suffices for a packed copy of `size` bytes."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight") or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    free = memory.available_bytes(device)
    return free is not None and size < free // 4
