"""What no test could do better: power beside that of one which knows the noise of this very world.

    python benchmarks/conclusion_bounds.py

`knows the noise`: the difference alone, compared with what luck does to the largest difference in worlds without any
gain, 2.5 % of which lie beyond. Nobody who has to estimate the noise can do better, and it guards against nothing.

`and guards`: the most powerful of all tests of two runs, by Neyman and Pearson, that wrongly supports in 2.5 % where
both are equally noisy and in 3.5 % where the seeds of either of them lie five times as far apart as those of the other.
It knows all of these noises and the effect it looks for, and only not which of the worlds it is in: what is measured is
the difference, and how far the seeds of each run lie apart. Scores are taken to be normal.

Of several runs, the same for a test that judges each of them by its own difference to the baseline and by the seeds of
the two, as one must who does not know how good the others are; all runs together keep the error rates. It is granted
that the baseline is no erratic one, and fears a compared run that is.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from conclusion_worlds import TWELVE_POINTS, World

_CAPS = (0.025, 0.035, 0.035)
_ERRATIC = 25.0
_ROUNDS = 120
_SEEN = 200_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    gain = {"gain": TWELVE_POINTS}
    for name, world in {
        "default world": World(**gain),
        "20 runs, 50 tasks, val": World(20, 3, None, 50, validated=True, **gain),
        "2 runs, 30 tasks": World(2, 3, None, 30, **gain),
        "2 runs, 2 seeds": World(2, 2, **gain),
        "two seeds": World(seeds=2, **gain),
    }.items():
        random = np.random.default_rng(given.seed)
        knows = power_knowing_noise(world, given.worlds, random)
        guards = "" if world.validated else f"  and guards {100 * power_with_guard(world, random):5.1f}"
        print(f"{name:<26} knows the noise {100 * knows:5.1f}{guards}", flush=True)


def power_knowing_noise(world: World, worlds: int, random: np.random.Generator) -> float:
    """How often the gain of the first run exceeds what luck does to the run that is looked at, known exactly."""
    nothing = World(**{**vars(world), "gain": 0.0})
    luck = np.array([_looked_at(nothing, random)[0] for _ in range(worlds)])
    bound = float(np.quantile(luck, 1 - _CAPS[0]))
    found = [_looked_at(world, random) for _ in range(worlds)]
    return float(np.mean([difference > bound and first for difference, first in found]))


def _looked_at(world: World, random: np.random.Generator) -> tuple[float, bool]:
    """The difference of the run that validation prefers, else the largest one; and whether that is the first run."""
    keys = [("val", "suite"), ("test", "suite")] if world.validated else [("val", "suite")] * 2
    runs = world.draw(random).runs
    chosen, told = (
        np.array([np.mean([arm.scorings[key].scores["pass@1"].value for arm in run.arms]) for run in runs])
        for key in keys
    )
    at = int(np.argmax(chosen[1:])) + 1
    return float(told[at] - told[0]), at == 1


def power_with_guard(world: World, random: np.random.Generator) -> float:
    """The power of the best test that keeps its error rates in all worlds it fears; see the top."""
    logit = random.normal(world.ease, math.sqrt(1 + 0.09 + world.seed_sd**2), 400_000)
    rate = 1 / (1 + np.exp(-logit))
    slope = float((rate * (1 - rate)).mean())
    effect = float((1 / (1 + np.exp(-logit - world.gain)) - rate).mean())
    training, answers = (world.seed_sd * slope) ** 2, slope / world.samples / world.tasks
    suiting = (0.3 * slope) ** 2 / world.tasks
    known, seeds, runs = world.seeds - 1, world.seeds, world.arms

    def draw(mean: float, run: float, base: float) -> tuple[np.ndarray, np.ndarray]:
        """Differences to the baseline, and the variance of seeds, that of the baseline first; `mean` is the gain of the
        first run, `run` and `base` say how many times as noisy the last run and the baseline are."""
        times = np.ones(runs)
        times[-1], times[0] = run, base
        variance = training * times + answers
        scores = random.normal(0, np.sqrt(suiting + variance / seeds), (_SEEN, runs))
        scores[:, 1] += mean
        return scores[:, 1:] - scores[:, :1], variance * random.chisquare(known, (_SEEN, runs)) / known

    def log_density(seen: tuple[np.ndarray, np.ndarray], mean: float, run: float, base: float) -> np.ndarray:
        """Of what is seen of each run and the baseline, apart from the others."""
        of_run, of_base = (training * times + answers for times in (run, base))
        whole = 2 * suiting + (of_run + of_base) / seeds
        found = -((seen[0] - mean) ** 2) / whole / 2 - math.log(whole) / 2
        found = found - known / 2 * (seen[1][:, 1:] / of_run + math.log(of_run))
        return found - known / 2 * (seen[1][:, :1] / of_base + math.log(of_base))

    feared = [(1.0, 1.0), (_ERRATIC, 1.0), (1.0, _ERRATIC)][: 3 if runs == 2 else 2]
    weights = np.array([0.0, -8.0, -8.0])[: len(feared)]

    def densities(seen: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        return log_density(seen, effect, 1.0, 1.0), np.array([log_density(seen, 0.0, *one) for one in feared])

    def excess(seen: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """By how much each run is likelier to be better than to be lucky; it is supported where that is above 0."""
        return seen[0] - np.logaddexp.reduce(seen[1] + weights[:, None, None], axis=0)

    lucky = [densities(draw(0.0, *one)) for one in feared]
    right = densities(draw(effect, 1.0, 1.0))
    for turn in range(_ROUNDS):  # a world in which too many pass weighs more, until each has what it may have
        passes = [max(float((excess(one).max(axis=1) > 0).mean()), 1e-6) for one in lucky]
        over = [share / cap for share, cap in zip(passes, _CAPS, strict=False)]
        weights = np.maximum(weights + 0.5 / (1 + turn / 40) * np.clip(np.log(over), -1, 1), -30.0)
    found = excess(right)
    return float(((found.max(axis=1) > 0) & (found.argmax(axis=1) == 0)).mean())


if __name__ == "__main__":
    main()
