"""How often the verdict is wrong, in worlds whose truth is known: the real rules on simulated scores, without files.

A model solves a task with a probability whose logit is the sum of the task's ease, a bent of the recipe for the task,
the luck of the seed, and the true gain of the recipe. A baseline and six candidates, three seeds, 100 tasks, four
samples of each. `docs/decisions/0009-conclusions.md` has the figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from evsys_sdk.experiment.conclusion import Conclusion
from evsys_sdk.experiment.conclusion.verdict import conclude_from

from .conclusion_records import evidence

pytestmark = pytest.mark.slow

RUNS = ["baseline", "a", "b", "c", "d", "e", "f"]


@dataclass(frozen=True)
class World:
    """How scores come about."""

    gain: float = 0.0
    """What `a` is truly better by, in logits; 0.6 are about 11 points."""
    seed_sd: float = 0.1
    bent_sd: float = 0.3
    tasks: int = 100
    seeds: int = 3
    erratic: str = ""
    """A run whose seeds are five times as far apart as those of the others."""

    def scores(self, draw: np.random.Generator, samples: int = 4) -> dict[str, np.ndarray]:
        ease = draw.normal(0, 1, self.tasks)
        found = {}
        for run in RUNS:
            spread = self.seed_sd * (5 if run == self.erratic else 1)
            bent, luck = draw.normal(0, self.bent_sd, self.tasks), draw.normal(0, spread, (self.seeds, 1))
            logit = ease + bent + luck + (self.gain if run == "a" else 0)
            found[run] = draw.binomial(samples, 1 / (1 + np.exp(-logit))) / samples
        return found


@dataclass(frozen=True)
class Rates:
    supported: float
    right: float
    """Supported, and of the run that is better."""
    refuted: float
    argmax: float
    """How often the highest score is not the baseline's, which is all that argmax asks."""
    flattery: float
    """Mean difference of the judged run."""
    adjusted: float
    """The same after the adjustment for having been chosen."""


def conclusions(world: World, count: int, seed: int) -> Iterator[Conclusion]:
    draw = np.random.default_rng(seed)
    return (conclude_from(evidence(world.scores(draw))) for _ in range(count))


def rates(world: World, count: int, seed: int = 1) -> Rates:
    found = list(conclusions(world, count, seed))
    judged = [one.comparison(one.judged) for one in found]
    return Rates(
        supported=float(np.mean([one.verdict == "supported" for one in found])),
        right=float(np.mean([one.verdict == "supported" and one.best_arm == one.judged == "a" for one in found])),
        refuted=float(np.mean([one.verdict == "refuted" for one in found])),
        argmax=float(
            np.mean([max(run.mean or 0.0 for run in one.runs) > (one.run("baseline").mean or 0.0) for one in found])
        ),
        flattery=float(np.mean([one.difference for one in judged])),
        adjusted=float(np.mean([one.adjusted for one in judged])),
    )


def test_nothing_is_better_and_almost_nothing_is_called_so() -> None:
    found = rates(World(), 1000)
    assert found.supported <= 0.05
    assert found.argmax > 0.8
    assert found.flattery > 0.015
    assert abs(found.adjusted) < 0.5 * found.flattery


def test_that_also_holds_where_seeds_matter_much() -> None:
    found = rates(World(seed_sd=0.25), 300)
    assert found.supported <= 0.05


@pytest.mark.parametrize("erratic", ["baseline", "c"])
def test_that_also_holds_where_one_run_is_far_less_stable_than_the_others(erratic: str) -> None:
    found = rates(World(erratic=erratic), 200)
    assert found.supported <= 0.08  # 0.05 and two standard errors of 200 worlds


def test_a_gain_of_eleven_points_is_found() -> None:
    found = rates(World(gain=0.6), 300)
    assert 0.10 < found.flattery < 0.14
    assert found.right >= 0.8
    assert found.refuted == 0


def test_a_single_seed_never_earns_more_than_a_promise() -> None:
    found = list(conclusions(World(gain=1.5, seeds=1), 50, seed=2))
    assert {one.verdict for one in found} == {"promising_unconfirmed"}
