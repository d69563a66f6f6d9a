"""Programmatic dependent launch (Hopper and later): a kernel starts while the previous one is still running.

Each kernel prefetches its weights, then waits for the previous kernel (`gdc_wait`) before it reads other inputs.
"""

# pyright: basic, reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def launch_early(device: torch.device, weight: Tensor | None = None) -> dict[str, bool]:
    """Return the launch options for programmatic dependent launch, if the device and the weight support it."""
    can = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    if weight is not None:  # weights are prefetched in units of 16 bytes
        can = can and weight.shape[-1] % 8 == 0 and weight.data_ptr() % 16 == 0
    return {"EARLY": True, "launch_pdl": True} if can else {"EARLY": False}


@triton.jit
def fetch(start, row, rows, begin, end, stride, ROWS: tl.constexpr):
    """Prefetch columns `begin` to `end` of some rows of a matrix into L2, in four pieces per row."""
    each = tl.arange(0, 4 * ROWS)
    length = tl.cdiv(end - begin, 32) * 8
    at = begin + each % 4 * length
    size = tl.where(each // 4 < rows, tl.maximum(tl.minimum(length, end - at), 0) * 2, 0)
    where = (start + (row + each // 4).to(tl.int64) * stride + at).to(tl.int64)
    tl.inline_asm_elementwise(
        """{
            .reg .pred p;
            setp.gt.s32 p, $2, 0;
            @p cp.async.bulk.prefetch.L2.global [$1], $2;
            mov.u32 $0, 0;
        }""",
        "=r,l,r",
        [where, size],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
