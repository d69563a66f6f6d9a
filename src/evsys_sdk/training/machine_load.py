"""System metrics of a run below `system/`: processor, memory and GPU.

Read at most every few seconds, so that fast steps have no overhead. GPU metrics need the package `nvidia-ml-py`.
"""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import Any

EVERY_S = 5.0
_GIB = 1 << 30


class MachineLoad:
    """Reads the load of this process since the last reading."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._at, self._processor_s = time.monotonic(), time.process_time()

    def read(self) -> dict[str, float]:
        """Processor in percent of one core, memory in GiB; empty before the next reading is due."""
        now, processor_s = time.monotonic(), time.process_time()
        elapsed = now - self._at
        if elapsed < self._every_s:
            return {}
        load = {"system/cpu_percent": 100 * (processor_s - self._processor_s) / max(elapsed, 1e-9)}
        self._at, self._processor_s = now, processor_s
        try:
            pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
            load["system/memory_gib"] = pages * os.sysconf("SC_PAGE_SIZE") / _GIB
        except (OSError, ValueError, IndexError):
            pass  # Linux only
        return load | _read_gpu()


def _read_gpu() -> dict[str, float]:
    """Load of the first visible GPU, including other processes."""
    nvml = _open_nvml()
    if nvml is None:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    try:
        device = nvml.nvmlDeviceGetHandleByIndex(int(visible) if visible.isdecimal() else 0)
        used = nvml.nvmlDeviceGetMemoryInfo(device).used / _GIB
        return {
            "system/gpu_percent": float(nvml.nvmlDeviceGetUtilizationRates(device).gpu),
            "system/gpu_memory_gib": used,
        }
    except nvml.NVMLError:
        return {}


@cache
def _open_nvml() -> Any:
    try:
        import pynvml as nvml  # pyright: ignore[reportMissingImports]

        nvml.nvmlInit()  # pyright: ignore[reportUnknownMemberType]
    except Exception:  # no package, no driver, no device: a run without a GPU
        return None
    return nvml  # pyright: ignore[reportUnknownVariableType]
