"""Kernels that are launched while the one before is still running (programmatic dependent launch, from Hopper on).

Each waits for the one before (`gdc_wait`) before it reads what changes from step to step, and fetches until then.
"""

# pyright: basic, reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def launch_early(device: torch.device, weight: Tensor | None = None) -> dict[str, bool]:
    """Options of kernels that are launched while the one before is still running (programmatic dependent launch).

    Each waits for that one before it reads what changes from step to step; until then it fetches its weights.
    """
    can = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    if weight is not None:  # is fetched in units of 16 bytes
        can = can and weight.shape[-1] % 8 == 0 and weight.data_ptr() % 16 == 0
    return {"EARLY": True, "launch_pdl": True} if can else {"EARLY": False}


@triton.jit
def fetch(start, row, rows, begin, end, stride, ROWS: tl.constexpr):
    """Fetch columns `begin` to `end` of some rows of a matrix into the cache of the GPU, four pieces of each row."""
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
