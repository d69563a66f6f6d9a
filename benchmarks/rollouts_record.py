"""What recording the attempts of a run costs: seconds of the recorder and the diagnosis against those of the steps.

A run of `rl` on the mock backend, which samples and trains in milliseconds what a real model takes seconds for, so that
the share printed here is an upper bound. The two observers are timed inside the run, call by call, in processor time,
which says the same on a busy machine. Aim: below 3 % of the steps, with conversations and token ids kept.

    python benchmarks/rollouts_record.py --steps 20 --repeats 3
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from measure import machine

from evsys_sdk import ExperimentConfig
from evsys_sdk.experiment import Experiment
from evsys_sdk.training.callback import Callback
from evsys_sdk.training.diagnosis import Diagnosis
from evsys_sdk.training.rollout_recorder import RolloutRecorder

AIM = 0.03
WORDS = ["red", "green", "blue", "white"]
TASKS = [
    {
        "task_id": f"t{number}",
        "instruction": f"Number {number}. " + "Think about it. " * 20 + "Colours: red, green, blue, white.",
        "verifier": {"kind": "in_process", "fn_name": "exact_match", "expected": WORDS[number % 4]},
    }
    for number in range(64)
]


class Stopwatch(Callback):
    """Processor seconds from the end of the first step to the end of the last."""

    name = "stopwatch"

    def __init__(self, last_step: int) -> None:
        self.seconds, self._last = 0.0, last_step

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        if step in (1, self._last):
            self.seconds = time.process_time() - self.seconds


def time_calls(kind: type[Callback], spent: list[float]) -> Callable[[], None]:
    """Have every call of `on_rollouts` timed; returns what undoes it."""
    original = kind.on_rollouts

    def timed(self: Any, step: int, rollouts: Sequence[Any]) -> None:
        began = time.thread_time()
        original(self, step, rollouts)
        spent.append(time.thread_time() - began)

    kind.on_rollouts = timed
    return lambda: setattr(kind, "on_rollouts", original)


def measure(folder: Path, steps: int, *, tokens: bool) -> tuple[float, float, int]:
    """Seconds of all steps but the first, seconds of the recording in them, and bytes on disk."""
    config = {
        "name": f"run{len(list(folder.iterdir()))}",
        "output_dir": str(folder),
        "launcher": {"kind": "local", "params": {"arms_in": "threads"}},
        "run": {
            "name": "r",
            "data": {"source_kind": "in_memory", "rows": TASKS},
            "model": {"name": "tiny"},
            "algorithm": {
                "kind": "rl",
                "params": {
                    "max_steps": steps,
                    "batch_size": 8,
                    "group_size": 16,
                    "save_every": None,
                    "sampling": {"max_tokens": 64},
                },
            },
            "backend": {"kind": "mock"},
            "rollouts": {"tokens": tokens},
        },
    }
    watch, spent = Stopwatch(steps), list[float]()
    undo = [time_calls(kind, spent) for kind in (RolloutRecorder, Diagnosis)]
    try:
        result = Experiment(ExperimentConfig.model_validate(config), callbacks=[lambda: watch]).run()
    finally:
        for one in undo:
            one()
    assert result.runs[0].status == "completed", result.runs[0].error
    written = (result.path / "r" / "logs" / "training" / "rollouts.jsonl").stat().st_size
    return watch.seconds, sum(spent[2:]), written


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(machine())
    print("| kept | ms a step | ms of recording | share | kB a step |")
    print("|---|---|---|---|---|")
    worst = 0.0
    for tokens in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            found = [measure(Path(folder), options.steps, tokens=tokens) for _ in range(options.repeats)]
        steps, recording, size = (statistics.median(values) for values in zip(*found, strict=True))
        worst = max(worst, recording / steps)
        each = options.steps - 1
        kept = "conversations and tokens" if tokens else "conversations"
        share = f"{recording / steps:.2%}"
        print(
            f"| {kept} | {1e3 * steps / each:.0f} | {1e3 * recording / each:.1f} | {share} | {size / 1e3 / each:.0f} |"
        )
    print(f"aim: below {AIM:.0%} of the step; {'met' if worst < AIM else 'MISSED'}")
    return 0 if worst < AIM else 1


if __name__ == "__main__":
    raise SystemExit(main())
