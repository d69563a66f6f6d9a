"""When the arms of a halving are compared: after which of its steps each one pauses.

Comparisons come at equal shares of each run's own length, so that runs of different lengths (batch sizes) and learning
rates that fall along a schedule are compared at the same stage. The shares are 1/eta, 1/eta^2 ... counted from the end,
and earlier where that would spread the comparisons beyond the first four ninths: a gentle `eta` compares often, and
must do so early to be worth it. Each one is moved to the nearest step at which val is scored, the first at the earliest
to the first scoring.

    rungs_of({"a": 90, ...}, every={"a": 10, ...}, eta=3)      nine such runs: after steps 10 and 30
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

_LATEST = 4 / 9
"""Share of a run after which nobody is compared any more."""


def survivors(n: int, eta: float, keep: int = 1) -> list[int]:
    """How many of `n` runs go on after each comparison, until no more than `keep` are left."""
    found: list[int] = []
    while n > keep:
        n = min(max(math.ceil(n / eta), keep), n - 1)
        found.append(n)
    return found


def rungs_of(
    lengths: Mapping[str, int],
    *,
    every: Mapping[str, int],
    eta: float,
    keep: int = 1,
    shares: Sequence[float] | None = None,
) -> dict[str, list[int]]:
    """For each arm of these lengths in steps, where it pauses; all arms pause equally often.

    `every` says for each how many steps apart it can pause. One that is too short for so many pauses limits them for
    all.
    """
    wanted = _usual_shares(len(lengths), eta, keep) if shares is None else shares
    found = {name: _steps(length, every[name], wanted) for name, length in lengths.items()}
    count = min((len(steps) for steps in found.values()), default=0)
    return {name: steps[len(steps) - count :] for name, steps in found.items()}


def trained_shares(n: int, *, eta: float, keep: int = 1, shares: Sequence[float] | None = None) -> list[float]:
    """Which share of its length each of `n` runs will be trained, those first that are stopped first."""
    wanted = _usual_shares(n, eta, keep) if shares is None else shares
    found: list[float] = []
    for share, target in zip(wanted, [*survivors(n, eta, keep), *[keep] * len(wanted)], strict=False):
        found += [share] * (n - len(found) - target)
    return found + [1.0] * (n - len(found))


def _usual_shares(n: int, eta: float, keep: int) -> list[float]:
    needed = len(survivors(n, eta, keep))
    return [min(1 / eta ** (needed - at), _LATEST * (at + 1) / needed) for at in range(needed)]


def _steps(length: int, every: int, shares: Sequence[float]) -> list[int]:
    """Different scorings, each as near to its share as the ones before leave room for, all before the end."""
    steps: list[int] = []
    for share in shares:
        nearest = int(share * length / every + 0.5) * every
        step = max(nearest, steps[-1] + every if steps else every)
        if step < length:
            steps.append(step)
    return steps
