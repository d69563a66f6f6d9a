"""What learning a second skill costs the first, by imitation (`sft`) and by self-distillation (`sdft`), over seeds.

    python benchmarks/forgetting.py --seeds 5

Runs examples/10_sdft/config.yaml on the mock backend. Both arms start from the same four tools, learned by `sft`, and
then learn four others from the same rows. Intervals are 95 % t intervals over training seeds, on the same 48 held-out
requests of each skill, so they say how sure one may be of these tasks, not of others. Arms are compared seed by seed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import machine

from evsys_sdk import Experiment, ExperimentConfig, load_yaml
from evsys_sdk.experiment.statistics.student_t import t_quantile

ROOT = Path(__file__).parent.parent
FIRST_PHASE = 40
"""Steps after which the old skill is learned and the new one begins."""
SCORE_EVERY = 8
"""How closely the arm is watched that is stopped early."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where one seed of an arm ended, or was stopped."""

    before: float
    """The old skill when the new one begins."""
    old: float
    new: float
    steps: int
    """Of the second phase."""
    seconds: float = 0.0

    @property
    def drop(self) -> float:
        return self.before - self.old


type Curve = dict[int, dict[str, float]]
"""Step -> the score of each skill."""


def arm_config(arm: str, output_dir: str, seeds: int, every: int) -> ExperimentConfig:
    """One arm of the example, repeated over seeds, scored every so many steps."""
    config = load_yaml("examples/10_sdft/config.yaml")
    [run] = [run for run in config.all_runs() if run.name == arm]
    benchmark = [entry.model_copy(update={"run_every": every}) for entry in config.metadata.benchmark]
    metadata = config.metadata.model_copy(update={"benchmark": benchmark})
    changes = {"name": arm, "output_dir": output_dir, "run": run, "runs": None, "metadata": metadata}
    return config.model_copy(update={**changes, "n_repeats": seeds})


def run_arm(arm: str, seeds: int, *, every: int = FIRST_PHASE) -> tuple[list[Curve], float]:
    """The curve of each seed, and the seconds that one took."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = Experiment(arm_config(arm, folder, seeds, every)).run()
        bad = [run.error or run.notes.unscored for run in result.runs if run.status != "completed"]
        assert not bad, bad
        curves = [read_curve(result.path / run.run_id) for run in result.runs]
    return curves, (time.perf_counter() - began) / seeds


def read_curve(run_dir: Path) -> Curve:
    curve: Curve = {}
    for text in (run_dir / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        line: dict[str, Any] = json.loads(text)
        for skill in ("old", "new"):
            if f"val/{skill}/pass@1" in line:
                curve.setdefault(line["step"], {})[skill] = line[f"val/{skill}/pass@1"]
    return curve


def at(curve: Curve, step: int, seconds: float = 0.0) -> Outcome:
    scores = curve[step]
    return Outcome(curve[FIRST_PHASE]["old"], scores["old"], scores["new"], step - FIRST_PHASE, seconds)


def at_end(curves: Sequence[Curve], seconds: float = 0.0) -> list[Outcome]:
    return [at(curve, max(curve), seconds) for curve in curves]


def when_as_good(curves: Sequence[Curve], level: Sequence[Outcome]) -> list[Outcome]:
    """Each seed when it was first seen to know as much of the new skill as the other arm does in the end."""
    stops = [
        next((step for step in sorted(curve) if step > FIRST_PHASE and curve[step]["new"] >= other.new), max(curve))
        for curve, other in zip(curves, level, strict=True)
    ]
    return [at(curve, step) for curve, step in zip(curves, stops, strict=True)]


def interval(values: Sequence[float]) -> str:
    """Mean and 95 % t interval."""
    mean, low, high = bounds(values)
    return f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def bounds(values: Sequence[float]) -> tuple[float, float, float]:
    mean = statistics.fmean(values)
    half = t_quantile(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return mean, mean - half, mean + half


def report(arms: dict[str, list[Outcome]]) -> None:
    print(f"\n{'':<34}{'old skill drops by':<24}{'new skill in the end':<24}{'steps':<8}seconds")
    for name, outcomes in arms.items():
        seconds = statistics.fmean(one.seconds for one in outcomes)
        print(
            f"{name:<34}{interval([one.drop for one in outcomes]):<24}{interval([one.new for one in outcomes]):<24}"
            f"{statistics.fmean(one.steps for one in outcomes):<8.0f}{f'{seconds:.1f}' if seconds else '-'}"
        )
    sdft = arms["sdft"]
    print("\nsdft less the other, seed by seed")
    for name, outcomes in list(arms.items())[1:]:
        drops = [ours.drop - theirs.drop for ours, theirs in zip(sdft, outcomes, strict=True)]
        news = [ours.new - theirs.new for ours, theirs in zip(sdft, outcomes, strict=True)]
        print(f"{name:<34}{interval(drops):<24}{interval(news):<24}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    os.chdir(ROOT)
    sdft_curves, sdft_seconds = run_arm("sdft", seeds)
    plain, sft_seconds = run_arm("sft", seeds)
    watched, _ = run_arm("sft", seeds, every=SCORE_EVERY)
    sdft = at_end(sdft_curves, sdft_seconds)
    arms = {
        "sdft": sdft,
        "sft, same rows, epochs and steps": at_end(plain, sft_seconds),
        "sft, stopped when new is as good": when_as_good(watched, sdft),
    }
    print(machine())
    before = interval([one.before for one in sdft])
    print(f"{seeds} seeds, 48 held-out requests a skill; the old skill scores {before} before the new one begins")
    report(arms)
    print(
        "\nEqual: the start, the rows, epochs, batch size and steps. Not equal: sdft samples an answer to each row and "
        "asks\nits teacher about it, hence the seconds; and it has twice the learning rate, at which sft forgets more."
    )


if __name__ == "__main__":
    main()
