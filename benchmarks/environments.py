"""What a sandbox costs: to start, for each command, and to stop; against a bare shell and a new bwrap for each command.

    python benchmarks/environments.py --repeats 200

Needs bubblewrap. The smallest time is the cost; the median also shows what else the machine was doing.
"""

import argparse
import asyncio
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable

from measure import machine

from evsys_sdk.rollouts.environment import running
from evsys_sdk.rollouts.environments.bwrap import BwrapEnvironment
from evsys_sdk.rollouts.environments.unsafe_host import UnsafeHostEnvironment

AIM_MS = 5.0
AT_ONCE = 16

ONE_SHOT = [
    *("bwrap", "--unshare-all", "--unshare-user", "--die-with-parent", "--clearenv", "--ro-bind", "/usr", "/usr"),
    *("--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"),
    *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/app", "--", "/bin/bash", "-c", "true"),
]


async def timed(what: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await what()
    return time.perf_counter() - began


def run(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


async def commands(repeats: int) -> dict[str, list[float]]:
    """Time of single operations, which take turns, so that a busy moment hits all of them."""
    names = ["bash -c true, bare", "bash -c true, bwrap for each", "exec, unsafe_host", "exec, bwrap", "write", "read"]
    times: dict[str, list[float]] = {name: [] for name in names}
    async with running(BwrapEnvironment()) as sandbox, running(UnsafeHostEnvironment()) as host:
        for _ in range(repeats):
            measured = [
                run(["/bin/bash", "-c", "true"]),
                run(ONE_SHOT),
                await timed(lambda: host.exec("true")),
                await timed(lambda: sandbox.exec("true")),
                await timed(lambda: sandbox.write_file("file", "x" * 1000)),
                await timed(lambda: sandbox.read_file("file")),
            ]
            for name, seconds in zip(names, measured, strict=True):
                times[name].append(seconds)
    return times


async def lives(repeats: int) -> dict[str, list[float]]:
    """Time to start and to stop, alone and many at once."""
    times: dict[str, list[float]] = {"start, bwrap": [], "stop, bwrap": [], f"start, exec, stop; {AT_ONCE} at once": []}

    async def whole() -> None:
        async with running(BwrapEnvironment()) as sandbox:
            await sandbox.exec("true")

    for _ in range(repeats):
        sandbox = BwrapEnvironment()
        times["start, bwrap"].append(await timed(sandbox.start))
        times["stop, bwrap"].append(await timed(sandbox.stop))
    for _ in range(max(1, repeats // AT_ONCE)):
        seconds = await timed(lambda: asyncio.gather(*(whole() for _ in range(AT_ONCE))))
        times[f"start, exec, stop; {AT_ONCE} at once"].append(seconds / AT_ONCE)
    return times


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200)
    repeats = parser.parse_args().repeats
    times = {**await commands(repeats), **await lives(max(1, repeats // 4))}
    version = subprocess.run(["bwrap", "--version"], check=True, capture_output=True, text=True).stdout.strip()
    print(f"{machine()}, {version}")
    for name, found in times.items():
        aim = f"   aim: at most {AIM_MS:g} ms" if name == "exec, bwrap" else ""
        print(f"{name:<34} min {min(found) * 1000:7.2f} ms   median {statistics.median(found) * 1000:7.2f} ms{aim}")


if __name__ == "__main__":
    asyncio.run(main())
