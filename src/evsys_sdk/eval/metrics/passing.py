"""Samples that pass, and the chances that follow from them without bias: `pass@k`, `pass^k` and `pass_rate`.

Of n samples c pass. `any(first k)` would depend on the order of the samples and throw n - k of them away; averaging
over all ways to choose k of the n does neither, and has a closed form.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

from pydantic import Field

from ...config.base import Strict
from ...errors import EvalError
from .rewards import read_rewards

PASS = 1.0
"""A reward of at least this much is a pass."""


class PassParams(Strict):
    """What a pass is."""

    threshold: float = PASS
    """Smallest reward that is a pass."""


class PassKParams(PassParams):
    """How many samples, and what a pass is."""

    k: int = Field(default=1, ge=1)
    """How many samples are chosen."""


class PassMetric:
    """Base of the metrics `pass@k` and `pass^k`; a subclass has the chance for one task."""

    name: ClassVar[str]
    Config: ClassVar[type[PassParams]] = PassKParams
    k_of_name: ClassVar[int | None] = None
    """The k of a member of the family, such as `pass@3`."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)
        self.k: int = self.k_of_name or getattr(self.cfg, "k", 1)

    @classmethod
    @cache
    def member(cls, name: str) -> type[PassMetric]:
        """The metric of a name that ends in its k."""
        k = int("".join(letter for letter in name if letter.isdigit()))
        doc = (cls.__doc__ or "").partition(";")[0].replace("k samples", f"{k} samples") + "."
        return type(cls.__name__, (cls,), {"name": name, "k_of_name": k, "Config": PassParams, "__doc__": doc})

    def chance(self, n: int, passed: int) -> float:
        """For one task: n samples, of which some passed."""
        raise NotImplementedError

    def compute(
        self, task_rewards: Sequence[Any] = (), against: Sequence[str] | None = None, **by_hand: Sequence[str]
    ) -> float:
        """The mean over tasks; by hand also of `predictions` and `targets`."""
        task_rewards = read_rewards(task_rewards, against, by_hand)
        fewest = min(len(rewards) for rewards in task_rewards)
        if fewest < self.k:
            short = sum(len(rewards) < self.k for rewards in task_rewards)
            raise EvalError(
                f"k is {self.k}, but {short} of {len(task_rewards)} tasks have fewer samples, one of them {fewest}. "
                f"Draw at least {self.k} samples of each task, or report a smaller k."
            )
        passed = [sum(reward >= self.cfg.threshold for reward in rewards) for rewards in task_rewards]
        return statistics.fmean(self.chance(len(one), n) for one, n in zip(task_rewards, passed, strict=True))


def chance_of_any(n: int, passed: int, k: int) -> float:
    """That at least one of k samples passes, over all ways to choose k of the n."""
    return 1 - math.comb(n - passed, k) / math.comb(n, k)


def chance_of_all(n: int, passed: int, k: int) -> float:
    """That all of k samples pass."""
    return math.comb(passed, k) / math.comb(n, k)


class PassAtK(PassMetric):
    """Chance that at least one of k samples passes, without bias; `pass@3` is short for k = 3."""

    name: ClassVar[str] = "pass_at_k"

    def chance(self, n: int, passed: int) -> float:
        return chance_of_any(n, passed, self.k)


class PassHatK(PassMetric):
    """Chance that all of k samples pass, without bias; `pass^3` is short for k = 3."""

    name: ClassVar[str] = "pass^k"

    def chance(self, n: int, passed: int) -> float:
        return chance_of_all(n, passed, self.k)


class PassRate(PassMetric):
    """Share of samples that pass: a reward of at least 1. The same as pass@1."""

    name: ClassVar[str] = "pass_rate"
    Config = PassParams

    def chance(self, n: int, passed: int) -> float:
        return passed / n
