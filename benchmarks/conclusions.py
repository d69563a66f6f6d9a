"""False positives, power and coverage of the verdict, simulated through `conclude_from`, next to two other tests.

    python benchmarks/conclusions.py                            all cells, 600 experiments each; prints one table
    python benchmarks/conclusions.py --experiments 2000 --cells x5

Every experiment takes the path of a real one: first trial of its claim, three seeds needed, missing samples bounded. A
model solves a task with a probability whose logit is the sum of the task's ease (sd 1), a run-by-task interaction (sd
0.3, per cluster where there are any), a seed effect (sd 0.1) and the true gain. Welch's t-test compares seed means. The
mixed model has random tasks, run-by-task interactions and seeds within runs. Both use Bonferroni's correction at the
same level.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from evsys_sdk.config import Metadata
from evsys_sdk.config.experiment import plan_looks
from evsys_sdk.experiment.conclusion.evidence import ArmEvidence, Evidence, RunEvidence, Score, ScoredSet, SetKey
from evsys_sdk.experiment.conclusion.interim import judge_interim
from evsys_sdk.experiment.conclusion.model import Conclusion
from evsys_sdk.experiment.conclusion.verdict import conclude_from
from evsys_sdk.experiment.hypothesis import hypothesis_sha256
from evsys_sdk.experiment.statistics.attempts import FIRST_ERROR
from evsys_sdk.experiment.statistics.student_t import t_cdf

TWELVE_POINTS = 0.6
"""Logits; about 12 points where a task is solved half of the time."""
_ABOUT = Metadata.model_validate({"hypothesis": "some run is better", "success_metric": "pass@1"})
_SHA256 = hypothesis_sha256(_ABOUT)


@dataclass(frozen=True)
class World:
    """How scores come about."""

    arms: int = 7
    """Runs, with the baseline."""
    seeds: int = 3
    tasks: int = 100
    samples: int = 4
    gain: float = 0.0
    """Of the first run, in logits."""
    baseline_seeds: int = 0
    seed_sd: float = 0.1
    clusters: int = 0
    lost: float = 0.0
    """Share of the candidates' wrong samples that are lost."""
    noisy_baseline: float = 1.0
    """How many times the standard deviation of the other runs."""
    noisy_run: float = 1.0
    validated: bool = False
    decided: bool = False
    """Whether it is `until: decided` with 10 seeds."""

    def draw(self, random: np.random.Generator) -> Evidence:
        sets: list[SetKey] = [("val", "suite"), ("test", "suite")] if self.validated else [("test", "suite")]
        ease = [random.normal(0, 1, self.tasks) for _ in sets]
        runs = [self._draw_run(random, at, sets, ease) for at in range(self.arms)]
        return Evidence("simulated", _ABOUT, runs, registered=True, registered_sha256=_SHA256, attempt=1)

    def _draw_run(
        self, random: np.random.Generator, at: int, sets: list[SetKey], ease: list[np.ndarray]
    ) -> RunEvidence:
        name = f"run{at:02d}" if at else "baseline"
        seeds = 10 if self.decided else (self.baseline_seeds or self.seeds) if at == 0 else self.seeds
        noisy = self.noisy_baseline if at == 0 else self.noisy_run if at == min(2, self.arms - 1) else 1.0
        luck = random.normal(0, self.seed_sd * noisy, (seeds, 1))
        scorings: list[dict[SetKey, ScoredSet]] = [{} for _ in range(seeds)]
        for key, of_tasks in zip(sets, ease, strict=True):
            suits = random.normal(0, 0.3, self.clusters or self.tasks)
            logit = of_tasks + suits[np.arange(self.tasks) % len(suits)] + luck + (self.gain if at == 1 else 0.0)
            right = random.binomial(self.samples, 1 / (1 + np.exp(-logit)))
            for seed in range(seeds):
                scorings[seed][key] = self._score(random, key, right[seed], lost=self.lost if at else 0.0)
        arms = [
            ArmEvidence(f"{name}-{seed}", name, seed, "completed", scorings=found)
            for seed, found in enumerate(scorings)
        ]
        return RunEvidence(name, arms)

    def _score(self, random: np.random.Generator, key: SetKey, right: np.ndarray, lost: float) -> ScoredSet:
        names = [f"t{at:04d}" for at in range(self.tasks)]
        gone = random.binomial(self.samples - right, lost)
        rows = list(zip(names, right.tolist(), (self.samples - gone).tolist(), gone.tolist(), strict=True))
        per_task = {task: solved / left for task, solved, left, _ in rows if left}
        score = Score(float(np.mean([*per_task.values()])), per_task)
        clusters = {task: str(at % self.clusters) for at, task in enumerate(names)} if self.clusters else {}
        each = {task: [1.0] * s + [0.0] * (n - s) + [None] * g for task, s, n, g in rows} if lost else {}
        return ScoredSet(key, 1, f"sha-{key[0]}", {"pass@1": score}, int(gone.sum()), clusters=clusters, samples=each)

    def conclude(self, random: np.random.Generator) -> tuple[Conclusion, Evidence]:
        whole = self.draw(random)
        if not self.decided:
            return conclude_from(whole), whole
        found, seen = conclude_from(whole), whole
        for seeds in plan_looks(10):
            runs = [replace(run, arms=run.arms[:seeds]) for run in whole.runs]
            seen = replace(whole, runs=runs, interim=tuple(plan_looks(10)))
            found = conclude_from(seen)
            if judge_interim(found)["ends"]:
                break
        return found, seen

    @property
    def is_balanced(self) -> bool:
        """Whether each run has as many seeds, and each seed has all answers."""
        return not self.lost and not self.baseline_seeds

    @property
    def true_gain(self) -> float:
        """What the first run is better by, as a share of tasks."""
        z = np.random.default_rng(0).normal(0, 1, 200_000) * np.sqrt(1.09 + self.seed_sd**2)
        return float((1 / (1 + np.exp(-z - self.gain)) - 1 / (1 + np.exp(-z))).mean())


