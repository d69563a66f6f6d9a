"""Available memory, and recovery when it runs out.

`memory_plan` estimates the memory of a run. At run time, `is_out_of_memory` recognizes an operation that ran out of
memory, so that the caller can retry with smaller passes.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import subprocess
import threading
import weakref
from pathlib import Path
from typing import Any, Protocol

import torch

from ...errors import BackendError

GIB = 1024**3
_M_MMAP_THRESHOLD = -3
_CPU_MESSAGE = re.compile(
    r"can't allocate memory|DefaultCPUAllocator|not enough memory|out of memory|bad_alloc", re.IGNORECASE
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an operation failed because memory ran out, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and _CPU_MESSAGE.search(str(error)) is not None


def forget_frames[E: BaseException](error: E) -> E:
    """Remove the tracebacks of an error, whose frames keep tensors in memory; return the error."""
    current: BaseException | None = error
    while current is not None:
        current.__traceback__ = None
        current = current.__cause__ or current.__context__
    return error


class Evictable(Protocol):
    """A cache that can be dropped when memory is short."""

    tokens: int
    """Number of cached tokens."""

    def forget(self) -> None: ...


_evictable: weakref.WeakSet[Any] = weakref.WeakSet()
_guard = threading.Lock()


def evict_when_short(holder: Evictable) -> None:
    """Register a cache to be dropped by `release_unused`, on any thread; holds only a weak reference."""
    with _guard:
        _evictable.add(holder)


def release_unused() -> bool:
    """Drop all registered caches and return freed memory to the system; return whether a cache held tokens."""
    with _guard:
        holders = list(_evictable)
    held = any(holder.tokens for holder in holders)
    while holders:  # emptied by pop, so that neither the list nor a variable keeps a holder alive
        holders.pop().forget()
    # First, because torch and the C library can return only unreferenced memory.
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    with contextlib.suppress(OSError, AttributeError, TypeError):  # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
    return held


def give_back_at_once(device: torch.device) -> None:
    """On a CPU, make the C library return freed blocks to the system at once, for the rest of the process.

    By default it keeps blocks of up to 32 MB for reuse. This is faster, but they add up to more than is in use.
    """
    if device.type == "cpu":
        with contextlib.suppress(OSError, AttributeError, TypeError):
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)


def available_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device in bytes; None if unknown."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device)
        unused = cached - torch.cuda.memory_allocated(device)  # cached by torch for reuse
        allowed = getattr(torch.cuda.memory, "get_per_process_memory_fraction", lambda _: 1.0)(device) * total - cached
        return max(0, int(min(free, allowed)) + unused)
    if device.type != "cpu":
        return None
    limits = [value for value in (_from_meminfo(), _from_cgroup(), _from_limit()) if value is not None]
    return min(limits) if limits else None


def free_on_gpus() -> int | None:
    """Return the smallest free memory of all GPUs in bytes, by nvidia-smi; None if unknown."""
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        free_mib = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout.split()
        return min(int(size) for size in free_mib) << 20
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def too_little_memory(what: str, tokens: int, device: torch.device) -> BackendError:
    """Return the error for a single sequence that does not fit, with remedies."""
    free = available_bytes(device)
    note = "" if free is None else f" ({free / GIB:.1f} GiB are free)"
    return BackendError(
        f"{what} of {tokens} tokens does not fit into the memory of {device}{note}, even by itself. "
        "Nothing was changed. Shorten sequences (max_length, max_tokens), use a smaller model, lower lora_rank, set "
        "backend.params.dtype to bfloat16, leave backend.params.recompute at auto, or free memory on the machine."
    )


def no_room(what: str, device: torch.device) -> BackendError:
    """Return the error for an operation that ran out of memory and changed nothing."""
    return BackendError(
        f"there is too little memory for {what} ({_free_on(device)}). Nothing was changed, and it can be tried again. "
        "Free memory on the machine, lower lora_rank, adapt fewer layers (backend.params.lora_targets), or choose a "
        "smaller model."
    )


def _free_on(device: torch.device) -> str:
    places = [device] if device.type == "cpu" else [device, torch.device("cpu")]
    free = [(place, available_bytes(place)) for place in places]
    return ", ".join(
        f"{'?' if bytes_ is None else f'{bytes_ / GIB:.1f}'} GiB free on {place}" for place, bytes_ in free
    )


def _from_meminfo() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        kilobytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
        return int(kilobytes) * 1024
    return None


def _from_cgroup() -> int | None:
    """Memory left to the container; the page cache counts as free, because it can be reclaimed."""
    root = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError, StopIteration):
        if (root / "memory.max").exists():
            folder, limit, used = root, "memory.max", "memory.current"
        else:
            lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
            group = next(line.split(":", 2)[2] for line in lines if ":memory:" in line).lstrip("/")
            folder, limit, used = root / "memory" / group, "memory.limit_in_bytes", "memory.usage_in_bytes"
            folder = folder if folder.exists() else root / "memory"  # inside a container the path may differ
        most = int((folder / limit).read_text(encoding="utf-8"))  # "max" means no limit
        stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines())
        cached = sum(int(stat.get(name, 0)) for name in ("inactive_file", "active_file"))
        return max(0, most - int((folder / used).read_text(encoding="utf-8")) + cached)
    return None


def _from_limit() -> int | None:
    """Address space left to the process; None without `ulimit -v`."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        if most != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
            return max(0, most - pages * resource.getpagesize())
    return None
