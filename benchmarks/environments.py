"""What a sandbox costs: to start, for each command, to kill what runs, to stop, and for a rollout and a scoring in it.

    python benchmarks/environments.py --repeats 200
    python benchmarks/environments.py --against ../before      # another checkout, in turns with this one

Needs bubblewrap. The smallest time is the cost; the median also shows what else the machine was doing.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from measure import machine

from evsys_sdk.data.types import HarborTask, InProcessVerifier
from evsys_sdk.eval.verifier import VerifierInput, build_verifier
from evsys_sdk.protocols import VerificationResult
from evsys_sdk.rollouts.engine import EngineLimits, InlineEngine, RolloutRequest
from evsys_sdk.rollouts.environment import running
from evsys_sdk.rollouts.environments.bwrap import BwrapEnvironment
from evsys_sdk.rollouts.environments.unsafe_host import UnsafeHostEnvironment
from evsys_sdk.rollouts.harness import AgentSpec, EnvironmentSpec, build_harness
from evsys_sdk.rollouts.rollout import Turn

AIM_MS = 5.0
AT_ONCE = 16
ROLLOUTS = 32

ONE_SHOT = [
    *("bwrap", "--unshare-all", "--unshare-user", "--die-with-parent", "--clearenv", "--ro-bind", "/usr", "/usr"),
    *("--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"),
    *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/app", "--", "/bin/bash", "-c", "true"),
]
TESTS = ["assert add(2, 2) == 4", "assert add(-1, 1) == 0"]
ANSWERS = ["```bash\necho 1 > x\n```", "```bash\ncat x\n```", "done"]

type Times = dict[str, list[float]]


async def timed(what: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await what()
    return time.perf_counter() - began


def run(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


async def commands(repeats: int) -> Times:
    """Time of single operations, which take turns, so that a busy moment hits all of them."""
    names = ["bash -c true, bare", "bash -c true, bwrap for each", "exec, unsafe_host", "exec, bwrap", "write", "read"]
    times: Times = {name: [] for name in names}
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


async def lives(repeats: int) -> Times:
    """Time to start, to kill and to stop, alone and many at once."""
    many = f"start, exec, stop; {AT_ONCE} at once"
    times: Times = {"start, bwrap": [], "kill_processes": [], "stop, bwrap": [], many: []}

    async def whole() -> None:
        async with running(BwrapEnvironment()) as sandbox:
            await sandbox.exec("true")

    for _ in range(repeats):
        sandbox = BwrapEnvironment()
        times["start, bwrap"].append(await timed(sandbox.start))
        await sandbox.exec("sleep 60 & sleep 60 &")
        times["kill_processes"].append(await timed(sandbox.kill_processes))
        times["stop, bwrap"].append(await timed(sandbox.stop))
    for _ in range(max(1, repeats // AT_ONCE)):
        seconds = await timed(lambda: asyncio.gather(*(whole() for _ in range(AT_ONCE))))
        times[many].append(seconds / AT_ONCE)
    return times


class Scripted:
    """A policy that says the same three things in every rollout and takes no time for it."""

    def __init__(self) -> None:
        self._answers = iter(ANSWERS)

    async def act(self, messages: object, *, tools: object = None) -> Turn:
        return Turn({"role": "assistant", "content": next(self._answers)}, [1], [1], [0.0])


async def right(*_: object) -> VerificationResult:
    return VerificationResult(1.0)


async def uses(repeats: int) -> Times:
    """Time of whole rollouts of three turns, and of a scoring by tests."""
    harness = build_harness(AgentSpec(kind="bash"), EnvironmentSpec(kind="bwrap"))
    task = HarborTask("t", "do it", InProcessVerifier("python_tests", TESTS))
    verifier = build_verifier(task.verifier)
    engine = InlineEngine(EngineLimits(concurrency=8))
    times: Times = {"rollout of 3 turns, 8 at once": [], "python_tests, 2 tests": []}
    for _ in range(max(1, repeats // ROLLOUTS)):
        requests = [RolloutRequest(task, at, Scripted(), harness, right) for at in range(ROLLOUTS)]
        began = time.perf_counter()
        rollouts = await engine.run(requests)
        assert all(rollout.reward == 1.0 for rollout in rollouts), rollouts[0]
        times["rollout of 3 turns, 8 at once"].append((time.perf_counter() - began) / ROLLOUTS)
    engine.close()
    async with running(BwrapEnvironment()) as sandbox:
        given = VerifierInput("?", "```python\ndef add(a, b): return a + b\n```", task=task, environment=sandbox)
        for _ in range(max(1, repeats // 8)):
            times["python_tests, 2 tests"].append(await timed(lambda: verifier(given)))
    return times


async def measure(repeats: int) -> Times:
    return {**await commands(repeats), **await lives(max(1, repeats // 4)), **await uses(repeats)}


def in_turns(checkouts: list[Path], repeats: int, rounds: int = 4) -> list[Times]:
    """The times of several checkouts, each measured in processes of its own that take turns."""
    found: list[Times] = [{} for _ in checkouts]
    for _ in range(rounds):
        for times, checkout in zip(found, checkouts, strict=True):
            env = {**os.environ, "PYTHONPATH": str(checkout.resolve() / "src")}
            command = [sys.executable, __file__, "--repeats", str(max(1, repeats // rounds)), "--json"]
            said = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout
            for name, seconds in json.loads(said).items():
                times.setdefault(name, []).extend(seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--against", type=Path, help="another checkout to measure in turns with this one")
    parser.add_argument("--json", action="store_true", help="print all times and nothing else")
    args = parser.parse_args()
    if args.json:
        print(json.dumps(asyncio.run(measure(args.repeats))))
        return
    version = subprocess.run(["bwrap", "--version"], check=True, capture_output=True, text=True).stdout.strip()
    print(f"{machine()}, {version}")
    checkouts = [Path(__file__).parents[1], *([args.against] if args.against else [])]
    found = in_turns(checkouts, args.repeats) if args.against else [asyncio.run(measure(args.repeats))]
    for name, own in found[0].items():
        line = f"{name:<34} min {min(own) * 1000:7.2f} ms   median {statistics.median(own) * 1000:7.2f} ms"
        if args.against and (other := found[1].get(name)):
            line += f"   before: min {min(other) * 1000:7.2f}   median {statistics.median(other) * 1000:7.2f}"
            line += f"   {min(own) / min(other):5.2f}x"
        print(line + (f"   aim: at most {AIM_MS:g} ms" if name == "exec, bwrap" else ""))


if __name__ == "__main__":
    main()