def welch_supports(evidence: Evidence, *, only: str = "") -> bool:
    """Welch's t-test on the means of the seeds, with Bonferroni's correction; `only` one run where it is named."""
    means = {
        run.name: np.array([arm.scorings["test", "suite"].scores["pass@1"].value for arm in run.arms])
        for run in evidence.runs
    }
    base = means.pop("baseline")
    level = FIRST_ERROR / len(means)
    found: list[str] = []
    for name, values in means.items():
        parts = [one.var(ddof=1) / len(one) for one in (values, base)]
        doubt = sum(part**2 / (len(one) - 1) for part, one in zip(parts, (values, base), strict=True))
        if doubt > 0:
            t, df = (values.mean() - base.mean()) / math.sqrt(sum(parts)), sum(parts) ** 2 / doubt
            found += [name] if 1 - t_cdf(float(t), float(df)) < level else []
    return only in found if only else bool(found)


def mixed_supports(evidence: Evidence, *, only: str = "") -> bool:
    """A linear mixed model of each run and the baseline, by REML, tested as such models are: by Wald's z, Bonferroni.

    Tasks, run-by-task interactions and seeds within runs are random. Every seed answered every task, so the estimates
    are those of the analysis of variance, with components below 0 pooled into the residual.
    """
    scores = {
        run.name: np.array(
            [[*(arm.scorings["test", "suite"].scores["pass@1"].per_task or {}).values()] for arm in run.arms]
        )
        for run in evidence.runs
    }
    base = scores.pop("baseline")
    level = FIRST_ERROR / len(scores)
    found = [name for name, values in scores.items() if 1 - NormalDist().cdf(_wald(values, base)) < level]
    return only in found if only else bool(found)


def _wald(one: np.ndarray, other: np.ndarray) -> float:
    values = np.stack([one, other])
    runs, seeds, tasks = values.shape
    run, of_task, of_seed = values.mean((1, 2)), values.mean(1), values.mean(2)
    interaction = of_task - run[:, None] - values.mean((0, 1)) + values.mean()
    rest = values - of_task[:, None] - of_seed[:, :, None] + run[:, None, None]
    parts = {
        "interaction": (seeds * (interaction**2).sum(), (runs - 1) * (tasks - 1)),
        "seed": (tasks * ((of_seed - run[:, None]) ** 2).sum(), runs * (seeds - 1)),
    }
    square, df = float((rest**2).sum()), runs * (seeds - 1) * (tasks - 1)
    for name in sorted(parts, key=lambda name: parts[name][0] / parts[name][1]):
        if parts[name][0] / parts[name][1] < square / df:
            (more, known), parts[name] = parts[name], (0.0, 0)
            square, df = square + more, df + known
    squares = [part / known if known else square / df for part, known in parts.values()]
    variance = 2 / (seeds * tasks) * (sum(squares) - square / df)
    return float((run[0] - run[1]) / math.sqrt(variance))


