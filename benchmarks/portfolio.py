"""Regret of portfolio campaigns on simulated tasks of known optimum, with the product's own policy.

    python benchmarks/portfolio.py                           1,000 campaigns, seeds 1,000,000 and up
    python benchmarks/portfolio.py --seed 0                  other tasks, for development

A task has a base score (uniform, 0.05 to 0.6) and 4 to 7 of seven families of strategies. The true score of a family
after cost c (the whole budget is 1) is base + gain * rise(c). Its gain is a share of 1 - base, Beta distributed with
the mean below; one family in four gains nothing, and on one task in five none does. Its time constant is log-uniform.

    family          mean gain   time constant   rise
    prompt          0.10        1 % to 4 %      exponential
    data repair     0.15        2 % to 10 %     exponential
    sft             0.25        2 % to 10 %     exponential, then overfitting for half of them
    preference      0.20        3 % to 15 %     power law
    distillation    0.30        4 % to 20 %     power law
    rl after sft    0.35        5 % to 25 %     exponential after a delay of 2 % to 6 %
    rl              0.35        8 % to 40 %     exponential after a delay of 0 % to 6 %

`--tasks independent` draws gain (mean 0.2), time constant (1 % to 40 %) and shape of every family alike instead. The
policies know none of this; families have no names. A score is measured three times in a slice, on the same 100
validation tasks (binomial noise) with a seed effect of the run (normal, sd 0.015). All policies have the same budget in
slices of 5 %: 55 % of it to explore, 45 % to train the chosen family with three fresh seeds, each to 15 %, and to judge
them on a test set with the product's verdict.

    portfolio   the product: loop/campaigns/policy.py
    greedy      one probe each, then every slice to the family whose last slice scored best, on average
    fixed       one family, drawn at random before the first look
    uniform     slices in turn

Regret: the true score of the best family at 15 % of the budget, less that of the chosen one. False confirmations: the
share of campaigns whose chosen family is not better than the base by more than half a point, yet `supported`, and the
same as a share of the campaigns whose chosen family is not.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from conclusions import World

from evsys_sdk.loop.campaigns.policy import CONFIRM, FamilyState, Observed, Point, decide

TASKS = 100
SEED_SD = 0.015
SLICE = 0.05
_NOTHING = 0.005


@dataclass(frozen=True)
class Family:
    """The learning curve of a family."""

    shape: str
    gain: float
    pace: float
    delay: float = 0.0

    def rise(self, cost: float) -> float:
        late = max(cost - self.delay, 0.0)
        match self.shape:
            case "power":
                return 1 - (1 + late / self.pace) ** -1.0
            case "overfit":
                return (1 - math.exp(-late / self.pace)) * math.exp(-late / (8 * self.pace))
            case _:
                return 1 - math.exp(-late / self.pace)


KINDS = {
    "prompt": (0.10, (0.01, 0.04), ["exponential"], (0.0, 0.0)),
    "data repair": (0.15, (0.02, 0.10), ["exponential"], (0.0, 0.0)),
    "sft": (0.25, (0.02, 0.10), ["exponential", "overfit"], (0.0, 0.0)),
    "preference": (0.20, (0.03, 0.15), ["power"], (0.0, 0.0)),
    "distillation": (0.30, (0.04, 0.20), ["power"], (0.0, 0.0)),
    "rl after sft": (0.35, (0.05, 0.25), ["exponential"], (0.02, 0.06)),
    "rl": (0.35, (0.08, 0.40), ["exponential"], (0.0, 0.06)),
}
"""Mean gain, range of the time constant, shapes, range of the delay."""
_ALIKE = (0.20, (0.01, 0.40), ["exponential", "power", "overfit"], (0.0, 0.06))


@dataclass(frozen=True)
class Task:
    """A simulated task."""

    base: float
    families: tuple[Family, ...]

    @classmethod
    def draw(cls, random: np.random.Generator, *, independent: bool = False) -> Task:
        base = float(random.uniform(0.05, 0.6))
        hopeless = random.random() < 0.2
        families: list[Family] = []
        for kind in random.permutation(list(KINDS))[: int(random.integers(4, 8))]:
            mean, (fast, slow), shapes, delays = _ALIKE if independent else KINDS[str(kind)]
            gain = 0.0 if hopeless or random.random() < 0.25 else float(random.beta(2, 2 / mean - 2)) * (1 - base)
            pace = float(np.exp(random.uniform(np.log(fast), np.log(slow))))
            families.append(Family(str(random.choice(shapes)), gain, pace, float(random.uniform(*delays))))
        return cls(base, tuple(families))

    def true(self, family: int, cost: float) -> float:
        one = self.families[family]
        return self.base + one.gain * one.rise(cost)


class Campaign:
    """One campaign on one task: what was observed so far."""

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.seed = task, seed
        self._random = np.random.default_rng([seed, 1])
        self._luck = self._random.normal(0, SEED_SD, len(task.families))
        base = self._measure(task.base)
        self.seen = Observed(
            [FamilyState(str(at)) for at in range(len(task.families))], 1.0, 1.0, replace(base, cost=0.0), seed=seed
        )

    def _measure(self, true: float) -> Point:
        score = self._random.binomial(TASKS, min(max(true, 0.0), 1.0)) / TASKS
        return Point(0.0, score, math.sqrt(max(score * (1 - score), 0.01) / TASKS + SEED_SD**2))

    def spend(self, family: int, amount: float) -> None:
        one = self.seen.families[family]
        costs = [one.spent + amount * part for part in (1 / 3, 2 / 3, 1)]
        luck = self._luck[family]
        found = [replace(self._measure(self.task.true(family, cost) + luck), cost=cost) for cost in costs]
        changed = replace(one, spent=costs[-1], points=(*one.points, *found))
        families = [changed if at == family else other for at, other in enumerate(self.seen.families)]
        self.seen = replace(self.seen, families=families, left=self.seen.left - amount)

    @property
    def can_explore(self) -> bool:
        return self.seen.explorable > 0.5 * SLICE

    def observed_best(self) -> int:
        probed = [at for at, one in enumerate(self.seen.families) if one.points]
        return max(probed, key=lambda at: sum(one.score for one in self.seen.families[at].points[-3:]))


def run_portfolio(campaign: Campaign) -> int:
    while (decision := decide(campaign.seen)).action != CONFIRM:
        campaign.spend(int(decision.family), decision.amount)
    return int(decision.family)


def run_greedy(campaign: Campaign) -> int:
    for at in range(len(campaign.task.families)):
        campaign.spend(at, SLICE)
    while campaign.can_explore:
        campaign.spend(campaign.observed_best(), min(SLICE, campaign.seen.explorable))
    return campaign.observed_best()


def run_fixed(campaign: Campaign) -> int:
    return int(np.random.default_rng([campaign.seed, 2]).integers(len(campaign.task.families)))


def run_uniform(campaign: Campaign) -> int:
    at = 0
    while campaign.can_explore:
        campaign.spend(at % len(campaign.task.families), min(SLICE, campaign.seen.explorable))
        at += 1
    return campaign.observed_best()


POLICIES: dict[str, Callable[[Campaign], int]] = {
    "portfolio": run_portfolio,
    "greedy": run_greedy,
    "fixed": run_fixed,
    "uniform": run_uniform,
}


@dataclass(frozen=True)
class Outcome:
    """What became of one campaign."""

    regret: float
    gain: float
    supported: bool


def run_one(policy: str, seed: int, *, independent: bool) -> Outcome:
    task = Task.draw(np.random.default_rng([seed, 0]), independent=independent)
    campaign = Campaign(task, seed)
    family, horizon = POLICIES[policy](campaign), campaign.seen.horizon
    best = max(task.true(at, horizon) for at in range(len(task.families)))
    value = task.true(family, horizon)
    logit = math.log(value / (1 - value)) - math.log(task.base / (1 - task.base))
    # The tasks of `World` vary in ease, which makes a gain in logits smaller in points: 1.2 makes up for it.
    world = World(arms=2, seeds=3, tasks=TASKS, samples=1, gain=1.2 * logit, seed_sd=SEED_SD * 4)
    conclusion, _ = world.conclude(np.random.default_rng([seed, 3]))
    return Outcome(best - value, value - task.base, conclusion.verdict == "supported")


def _run_many(given: tuple[str, list[int], bool]) -> list[Outcome]:
    policy, seeds, independent = given
    return [run_one(policy, seed, independent=independent) for seed in seeds]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1_000_000, help="of the first task")
    parser.add_argument("--tasks", choices=["families", "independent"], default="families")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    seeds = [given.seed + at for at in range(given.campaigns)]
    found: dict[str, list[Outcome]] = {}
    with ProcessPoolExecutor(given.processes) as pool:
        for policy in POLICIES:
            parts = [
                (policy, seeds[at :: given.processes], given.tasks == "independent") for at in range(given.processes)
            ]
            found[policy] = [one for part in pool.map(_run_many, parts) for one in part]
    ours = np.mean([one.regret for one in found["portfolio"]])
    print("| policy | regret | 95 % | ours below it by | confirmed | false confirmed | of those without a gain |")
    print("|---|---|---|---|---|---|---|")
    for policy, outcomes in found.items():
        regrets = np.array([one.regret for one in outcomes])
        wide = 1.96 * regrets.std(ddof=1) / math.sqrt(len(regrets))
        false = np.mean([one.supported and one.gain <= _NOTHING for one in outcomes])
        of_nothing = np.mean([one.supported for one in outcomes if one.gain <= _NOTHING])
        right = np.mean([one.supported for one in outcomes])
        below = "" if policy == "portfolio" else f"{1 - ours / regrets.mean():.0%}"
        shares = f"{right:.1%} | {false:.1%} | {of_nothing:.1%}"
        print(f"| {policy} | {regrets.mean():.4f} | ±{wide:.4f} | {below} | {shares} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
