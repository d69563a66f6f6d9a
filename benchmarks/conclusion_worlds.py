"""Worlds whose truth is known, put through the real `conclude_from`: what `conclusions.py` counts in.

A model solves a task with a probability whose logit is the sum of the task's ease (sd 1), a bent of the recipe for the
task (sd 0.3; shared by the tasks of a cluster where there are any), the luck of the seed (sd 0.1) and the true gain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from evsys_sdk.config import Metadata
from evsys_sdk.config.experiment import plan_looks
from evsys_sdk.experiment.conclusion.evidence import ArmEvidence, Evidence, LentNoise, RunEvidence, Score, Scoring
from evsys_sdk.experiment.conclusion.interim import judge_interim
from evsys_sdk.experiment.conclusion.model import Comparison, Conclusion
from evsys_sdk.experiment.conclusion.verdict import conclude_from
from evsys_sdk.experiment.hypothesis import hypothesis_sha256
from evsys_sdk.experiment.statistics.two_level import RunScores, seed_noise

TWELVE_POINTS = 0.6
"""Logits; about 12 points where a task is solved half of the time."""


@dataclass(frozen=True)
class World:
    """How scores come about."""

    arms: int = 7
    """Runs, the baseline among them."""
    seeds: int = 3
    baseline_seeds: int | None = None
    tasks: int = 100
    samples: int = 4
    gain: float = 0.0
    """Of the first run, in logits."""
    seed_sd: float = 0.1
    clusters: int | None = None
    missing: float = 0.0
    """Share of the candidates' wrong samples that get lost."""
    erratic: float = 1.0
    """How many times as far apart the seeds of the baseline lie."""
    erratic_run: float = 1.0
    shared_seeds: bool = False
    """Whether a seed does the same to all runs."""
    heavy_tails: bool = False
    """Whether bents and luck come from Student's t with 3 degrees of freedom."""
    ease: float = 0.0
    """Mean of the logit; 3 is near all, -3 near none."""
    validated: bool = False
    """Whether a validation set of the same size chooses."""
    history: int = 0
    """Earlier experiments of the same shape on the same tasks, all of which lend their noise."""
    seed_sd_before: float | None = None
    """Of the seeds in them; by default the same as now."""
    erratic_before: float = 1.0
    """How many times as far apart the seeds of one run in each of them lay."""

    def draw(self, random: np.random.Generator) -> Evidence:
        names = ["baseline", *(f"run{number:02d}" for number in range(1, self.arms))]
        common = self._luck(random, self.seeds) if self.shared_seeds else None
        lucks = {name: self._luck_of(random, name, common) for name in names}
        ease = random.normal(self.ease, 1.0, (2, self.tasks))
        sets = {"test": self._score(random, lucks, ease[0])}
        sets["val"] = self._score(random, lucks, ease[1]) if self.validated else {}
        keys = [("val", "suite"), ("test", "suite")] if self.validated else [("val", "suite")]
        tables = [sets["val"], sets["test"]] if self.validated else [sets["test"]]
        runs = [
            RunEvidence(
                name,
                [
                    ArmEvidence(
                        f"{name}-{at}",
                        name,
                        at if self.shared_seeds else at + 1000 * place,
                        "completed",
                        scorings={
                            key: replace(table[name][at], key=key) for key, table in zip(keys, tables, strict=True)
                        },
                    )
                    for at in range(len(lucks[name]))
                ],
            )
            for place, name in enumerate(names)
        ]
        lent = self._lend(random, ease[0])
        return Evidence("simulated", _ABOUT, runs, lent=lent, registered=True, registered_sha256=_SHA256)

    def _luck_of(self, random: np.random.Generator, name: str, common: np.ndarray | None) -> np.ndarray:
        seeds = self.baseline_seeds or self.seeds if name == "baseline" else self.seeds
        unstable = "run02" if self.arms > 2 else "run01"
        times = self.erratic if name == "baseline" else self.erratic_run if name == unstable else 1.0
        return common if common is not None else self._luck(random, seeds) * times

    def _luck(self, random: np.random.Generator, seeds: int) -> np.ndarray:
        return self._noise(random, (seeds, 1)) * self.seed_sd

    def _noise(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return random.standard_t(3, shape) / np.sqrt(3) if self.heavy_tails else random.standard_normal(shape)

    def _score(
        self, random: np.random.Generator, lucks: dict[str, np.ndarray], ease: np.ndarray
    ) -> dict[str, list[Scoring]]:
        names = [f"t{number:04d}" for number in range(self.tasks)]
        groups = None if self.clusters is None else np.arange(self.tasks) % self.clusters
        clusters = {} if groups is None else {task: str(group) for task, group in zip(names, groups, strict=True)}
        found: dict[str, list[Scoring]] = {}
        for name, luck in lucks.items():
            bent = self._noise(random, (self.tasks if groups is None else self.clusters or 1,)) * 0.3
            logit = ease + (bent if groups is None else bent[groups]) + luck + (self.gain if name == "run01" else 0.0)
            right = random.binomial(self.samples, 1 / (1 + np.exp(-logit)))
            lost = 0 if name == "baseline" else self.missing
            found[name] = [self._scoring(random, names, row, lost, clusters) for row in right]
        return found

    def _scoring(
        self, random: np.random.Generator, names: list[str], right: np.ndarray, lost: float, clusters: dict[str, str]
    ) -> Scoring:
        if not lost:
            values = right / self.samples
            score = Score(
                float(values.mean()), dict(zip(names, values.tolist(), strict=True)), self.samples * len(names)
            )
            return Scoring(("val", "suite"), 1, "sha", {"pass@1": score}, clusters=clusters)
        gone = random.binomial(self.samples - right, lost)
        left = self.samples - gone
        per_task = {task: r / n for task, r, n in zip(names, right.tolist(), left.tolist(), strict=True) if n}
        samples = {
            task: [1.0] * r + [0.0] * (n - r) + [None] * g
            for task, r, n, g in zip(names, right.tolist(), left.tolist(), gone.tolist(), strict=True)
        }
        score = Score(float(np.mean(list(per_task.values()))), per_task, int(left.sum()))
        return Scoring(
            ("val", "suite"), 1, "sha", {"pass@1": score}, int(gone.sum()), clusters=clusters, samples=samples
        )

    def _lend(self, random: np.random.Generator, ease: np.ndarray) -> list[LentNoise]:
        """What `conclusion.earlier` would find in the folder of the project."""
        before = replace(self, gain=0.0, seed_sd=self.seed_sd if self.seed_sd_before is None else self.seed_sd_before)
        lucks = {
            f"old{number}-{run}": before._luck(random, self.seeds) * (1.0 if run else self.erratic_before)
            for number in range(self.history)
            for run in range(self.arms)
        }
        tables = [
            [list((one.scores["pass@1"].per_task or {}).values()) for one in scorings]
            for scorings in before._score(random, lucks, ease).values()
        ]
        noise = seed_noise([RunScores(np.array(table)) for table in tables])
        return [] if noise is None else [LentNoise("sha", "pass@1", self.samples * self.tasks, noise, len(tables))]

    @property
    def true_gain(self) -> float:
        """What the first run is better by, as a share of tasks; over the bents, the lucks and the tasks."""
        z = np.random.default_rng(0).normal(0, 1, 200_000) * np.sqrt(1 + 0.09 + self.seed_sd**2) + self.ease
        return float(np.mean(1 / (1 + np.exp(-z - self.gain)) - 1 / (1 + np.exp(-z))))


_ABOUT = Metadata.model_validate({"hypothesis": "some run is better", "success_metric": "pass@1"})
_SHA256 = hypothesis_sha256(_ABOUT)


@dataclass(frozen=True)
class Cell:
    """A world, and what is asked of it."""

    name: str
    world: World
    asks: str = "false"
    """`false`: how often it is wrongly supported; `power`: how often rightly; `printed`: at the printed effect."""
    at_least: float | None = None
    attempts: str = ""
    """`fresh`: five attempts; `seeds`: one that gets seeds from 2 to 10; `decided`: `until: decided` with 10 seeds."""


@dataclass
class Tally:
    """What was seen in the worlds of a cell."""

    worlds: int = 0
    supported: int = 0
    right: int = 0
    covered: int = 0
    detectable: list[float] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    """That `until: decided` trained each run with."""

    def add(self, conclusion: Conclusion, truth: float) -> None:
        self.worlds += 1
        self.supported += conclusion.verdict == "supported"
        self.right += conclusion.verdict == "supported" and conclusion.judged == "run01"
        self.covered += all(_holds(one, truth if one.run == "run01" else 0.0) for one in conclusion.comparisons)
        if conclusion.sequential is not None:
            self.seeds.append(conclusion.sequential.seeds)
        if conclusion.smallest_detectable is not None:
            self.detectable.append(conclusion.smallest_detectable)

    def merge(self, other: Tally) -> None:
        for name, seen in vars(other).items():
            setattr(self, name, getattr(self, name) + seen)


def _holds(one: Comparison, truth: float) -> bool:
    """Whether the interval that is printed holds the truth."""
    return one.low is None or one.high is None or one.low <= truth <= one.high


def main_grid() -> Iterator[Cell]:
    for arms, seeds, tasks, samples in itertools.product((2, 7, 20), (2, 3, 5), (10, 30, 100, 1000), (1, 4)):
        yield Cell(
            f"arms {arms}, seeds {seeds}, tasks {tasks}, samples {samples}", World(arms, seeds, None, tasks, samples)
        )


def other_factors() -> Iterator[Cell]:
    shapes = [(2, 2, 100), (2, 3, 30), (2, 3, 100), (7, 2, 100), (7, 3, 100), (7, 3, 30), (7, 5, 1000), (20, 3, 100)]
    for (name, changes), (arms, seeds, tasks) in itertools.product(FACTORS.items(), shapes):
        yield Cell(f"{name}: arms {arms}, seeds {seeds}, tasks {tasks}", World(arms, seeds, None, tasks, **changes))


FACTORS: dict[str, dict] = {
    "erratic baseline": {"erratic": 5.0},
    "erratic candidate": {"erratic_run": 5.0},
    "5 clusters": {"clusters": 5},
    "10 clusters": {"clusters": 10},
    "10 % of wrong lost": {"missing": 0.1},
    "30 % of wrong lost": {"missing": 0.3},
    "heavy tails": {"heavy_tails": True},
    "rates near 1": {"ease": 3.0},
    "rates near 0": {"ease": -3.0},
    "seed sd .25": {"seed_sd": 0.25},
    "shared seeds": {"shared_seeds": True},
    "shared seeds, sd .25": {"shared_seeds": True, "seed_sd": 0.25},
    "validation chooses": {"validated": True},
    "history of 3": {"history": 3},
    "history of 3, erratic baseline": {"history": 3, "erratic": 5.0},
    "history of 3, erratic candidate": {"history": 3, "erratic_run": 5.0},
    "history of 10 too quiet": {"history": 10, "seed_sd_before": 0.1, "seed_sd": 0.25},
    "history of 10 erratic": {"history": 10, "erratic_before": 5.0},
}


def powers() -> Iterator[Cell]:
    gain = {"gain": TWELVE_POINTS}
    yield Cell("power: default world", World(**gain), "power", 92)
    yield Cell("power: 9 baseline seeds + 6 x 2", World(seeds=2, baseline_seeds=9, **gain), "power")
    yield Cell("false: 9 baseline seeds + 6 x 2, erratic", World(seeds=2, baseline_seeds=9, erratic=5.0))
    yield Cell("power: 20 runs, 50 tasks, val", World(20, 3, None, 50, validated=True, **gain), "power", 75)
    yield Cell("power: 20 runs, 50 tasks, no val", World(20, 3, None, 50, **gain), "power")
    yield Cell("power: 2 runs, 30 tasks", World(2, 3, None, 30, **gain), "power", 70)
    for name, world, aim in (
        ("default world", World(**gain), 92),
        ("20 runs, 50 tasks, val", World(20, 3, None, 50, validated=True, **gain), 75),
        ("2 runs, 30 tasks", World(2, 3, None, 30, **gain), 70),
        ("2 runs, 2 seeds", World(2, 2, **gain), None),
    ):
        for history in (3, 10):
            yield Cell(f"power: {name}, history of {history}", replace(world, history=history), "power", aim)
    yield Cell("power: 2 runs, 2 seeds", World(2, 2, **gain), "power")
    yield Cell("power: default, shared seeds, sd .25", World(shared_seeds=True, seed_sd=0.25, **gain), "power")
    yield Cell("power: default, seed sd .25", World(seed_sd=0.25, **gain), "power")
    yield Cell("power: 10 tasks", World(tasks=10, **gain), "power")
    yield Cell("power: one sample", World(samples=1, **gain), "power")
    yield Cell("power: two seeds", World(seeds=2, **gain), "power")
    yield Cell("power: rates near 1 (+1.5 logits)", World(ease=2.5, gain=1.5), "power")
    for shape in ((7, 3, None, 100), (2, 3, None, 30), (20, 3, None, 50), (7, 5, None, 100), (2, 2, None, 100)):
        yield Cell(f"printed effect: arms {shape[0]}, seeds {shape[1]}, tasks {shape[3]}", World(*shape), "printed")


def attempts() -> Iterator[Cell]:
    yield Cell("5 fresh attempts", World(), attempts="fresh")
    yield Cell("5 fresh attempts: 2 arms", World(2), attempts="fresh")
    yield Cell("seeds 2..10 until supported", World(2), attempts="seeds")
    yield Cell("seeds 2..10 until supported, sd .25", World(2, seed_sd=0.25), attempts="seeds")
    yield Cell("seeds 2..10 until supported, 7 arms", World(7), attempts="seeds")
    for name, world in {
        "2 arms": World(2),
        "2 arms, sd .25": World(2, seed_sd=0.25),
        "2 arms, 30 tasks": World(2, tasks=30),
        "2 arms, erratic baseline": World(2, erratic=5.0),
        "2 arms, erratic candidate": World(2, erratic_run=5.0),
        "7 arms": World(7),
        "7 arms, erratic baseline": World(7, erratic=5.0),
        "7 arms, val": World(7, validated=True),
    }.items():
        yield Cell(f"until decided: {name}", world, attempts="decided")
    for name, world in {
        "2 arms": World(2),
        "2 arms, sd .25": World(2, seed_sd=0.25),
        "2 arms, 30 tasks": World(2, tasks=30),
        "7 arms": World(7),
    }.items():
        gains = replace(world, gain=TWELVE_POINTS)
        yield Cell(f"power: until decided, {name}", gains, "power", attempts="decided")
        yield Cell(f"power: 10 seeds at once, {name}", replace(gains, seeds=10), "power")
    yield Cell("power: seeds 2..10, sd .25", World(2, seed_sd=0.25, gain=TWELVE_POINTS), "power", attempts="seeds")


def whole_product() -> Iterator[Cell]:
    for cell, (name, changes) in itertools.product(main_grid(), FACTORS.items()):
        yield Cell(f"{name}: {cell.name}", replace(cell.world, **changes))


def all_cells(*, full: bool = False) -> list[Cell]:
    """The grid: what has an aim first; `full` is the whole product of the factors."""
    return [*powers(), *attempts(), *other_factors(), *main_grid(), *(whole_product() if full else ())]


def measure_cell(cell: Cell, worlds: int, seed: int, start: int = 0) -> Tally:
    """Some worlds of a cell, in this process; `start` is the number of the first of them."""
    random = np.random.default_rng([seed, start, *cell.name.encode()])
    tally, world = Tally(), cell.world
    truth = world.true_gain if world.gain else 0.0
    for _ in range(worlds):
        tally.add(_attempt(cell, world, random), truth)
    return tally


def before_effect(cell: Cell) -> Cell:
    """The world of a cell that asks for the power at a printed effect, before there is any: what is printed in it."""
    return Cell(f"{cell.name}, before there is one", cell.world)


def with_effect(cell: Cell, before: Tally) -> Cell:
    """The same cell with the effect that is typically printed."""
    return replace(cell, world=replace(cell.world, gain=_logits_for(cell.world, float(np.median(before.detectable)))))


def _attempt(cell: Cell, world: World, random: np.random.Generator) -> Conclusion:
    """The conclusion that someone ends up with who stops at the first one that supports."""
    if not cell.attempts:
        return conclude_from(world.draw(random))
    if cell.attempts == "fresh":
        for attempt in range(1, 6):
            found = conclude_from(replace(world.draw(random), attempt=attempt))
            if found.verdict == "supported":
                break
        return found
    whole = replace(world, seeds=10).draw(random)
    planned = cell.attempts == "decided"
    looks = plan_looks(10) if planned else range(2, 11)
    for seeds in looks:
        runs = [replace(run, arms=run.arms[:seeds]) for run in whole.runs]
        found = conclude_from(replace(whole, runs=runs, interim=tuple(looks)))
        if judge_interim(found).ends if planned else found.verdict == "supported":
            break
    return found


def _logits_for(world: World, effect: float) -> float:
    low, high = 0.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if replace(world, gain=middle).true_gain < effect else (low, middle)
    return low
