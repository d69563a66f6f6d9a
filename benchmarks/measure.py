"""What the benchmarks share: interleaved timing of commands, peak memory, and lines that name the machine."""

import os
import platform
import shlex
import statistics
import subprocess
import time


def machine() -> str:
    """One line that says what the numbers were measured on."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    from evsys_sdk import __version__

    return f"{os.cpu_count()} cores, {model}, Python {platform.python_version()}, evsys-sdk {__version__}"


def seconds(command: list[str], env: dict[str, str] | None = None) -> float:
    """Wall time of one command, which must succeed."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    return time.perf_counter() - began


def compare(commands: dict[str, list[str]], *, repeats: int) -> dict[str, float]:
    """Median wall time of each command; they take turns, so that a busy moment hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for command in commands.values():
        seconds(command)  # warm the file cache
    for _ in range(repeats):
        for name, command in commands.items():
            times[name].append(seconds(command))
    return {name: statistics.median(found) for name, found in times.items()}


def parse_peers(peers: list[str]) -> dict[str, list[str]]:
    """`name=command line` arguments as commands."""
    return {name: shlex.split(command) for name, _, command in (peer.partition("=") for peer in peers)}
