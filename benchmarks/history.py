"""How long an agent waits for `evsys history` and `evsys context` over 10,000 recorded experiments. Aim: 300 ms.

python benchmarks/history.py --experiments 10000 --repeats 15
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from measure import machine

AIM_MS = 300
ALGORITHMS = ("sft", "rl", "dpo", "sdft")
VERDICTS = ("supported", "refuted", "inconclusive", "inconclusive", "promising_unconfirmed")
REASONS = (
    "TrainingError: the loss is NaN at step {n}. Lower learning_rate.",
    "BackendError: the server closed the connection after {n} s.",
    "OutOfMemoryError: tried to allocate {n} MiB.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    evsys = str(Path(sys.executable).parent / "evsys")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "outputs"
        generate(root, options.experiments)
        ask = [evsys, "history", "--root", str(root), "--limit", "20"]
        began = time.perf_counter()
        subprocess.run(ask, check=True, stdout=subprocess.DEVNULL)
        first = time.perf_counter() - began
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "evsys --help": [evsys, "--help"],
            "history --limit 20": ask,
            "history --limit 20 --json": [*ask, "--json"],
            "history --search --sort score": [*ask, "--search", "lower rate", "--sort", "score"],
            "context": [evsys, "context", "--root", str(root)],
            "context --json": [evsys, "context", "--root", str(root), "--json"],
        }
        costs = take_turns(commands, repeats=options.repeats)
        costs["history, one has changed"] = after_a_change(root, ask, repeats=options.repeats)
    base = statistics.median(cost.wall for cost in costs["python -c pass"])
    print(machine())
    print(f"{options.experiments:,} experiments; the first call, which reads them all: {first:.1f} s")
    print(f"medians (least) of {options.repeats}; load of the machine {os.getloadavg()[0]:.1f}")
    for name, found in costs.items():
        wall, cpu = [cost.wall for cost in found], [cost.cpu for cost in found]
        aim = f"   aim: {AIM_MS} ms" if name.startswith(("history", "context")) else ""
        times = f"{_ms(wall)} wall   {_ms(cpu)} processor   {statistics.median(wall) / base:5.1f}x python -c pass"
        print(f"{name:<30} {times}{aim}")


class Cost(NamedTuple):
    """Seconds of one command."""

    wall: float
    cpu: float


def _ms(values: list[float]) -> str:
    return f"{statistics.median(values) * 1000:6.0f} ({min(values) * 1000:4.0f}) ms"


def cost(command: list[str]) -> Cost:
    """What one command takes; it must succeed."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def take_turns(commands: dict[str, list[str]], *, repeats: int) -> dict[str, list[Cost]]:
    """The cost of each command; they take turns, so that a busy moment hits all of them."""
    found: dict[str, list[Cost]] = {name: [] for name in commands}
    for command in commands.values():
        cost(command)
    for _ in range(repeats):
        for name, command in commands.items():
            found[name].append(cost(command))
    return found


def after_a_change(root: Path, command: list[str], *, repeats: int) -> list[Cost]:
    """The cost of calls that find one experiment changed since the last one."""
    found: list[Cost] = []
    for journal in sorted(root.glob("*/journal.jsonl"))[:repeats]:
        with journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"id": "0" * 12, "time": time.time(), "kind": "note", "text": "seen"}) + "\n")
        found.append(cost(command))
    return found


def generate(root: Path, number: int) -> None:
    """A synthetic record: experiments of two runs and three seeds each, one in ten with failures."""
    dice = random.Random(0)
    ids: list[str] = []
    for index in range(number):
        name = f"exp-{index:05d}"
        ids.append(f"{name}-{dice.getrandbits(32):08x}")
        parent = dice.choice(ids[-50:-1]) if index and dice.random() < 0.7 else None
        write_experiment(root / name, ids[-1], index, parent, dice)


