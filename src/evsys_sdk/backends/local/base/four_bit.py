"""Four-bit weights (NF4, as in QLoRA): 16 levels of a normal distribution and one scale per 64 weights.

Each product dequantizes its weight, uses it and frees it; the backward pass dequantizes it again. A base takes 4.25
bits per weight (with bfloat16 scales), and a pass needs memory for one dense layer. Merged weights are always dense.

    weight = FourBit.quantize(linear.weight)
    y = F.linear(x, dense(weight))
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BLOCK = 64
LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""The NF4 levels of QLoRA: quantiles of a normal distribution, scaled to [-1, 1], with an exact zero."""


@dataclass(frozen=True, slots=True, eq=False)
class FourBit:
    """A frozen weight, (..., out, in), in four bits; the row length is a multiple of `BLOCK`."""

    packed: Tensor
    """(..., out, in / 2): two level codes per byte, the first in the high bits."""
    scales: Tensor
    """(..., out, in / BLOCK)"""

    @classmethod
    @torch.no_grad()
    def quantize(cls, weight: Tensor) -> FourBit:
        blocks = weight.detach().unflatten(-1, (-1, BLOCK)).float()
        # Use the rounded scale that is stored, so that the chosen level is the nearest after dequantization.
        scales = blocks.abs().amax(-1).to(weight.dtype)
        unit = blocks / scales.float().clamp_min(torch.finfo(torch.float32).tiny)[..., None]
        levels = torch.tensor(LEVELS, device=weight.device, dtype=torch.float32)
        codes = torch.bucketize(unit, (levels[1:] + levels[:-1]) / 2).to(torch.uint8).flatten(-2)
        return cls(codes[..., 0::2] << 4 | codes[..., 1::2], scales)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.packed.shape[:-1], 2 * self.packed.shape[-1]))

    @property
    def ndim(self) -> int:
        return self.packed.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self.scales.dtype

    def __len__(self) -> int:
        return len(self.packed)

    def numel(self) -> int:
        """Number of weights."""
        return 2 * self.packed.numel()

    def element_size(self) -> int:
        """Bytes per weight after dequantization."""
        return self.scales.element_size()

    def __getitem__(self, rows: slice) -> FourBit:
        """Return a view of some rows."""
        return FourBit(self.packed[rows], self.scales[rows])

    @staticmethod
    def cat(parts: Sequence[FourBit]) -> FourBit:
        """Concatenate weights along the first dimension."""
        return FourBit(torch.cat([part.packed for part in parts]), torch.cat([part.scales for part in parts]))

    @torch.no_grad()
    def dense(self) -> Tensor:
        """Dequantize the weight, in the dtype of its scales."""
        if self.packed.is_cuda and self.packed.is_contiguous():
            from ..gpu.row_kernels import unpack_four_bit

            return unpack_four_bit(self.packed, self.scales, _levels(self.packed.device, torch.float32))
        pairs = _pairs(self.packed.device, self.dtype)[self.packed.int()].flatten(-2)
        return (pairs.unflatten(-1, (-1, BLOCK)) * self.scales[..., None]).flatten(-2)


type Weight = Tensor | FourBit


def dense(weight: Weight) -> Tensor:
    """Return the weight as a dense tensor."""
    return weight.dense() if isinstance(weight, FourBit) else weight


def can_quantize(weight: Any) -> bool:
    """Whether the row length of a weight is a multiple of `BLOCK`."""
    return isinstance(weight, Tensor) and weight.ndim >= 2 and weight.shape[-1] % BLOCK == 0


@functools.cache
def _levels(device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(LEVELS, device=device, dtype=dtype)


@functools.cache
def _pairs(device: torch.device, dtype: torch.dtype) -> Tensor:
    """The two levels that each byte encodes, (256, 2)."""
    with torch.inference_mode(False):
        byte = torch.arange(256, device=device)
        return _levels(device, dtype)[torch.stack([byte >> 4, byte & 15], dim=1)]
