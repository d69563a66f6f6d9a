"""A SkyRL server for tests and benchmarks, started from another environment than its own.

`EVSYS_SKYRL_PYTHON` names the interpreter of SkyRL's environment; `make test-skyrl` makes one and sets it. What was
made or compiled once is kept in `$EVSYS_CACHE_DIR`, so later starts take seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Self

HERE = Path(__file__).parent


def skyrl_python() -> Path | None:
    """The interpreter that has SkyRL; None where no one has set it up."""
    named = os.environ.get("EVSYS_SKYRL_PYTHON")
    return Path(named) if named else None


def cache_dir() -> Path:
    """Where models and compiled functions are kept; functions belong to the processor they were compiled for."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    described = [platform.machine(), platform.python_version()]
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        described += sorted({line for line in lines if line.startswith(("flags", "Features"))})
    name = hashlib.sha256("\n".join(described).encode()).hexdigest()[:12]
    return Path(os.environ.get("EVSYS_CACHE_DIR") or base / "evsys-sdk").absolute() / "skyrl" / name


def environment() -> dict[str, str]:
    """Settings of the processes: what is compiled is kept, and no network is looked for."""
    unwanted = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"}
    variables = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {
        **variables,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache_dir() / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }


def tiny_model(python: Path) -> Path:
    """The folder of the tiny Qwen3, made when it is not there yet."""
    source = (HERE / "tiny_qwen3.py").read_bytes()
    folder = cache_dir() / f"tiny-qwen3-{hashlib.sha256(source).hexdigest()[:12]}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            half_made = Path(temporary, "model")
            command = [str(python), str(HERE / "tiny_qwen3.py"), str(half_made)]
            subprocess.run(command, check=True, env=environment(), stdout=subprocess.DEVNULL, timeout=900)
            with contextlib.suppress(OSError):  # another process was faster, with the same result
                half_made.rename(folder)
    return folder


class SkyRLServer:
    """A server on a free port of this machine; both its processes end with it."""

    def __init__(self, python: Path, model: Path, folder: Path, *, devices: int = 1) -> None:
        """With several `devices`, which on a CPU are pretended, each holds a part of every layer."""
        self.model, self.log = model, folder / "skyrl.log"
        folder.mkdir(parents=True, exist_ok=True)
        command = [str(python), str(HERE / "serve.py"), "--model", str(model), "--state", str(folder / "state")]
        command += ["--devices", str(devices)]
        settings = environment()
        if devices > 1:
            settings["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
        with self.log.open("w", encoding="utf-8") as log:
            # a separate group: a signal to the tests is not one to the server, which is ended in order
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=settings, start_new_session=True
            )
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"SkyRL ended with {self.process.wait()} before it was ready; see {self.log}")
        self.url: str = json.loads(line)["url"]

    def stop(self) -> None:
        """End the server, and the engine with it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
