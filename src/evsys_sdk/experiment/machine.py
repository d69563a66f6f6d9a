"""What this machine has to give: cores and GPUs. Nothing heavy is imported to find out."""

from __future__ import annotations

import os
import shutil
import subprocess


def cpu_count() -> int:
    """Cores this process may use, which in a container are fewer than the machine has."""
    try:
        return len(os.sched_getaffinity(0)) or 1
    except AttributeError:
        return os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """The GPUs this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [gpu for gpu in given.split(",") if gpu.strip() not in ("", "-1", "NoDevFiles")]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        found = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(index) for index, line in enumerate(found.stdout.splitlines()) if line.startswith("GPU ")]