def list_cells() -> Iterator[tuple[str, str, World, str]]:
    """Name, what is counted, world and aim."""
    gain = TWELVE_POINTS
    for name, world, aim in (
        ("K2 S3 T100, +12 points", World(2, gain=gain), ">= 88"),
        ("K2 S3 T30, +12 points", World(2, tasks=30, gain=gain), ""),
        ("K7 S3 T100, +12 points", World(7, gain=gain), ">= 83"),
        ("K7 S3 T100, val selects, +12 points", World(7, gain=gain, validated=True), ""),
        ("K3 S5 T100 m2, +6 points", World(3, 5, samples=2, gain=gain / 2), ""),
        ("K2 S3 T20 m1, +12 points", World(2, tasks=20, samples=1, gain=gain), ""),
        ("K2 until decided, +12 points", World(2, gain=gain, decided=True), ""),
    ):
        yield f"power: {name}", "power", world, aim
    for name, world, aim in (
        ("K7 S2 T100", World(7, 2, gain=gain), ""),
        ("K7, baseline 6 / candidates 2 seeds", World(7, 2, gain=gain, baseline_seeds=6), ">= 40"),
    ):
        yield f"interval clears: {name}", "clears", world, aim
    for name, world in {
        "K2 S3 T100": World(2),
        "K7 S3 T100": World(7),
        "K20 S3 T100": World(20),
        "K2 S3 T20 m1": World(2, tasks=20, samples=1),
        "K7, 10 clusters": World(7, clusters=10),
        "K2, 5 clusters": World(2, clusters=5),
        "K7, 10 % of wrong lost": World(7, lost=0.1),
        "K7, val selects": World(7, validated=True),
        "K2 until decided": World(2, decided=True),
        "K2 S3, seed sd x2.5": World(2, seed_sd=0.25),
    }.items():
        yield f"false: {name}", "false", world, "<= 3"
    for name, world in {
        "K2, baseline x5": World(2, noisy_baseline=5.0),
        "K2, candidate x5": World(2, noisy_run=5.0),
        "K7, baseline x5": World(7, noisy_baseline=5.0),
        "K7, candidate x5": World(7, noisy_run=5.0),
    }.items():
        yield f"false: {name}", "false", world, "<= 5"


def measure(what: str, world: World, experiments: int, seed: int) -> tuple[float, float, float | None, float]:
    """Share of experiments that support, by product, Welch and mixed model; that cover all effects."""
    random, truth = np.random.default_rng(seed), world.true_gain if world.gain else 0.0
    hits = welch = mixed = covered = 0
    only = "" if what == "false" else "run01"
    for _ in range(experiments):
        found, evidence = world.conclude(random)
        first = found.comparison("run01")
        if what == "clears":
            hits += first is not None and (first.low or 0.0) > 0
        else:
            hits += found.verdict == "supported" and (what == "false" or found.judged == "run01")
        welch += welch_supports(evidence, only=only)
        mixed += world.is_balanced and mixed_supports(evidence, only=only)
        covered += all(
            (one.low or -1.0) <= (truth if one.run == "run01" else 0.0) <= (one.high or 1.0)
            for one in found.comparisons
        )
    by_model = mixed / experiments if world.is_balanced else None
    return hits / experiments, welch / experiments, by_model, covered / experiments


def show(share: float, experiments: int) -> str:
    """A share in percent with its standard error."""
    return f"{100 * share:.1f} ({100 * math.sqrt(max(share * (1 - share), 1e-9) / experiments):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", type=int, default=600)
    parser.add_argument("--cells", default="")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print("| cell | aim | product | Welch on seed means | mixed model | coverage |\n|---|---|---|---|---|---|")
    for name, what, world, aim in list_cells():
        if arguments.cells in name:
            n = arguments.experiments
            found, welch, mixed, covered = measure(what, world, n, arguments.seed)
            cells = show(found, n), show(welch, n), "-" if mixed is None else show(mixed, n), show(covered, n)
            print(f"| {name} | {aim} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
