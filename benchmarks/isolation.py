"""What isolation costs in this checkout and in an earlier one, in turns on the same machine and interpreter.

    git worktree add ../before REVISION
    python benchmarks/isolation.py --against ../before

The least of all repeats is the cost, in processor time of the process and its children, so that other work on the
machine hardly changes it.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from measure import machine

HERE = Path(__file__).parents[1]
OWN = """
from evsys_sdk import register_transform
@register_transform("mine")
class Mine:
    def __call__(self, rows):
        return list(rows)
"""
ROWS = [{"messages": [{"role": "user", "content": w}, {"role": "assistant", "content": w.upper()}]} for w in "abcdefgh"]
WORK = """
import asyncio, json, os, resource, time
from evsys_sdk.data.types import HarborTask, InProcessVerifier
from evsys_sdk.eval.verifier import VerifierInput, build_verifier
from evsys_sdk.redact import redact_text
from evsys_sdk.rollouts.environments.bwrap import BwrapEnvironment

def used():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both)

async def judge(name, expected, answer, times, place=None):
    verifier = InProcessVerifier(name, expected)
    given = VerifierInput("?", answer, task=HarborTask("t", "?", verifier), environment=place, expected=expected)
    check = build_verifier(verifier)
    assert (await check(given)).reward == 1
    began = used()
    for _ in range(times):
        await check(given)
    if place:
        await place.stop()  # only then are its processes counted
    return times / (used() - began)

async def main():
    print("exact_match, verdicts/s", await judge("exact_match", "a", "a", 20_000))
    place = BwrapEnvironment(memory_mb=512, disk_mb=64)
    await place.start()
    code = "```python\\ndef add(a, b): return a + b\\n```"
    print("python_tests, verdicts/s", await judge("python_tests", ["assert add(1, 2) == 3"], code, 30, place))
    os.environ |= {f"SERVICE_{n}_API_KEY": os.urandom(15).hex() for n in range(4)}
    log = '12:00:00 INFO sft__seed1 step 7: loss 0.1234, 51 rows/s, {"step": 7, "lr": 1e-4}' + chr(10)
    event = {"format": 2, "id": "54fd5b7b5c43", "time": 1795101630.55, "kind": "arm_started", "arm": "sft__seed44"}
    event |= {"config": {"model": {"name": "tiny"}, "metrics": ["pass@1"], "params": {"max_tokens": 64, "lr": 1e-4}}}
    code = "def add(a, b):\\n    # the key of a\\n    return [a[n] + b.get(n, 0) for n in sorted(a)]\\n"
    turn = {"role": "assistant", "content": code * 9, "tokens": list(range(150)), "logprobs": [-0.25] * 150}
    rollout = {"task_id": "item-0012", "step": 7, "reward": 0.5, "messages": [turn, turn]}
    texts = {"a log": log * 12_000, "log lines": log, "events": json.dumps(event), "rollouts": json.dumps(rollout)}
    for what, text in texts.items():
        times = 5_000_000 // len(text)
        began = time.process_time()
        for _ in range(times):
            redact_text(text)
        print(f"redaction of {what}, MB/s", len(text) * times / 1e6 / (time.process_time() - began))

asyncio.run(main())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True, help="another checkout")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sides = {"before": options.against.resolve(), "after": HERE}
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        commands = prepare(place)
        for turn in range(options.repeats):
            for side, checkout in sides.items():
                for what, make in commands.items():
                    took = measure(make(f"{side}{turn}"), place, checkout)
                    found.setdefault(what, {}).setdefault(side, []).append(took)
                if turn < 3:
                    for line in run([sys.executable, "-c", WORK], place, checkout).splitlines():
                        what, _, value = line.rpartition(" ")
                        found.setdefault(what, {}).setdefault(side, []).append(float(value))
    print(machine())
    print(f"in turns, best of {options.repeats} (3 for rates); load of the machine {os.getloadavg()[0]:.1f}")
    print(f"{'':34} {'before':>10} {'after':>10} {'after/before':>13}")
    for what, by_side in found.items():
        best: Callable[[list[float]], float] = max if what.endswith("/s") else min
        before, after = best(by_side["before"]), best(by_side["after"])
        print(f"{what:34} {before:10.1f} {after:10.1f} {after / before:12.2f}x")


def prepare(place: Path) -> dict[str, Callable[[str], list[str]]]:
    """The commands to compare; each run writes to a folder of its own."""
    (place / ".evsys").mkdir()
    (place / "own.py").write_text(OWN, encoding="utf-8")
    for name, transforms in (("plain", []), ("own", [{"kind": "mine"}])):
        data = {"rows": ROWS, "source_kind": "in_memory", "transforms": transforms}
        block = {"name": "a", "data": data, "model": {"name": "tiny"}, "backend": {"kind": "mock"}}
        block["algorithm"] = {"kind": "sft", "params": {"max_steps": 1}}
        (place / f"{name}.json").write_text(json.dumps({"name": name, "run": block}), encoding="utf-8")
    evsys, imports = [sys.executable, "-m", "evsys_sdk"], ["--import", "own.py"]
    return {
        "validate, ms": lambda _: [*evsys, "validate", "plain.json", "--deep"],
        "validate with own code, ms": lambda _: [*evsys, "validate", "own.json", "--deep", *imports],
        "run, ms": lambda _: [*evsys, "run", "plain.json", "--quiet", "--fresh"],
        "run with own code, ms": lambda _: [*evsys, "run", "own.json", "--quiet", "--fresh", *imports],
    }


def measure(command: list[str], place: Path, checkout: Path) -> float:
    began = used()
    run(command, place, checkout)
    return 1000 * (used() - began)


def used() -> float:
    """Processor time of all children so far."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def run(command: list[str], place: Path, checkout: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:6])} in {checkout}: {done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
