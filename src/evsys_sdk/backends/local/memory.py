"""How much memory there is, how much a model takes, and what to do when there is too little.

Before loading, weights are counted without reading them and refused where they cannot fit. While running, an operation
that ran out of memory is recognised by `is_out_of_memory`, so that it can be tried again with less at once.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import contextlib
import gc
import re
from pathlib import Path
from typing import Any

import torch

from ...errors import BackendError

_GIB = 1024**3
_CPU_MESSAGE = re.compile(r"can't allocate memory|DefaultCPUAllocator|not enough memory|out of memory", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an operation failed because memory ran out, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and _CPU_MESSAGE.search(str(error)) is not None


def release_unused() -> None:
    """Give back what a failed operation left behind."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def available_bytes(device: torch.device) -> int | None:
    """Free memory on a device; None where it cannot be told."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    if device.type != "cpu":
        return None
    found = [value for value in (_from_meminfo(), _from_cgroup()) if value is not None]
    return min(found) if found else None


def check_fits(parameters: int, dtype: torch.dtype, device: torch.device, model: str) -> None:
    """Refuse a model whose weights alone do not fit."""
    free = available_bytes(device)
    needed = parameters * dtype.itemsize
    if free is None or needed <= free:
        return
    remedies = ["free memory on the machine", "choose a smaller model"]
    if dtype == torch.float32:
        remedies.insert(0, "set backend.params.dtype to bfloat16, which halves it")
    raise BackendError(
        f"the model {model} has {parameters / 1e9:.2f} billion weights, which take {needed / _GIB:.1f} GiB as "
        f"{str(dtype).removeprefix('torch.')}, and {device} has {free / _GIB:.1f} GiB free. "
        f"{_either(remedies)}."
    )


def too_little_memory(what: str, tokens: int, device: torch.device) -> BackendError:
    """The error for a single sequence that does not fit, with what to change."""
    free = available_bytes(device)
    left = "" if free is None else f" ({free / _GIB:.1f} GiB are free)"
    return BackendError(
        f"{what} of {tokens} tokens does not fit into the memory of {device}{left}, even by itself. "
        "Nothing was changed. Shorten sequences (max_length, max_tokens), use a smaller model, lower lora_rank, set "
        "backend.params.dtype to bfloat16, or free memory on the machine."
    )


def count_parameters(config: Any) -> int:
    """How many weights a model of this config has, found out without making room for them."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def _either(remedies: list[str]) -> str:
    text = ", ".join(remedies[:-1]) + f", or {remedies[-1]}"
    return text[0].upper() + text[1:]


def _from_meminfo() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        kilobytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
        return int(kilobytes) * 1024
    return None


def _from_cgroup() -> int | None:
    folder = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        limit = int((folder / "memory.max").read_text(encoding="utf-8"))  # "max" means no limit
        return max(0, limit - int((folder / "memory.current").read_text(encoding="utf-8")))
    return None
