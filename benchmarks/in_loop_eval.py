"""What a slow in-loop benchmark costs training: wall time of the loop itself, and of the whole run, with and without.

    python benchmarks/in_loop_eval.py

The loop is timed directly, from the moment its first step was submitted until its last one was finished, in a callback.
The whole run also has the last scoring in it, which follows the last step and has nothing to overlap with; how much
that is depends on how long training takes beside one scoring, so a short and a longer run are measured.

The benchmark either waits, as for a sandbox or a server, or computes in this very process, which is the worst case: it
and training then share one interpreter. Configurations take turns; medians are reported. Aim: the loop within 10 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measure import machine

from evsys_sdk import Experiment, ExperimentConfig, HarborTask, register_agent
from evsys_sdk.training.callback import Callback

TASKS, SCORING_S, LATENCY_MS = 16, 2.0, 25


@register_agent("waits")
class Waits:
    """Takes its time, then asks the model; all tasks wait at once."""

    name = "waits"

    async def run(self, task: HarborTask, policy: Any, environment: Any) -> list[dict[str, Any]]:
        await asyncio.sleep(SCORING_S)
        return [(await policy.act([{"role": "user", "content": task.instruction}])).message]


@register_agent("computes")
class Computes:
    """The same time for all tasks together, spent on the processor by pure Python."""

    name = "computes"

    async def run(self, task: HarborTask, policy: Any, environment: Any) -> list[dict[str, Any]]:
        began = time.thread_time()
        while time.thread_time() - began < SCORING_S / TASKS:
            sum(range(1000))
        return [(await policy.act([{"role": "user", "content": task.instruction}])).message]


class LoopTimer(Callback):
    """When the first step was submitted and the last one was finished."""

    name = "loop_timer"

    def __init__(self) -> None:
        self.began: float | None = None
        self.ended = 0.0

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.ended = time.perf_counter()
        if self.began is None:
            self.began = self.ended - metrics["time/step_s"]


@dataclass(slots=True)
class Times:
    """Wall times of one configuration, one of each per repetition."""

    loop: list[float] = field(default_factory=list[float])
    total: list[float] = field(default_factory=list[float])


@dataclass(frozen=True, slots=True)
class Setting:
    """How long a run is, and how often it is scored."""

    steps: int
    every: int
    kinds: tuple[str, ...]
    """The benchmarks that are tried, and `none`."""


def config(setting: Setting, kind: str) -> ExperimentConfig:
    entry = {
        "name": "slow",
        "path": "tasks.jsonl",
        "split": "val",
        "run_every": setting.every,
        "max_tokens": 4,
        "agent": {"kind": kind},
    }
    params = {"max_steps": setting.steps, "batch_size": 4, "save_every": setting.every}
    return ExperimentConfig.model_validate(
        {
            "name": f"{kind}_{setting.steps}",
            "output_dir": "outputs",
            "metadata": {"benchmark": [] if kind == "none" else [entry]},
            "run": {
                "name": "r",
                "data": {"path": "train.jsonl", "transforms": [{"kind": "jsonl_to_chat"}]},
                "model": {"name": "tiny"},
                "algorithm": {"kind": "sft", "params": params},
                "backend": {"kind": "mock", "params": {"latency_ms": LATENCY_MS}},
            },
        }
    )


def write_data() -> None:
    verifier = {"kind": "in_process", "fn_name": "exact_match", "expected": "A"}
    rows = [{"prompt": f"say {number}", "completion": str(number)} for number in range(32)]
    tasks = [{"task_id": f"t{n}", "instruction": f"say {n}", "verifier": verifier} for n in range(TASKS)]
    for name, content in (("train", rows), ("tasks", tasks)):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")


def measure(setting: Setting, kind: str, times: Times) -> None:
    timer = LoopTimer()
    began = time.perf_counter()
    [run] = Experiment(config(setting, kind), callbacks=[lambda: timer]).run().runs
    times.total.append(time.perf_counter() - began)
    assert (run.status, run.notes.unscored) == ("completed", None), run.error
    assert timer.began is not None
    times.loop.append(timer.ended - timer.began)


def compare(setting: Setting, repeats: int) -> dict[str, Times]:
    """Every configuration, taking turns, so that a busy moment of the machine hits all of them."""
    found = {kind: Times() for kind in setting.kinds}
    for _ in range(repeats):
        for kind, times in found.items():
            measure(setting, kind, times)
    return found


def report(setting: Setting, found: dict[str, Times]) -> None:
    scorings = setting.steps // setting.every
    print(f"\n{setting.steps} steps, a benchmark of {SCORING_S:g} s every {setting.every} of them: {scorings} scorings")
    alone_loop, alone_total = (statistics.median(values) for values in (found["none"].loop, found["none"].total))
    print(f"  without a benchmark        loop {alone_loop:6.2f} s              whole run {alone_total:6.2f} s")
    for kind in setting.kinds[1:]:
        loop, total = statistics.median(found[kind].loop), statistics.median(found[kind].total)
        spread = [f"{one / other - 1:+.1%}" for one, other in zip(found[kind].loop, found["none"].loop, strict=True)]
        print(
            f"  one that {kind:<17} loop {loop:6.2f} s ({loop / alone_loop - 1:+6.1%})    "
            f"whole run {total:6.2f} s ({total / alone_total - 1:+6.1%})    loop in each repeat: {', '.join(spread)}"
        )
    after = alone_total + scorings * SCORING_S
    calculated = f"whole run {after:6.2f} s ({after / alone_total - 1:+6.1%})"
    print(f"  if nothing overlapped (calculated)                {calculated}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    print(machine())
    print("median of", repeats, "repeats; aim: the loop within 10 %")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_data()
        for setting in (Setting(200, 50, ("none", "waits", "computes")), Setting(600, 100, ("none", "waits"))):
            report(setting, compare(setting, repeats))
        os.chdir("/")
    print(f"\nload average of the machine when done: {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
