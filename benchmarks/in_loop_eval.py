"""What a slow in-loop benchmark costs training: wall time with it, without it, and if it did not overlap.

    python benchmarks/in_loop_eval.py

The agent of the benchmark sleeps, as one does that waits for a sandbox or a server. Configurations take turns; the
median of a few repetitions is reported.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import machine

from evsys_sdk import Experiment, ExperimentConfig, HarborTask, register_agent

STEPS, EVERY, TASKS, SLEEP_S, LATENCY_MS = 200, 50, 16, 2.0, 25


@register_agent("sleepy")
class Sleepy:
    """Takes its time, then asks the model."""

    name = "sleepy"

    async def run(self, task: HarborTask, policy: Any, environment: Any) -> list[dict[str, Any]]:
        await asyncio.sleep(SLEEP_S)
        return [(await policy.act([{"role": "user", "content": task.instruction}])).message]


def config(*, in_loop: bool) -> ExperimentConfig:
    entry = {
        "name": "slow",
        "path": "tasks.jsonl",
        "split": "val",
        "run_every": EVERY,
        "max_tokens": 4,
        "agent": {"kind": "sleepy"},
    }
    return ExperimentConfig.model_validate(
        {
            "name": "in_loop" if in_loop else "alone",
            "output_dir": "outputs",
            "metadata": {"benchmark": [entry] if in_loop else []},
            "run": {
                "name": "r",
                "data": {"path": "train.jsonl", "transforms": [{"kind": "jsonl_to_chat"}]},
                "model": {"name": "tiny"},
                "algorithm": {"kind": "sft", "params": {"max_steps": STEPS, "batch_size": 4, "save_every": EVERY}},
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


def seconds(*, in_loop: bool) -> float:
    began = time.perf_counter()
    [run] = Experiment(config(in_loop=in_loop)).run().runs
    assert (run.status, run.extras.get("unscored")) == ("completed", None)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    times: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_data()
        for _ in range(repeats):
            for in_loop, found in times.items():
                found.append(seconds(in_loop=in_loop))
        os.chdir("/")
    alone, overlapped = (statistics.median(times[in_loop]) for in_loop in (False, True))
    scorings = STEPS // EVERY
    # The last scoring follows the last step, so there is nothing left for it to overlap with.
    during = overlapped - alone - SLEEP_S
    print(machine())
    print(f"{STEPS} steps, a benchmark of {SLEEP_S:g} s every {EVERY} steps ({scorings} scorings, the last at the end)")
    print(f"training alone            {alone:6.2f} s")
    print(f"with the benchmark        {overlapped:6.2f} s   ({overlapped / alone - 1:+.1%})")
    print(f"  of which at the end     {SLEEP_S:6.2f} s   (taken to be one whole scoring, not measured)")
    print(f"  of which during training{during:6.2f} s   ({during / alone:+.1%}, what is left after that)")
    print(f"one after the other       {alone + scorings * SLEEP_S:6.2f} s   (+{scorings * SLEEP_S / alone:.1%})")


if __name__ == "__main__":
    main()
