"""What a run takes of its machine, as metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from evsys_sdk.record.run_files.metrics import split_timing
from evsys_sdk.training.machine_load import MachineLoad


def test_processor_and_memory_are_read() -> None:
    load = MachineLoad(every_s=0.0)
    sum(range(200_000))
    reading = load.read()
    assert reading["system/cpu_percent"] >= 0
    if Path("/proc/self/statm").exists():
        assert 0.001 < reading["system/memory_gib"] < 1024


def test_they_are_kept_with_what_differs_from_run_to_run() -> None:
    same, machine = split_timing({"loss": 1.0, "time/step_s": 0.1, "system/cpu_percent": 97.0})
    assert (same, set(machine)) == ({"loss": 1.0}, {"time/step_s", "system/cpu_percent"})


def test_a_gpu_is_read_where_nvml_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nvml:
        NVMLError = RuntimeError

        @staticmethod
        def nvmlDeviceGetHandleByIndex(at: int) -> int:
            return at

        @staticmethod
        def nvmlDeviceGetMemoryInfo(device: int) -> object:
            return type("Memory", (), {"used": (device + 1) << 30})

        @staticmethod
        def nvmlDeviceGetUtilizationRates(_: int) -> object:
            return type("Rates", (), {"gpu": 88})

    monkeypatch.setattr("evsys_sdk.training.machine_load._open_nvml", lambda: Nvml)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    reading = MachineLoad(every_s=0.0).read()
    assert (reading["system/gpu_percent"], reading["system/gpu_memory_gib"]) == (88.0, 2.0)
