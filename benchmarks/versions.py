"""What commands and sweeps cost in this checkout and in an earlier one, in turns on the same machine and interpreter.

    git worktree add ../before REVISION
    python benchmarks/versions.py --against ../before

Processor time is compared, because it says the same on a busy machine; the least of all repeats is the cost.
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

from history import generate
from measure import machine

HERE = Path(__file__).parents[1]
AIMS = {"evsys validate": 12, "evsys list": 20}  # times an empty Python
ROWS = [{"messages": [{"role": "user", "content": w}, {"role": "assistant", "content": w.upper()}]} for w in "abcdefgh"]

type Command = Callable[[], list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True, help="another checkout")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--experiments", type=int, default=10_000)
    parser.add_argument("--arms", type=int, default=200)
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sides = {"before": options.against.resolve(), "after": HERE}
    with tempfile.TemporaryDirectory() as folder:
        commands = {
            name: prepare(Path(folder) / name, checkout, options.experiments, options.arms)
            for name, checkout in sides.items()
        }
        empty = min(spend([sys.executable, "-c", "pass"], HERE) for _ in range(options.repeats))
        costs = take_turns(commands, sides, options.repeats)
    print(machine())
    print(f"processor time, least of {options.repeats}; load of the machine {os.getloadavg()[0]:.1f}")
    print(f"python -c pass: {empty * 1000:.1f} ms")
    print(f"{'':34} {'before':>10} {'after':>10} {'after/before':>13}")
    for what, (before, after) in costs.items():
        aim = f"   {after / empty:.1f}x python -c pass (aim: {AIMS[what]}x)" if what in AIMS else ""
        each = f"{options.arms} arms" in what
        scale, unit = (1000 / options.arms, "ms each") if each else (1000, "ms")
        print(f"{what:34} {before * scale:10.1f} {after * scale:10.1f} {after / before:12.2f}x   {unit}{aim}")


def prepare(folder: Path, checkout: Path, experiments: int, arms: int) -> dict[str, Command]:
    """The commands to compare, over records in a folder of this side's own."""
    root, sweep = folder / "outputs", folder / "sweep.json"
    generate(root, experiments)
    run = {
        "name": "r",
        "data": {"source_kind": "in_memory", "rows": ROWS},
        "model": {"name": "tiny"},
        "algorithm": {"kind": "sft", "params": {"max_steps": 2, "batch_size": 4}},
        "backend": {"kind": "mock"},
    }
    out = str(folder / "sweep")
    sweep.write_text(json.dumps({"name": "many", "output_dir": out, "run": run, "n_repeats": arms}), encoding="utf-8")
    quickstart = str(next(checkout.glob("examples/*quickstart/config.yaml")))

    def forget() -> None:
        for cache in root.glob(".history*"):
            cache.unlink()

    look = ["history", "--root", str(root), "--limit", "20"]
    return {
        "evsys --help": lambda: ["--help"],
        "evsys list": lambda: ["list"],
        "evsys validate": lambda: ["validate", quickstart],
        "evsys validate --deep": lambda: ["validate", "--deep", quickstart],
        f"first look at {experiments:,}": lambda: forget() or look,
        f"history of {experiments:,}": lambda: look,
        f"context of {experiments:,}": lambda: ["context", "--root", str(root)],
        f"run of {arms} arms": lambda: ["run", str(sweep), "--fresh"],
        f"resume of {arms} arms, all done": lambda: ["run", str(sweep), "--resume"],
    }


def take_turns(
    commands: dict[str, dict[str, Command]], sides: dict[str, Path], repeats: int
) -> dict[str, tuple[float, float]]:
    least: dict[str, dict[str, float]] = {}
    for turn in range(repeats + 1):
        for what in commands["before"]:
            for side, checkout in sides.items():
                cost = spend([sys.executable, "-m", "evsys_sdk", *commands[side][what]()], checkout)
                if turn:  # the first turn compiles and fills caches
                    least.setdefault(what, {})[side] = min(cost, least.get(what, {}).get(side, cost))
    return {what: (found["before"], found["after"]) for what, found in least.items()}


def spend(command: list[str], checkout: Path) -> float:
    """Processor seconds of a command that runs the code of one checkout; it must succeed."""
    env = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} in {checkout} failed:\n{done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