def write_experiment(folder: Path, experiment_id: str, index: int, parent: str | None, dice: random.Random) -> None:
    folder.mkdir(parents=True)
    algorithm, rate = dice.choice(ALGORITHMS), dice.choice((1e-5, 3e-5, 1e-4, 3e-4, 1e-3))
    base = run_config("base", algorithm, 1e-4, dice)
    changed = {**base, "name": "changed", "algorithm": change_one(base["algorithm"], rate, dice)}
    runs = [base, changed]
    claim = f"A {'lower' if rate < 1e-4 else 'higher'} rate of {rate:g} helps {algorithm} on few, noisy examples."
    metadata = {"hypothesis": claim, "success_metric": "pass@1", "tags": ["routing", algorithm], "benchmark": []}
    config = {"name": folder.name, "description": "", "runs": runs, "n_repeats": 3, "metadata": metadata}
    config |= {"version": 1, "output_dir": "outputs", "parent_experiment_id": parent}
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    began = 1_700_000_000 + 3600.0 * index
    events, score = journal(experiment_id, folder.name, parent, began, dice)
    with (folder / "journal.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"id": f"{n:012x}", **event}) + "\n" for n, event in enumerate(events))
    means = {"base": 0.5, "changed": score}
    scored = {"n_seeds": 3, "n_tasks": 100, "failures": 0}
    runs = [
        {"name": run, "mean": mean, "low": mean - 0.04, "high": mean + 0.04, "is_baseline": run == "base", **scored}
        for run, mean in means.items()
    ]
    conclusion = {
        "verdict": dice.choice(VERDICTS),
        "summary": f"changed differs from base by {score - 0.5:+.3f}; the 95 % interval has a half width of 0.04.",
        "metric": "val/routing/pass@1",
        "mode": "max",
        "best_arm": "changed",
        "best_score": score,
        "runs": runs,
        "comparisons": [
            {"run": "changed", "difference": score - 0.5, "df": 8.0}
            | {"plain_low": score - 0.54, "plain_high": score - 0.46}
        ],
        "report_sha256": "a" * 64,
        "next": [f"Add seeds to {folder.name}, or try half the rate."],
    }
    (folder / "conclusion.json").write_text(json.dumps(conclusion), encoding="utf-8")


def change_one(algorithm: dict[str, Any], rate: float, dice: random.Random) -> dict[str, Any]:
    """The same recipe with another rate, or now and then with another number of epochs or rank."""
    axis, value = dice.choice((("learning_rate", rate), ("num_epochs", 8), ("lora_rank", 64)))
    return {**algorithm, "params": {**algorithm["params"], axis: value}}


def run_config(name: str, algorithm: str, rate: float, dice: random.Random) -> dict[str, Any]:
    params = {
        "learning_rate": rate,
        "num_epochs": dice.choice((1, 2, 4)),
        "lora_rank": dice.choice((8, 32)),
        "batch": 64,
    }
    return {
        "name": name,
        "data": {"source_kind": "jsonl", "path": "train.jsonl", "transforms": []},
        "model": {"name": dice.choice(("small-1B", "middle-4B"))},
        "algorithm": {"kind": algorithm, "params": params},
        "backend": {"kind": "mock", "params": {}},
        "seed": 42,
    }


def journal(
    experiment_id: str, name: str, parent: str | None, began: float, dice: random.Random
) -> tuple[list[dict[str, object]], float]:
    arms = [
        {"arm": f"{run}__seed{seed}", "run": run, "seed": seed} for run in ("base", "changed") for seed in (42, 43, 44)
    ]
    started = {"kind": "experiment_started", "experiment_id": experiment_id, "name": name, "arms": arms}
    events: list[dict[str, object]] = [
        {**started, "time": began, "config_sha256": "0" * 64, "parent_experiment_id": parent}
    ]
    score = round(dice.gauss(0.52, 0.06), 4)
    bill = {"tokens_trained": 400_000, "tokens_sampled": 80_000, "usd": 0.4, "wall_s": 300.0, "gpu_s": 0.0}
    for number, arm in enumerate(arms):
        failed = dice.random() < 0.02
        reason = dice.choice(REASONS).format(n=dice.randrange(1000))
        end = {"status": "failed", "error": reason} if failed else {"status": "completed"}
        metrics = {} if failed else {"steps": 100.0, "val/routing/pass@1": 0.5 if arm["run"] == "base" else score}
        at = began + 300 * number
        events.append({"kind": "arm_started", "time": at, "arm": arm["arm"], "attempt": 1})
        events.append(
            {"kind": "arm_ended", "time": at + 300, "arm": arm["arm"], **end, "metrics": metrics, "spend": bill}
        )
    total = {key: value * len(arms) for key, value in bill.items()}
    events.append({"kind": "experiment_ended", "time": began + 1800, "status": "completed", "spend": total})
    return events, score


if __name__ == "__main__":
    main()
