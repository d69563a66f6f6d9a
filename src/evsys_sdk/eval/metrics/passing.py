"""Unbiased estimates from n samples of which c pass: `pass@k`, `pass^k` and `pass_rate`.

They average over all subsets of k samples, in closed form; `any(first k)` would depend on sample order and waste n - k.
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
    """The reward that counts as a pass."""

    threshold: float = PASS
    """Smallest reward that counts as a pass."""


class PassKParams(PassParams):
    """The sample count k and the pass threshold."""

    k: int = Field(default=1, ge=1)
    """Samples per subset."""


class PassMetric:
    """Base of `pass@k` and `pass^k`; a subclass defines the probability for one task."""

    name: ClassVar[str]
    Config: ClassVar[type[PassParams]] = PassKParams
    k_of_name: ClassVar[int | None] = None
    """The k of a family member such as `pass@3`."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)
        self.k: int = self.k_of_name or getattr(self.cfg, "k", 1)

    @classmethod
    @cache
    def member(cls, name: str) -> type[PassMetric]:
        """The metric class of a name that ends in its k."""
        k = int("".join(letter for letter in name if letter.isdigit()))
        doc = (cls.__doc__ or "").partition(";")[0].replace("k samples", f"{k} samples") + "."
        return type(cls.__name__, (cls,), {"name": name, "k_of_name": k, "Config": PassParams, "__doc__": doc})

    def chance(self, n: int, passed: int) -> float:
        """The probability for one task with `passed` of `n` samples."""
        raise NotImplementedError

    def compute(
        self, task_rewards: Sequence[Any] = (), against: Sequence[str] | None = None, **by_hand: Sequence[str]
    ) -> float:
        """The mean over tasks; also takes `predictions` and `targets` directly."""
        task_rewards = read_rewards(task_rewards, against, by_hand)
        fewest = min(len(rewards) for rewards in task_rewards)
        if fewest < self.k:
            short = sum(len(rewards) < self.k for rewards in task_rewards)
            raise EvalError(
                f"k is {self.k}, but {short} of {len(task_rewards)} tasks have fewer samples (at least {fewest}). "
                f"Draw at least {self.k} samples of each task, or report a smaller k."
            )
        passed = [sum(reward >= self.cfg.threshold for reward in rewards) for rewards in task_rewards]
        return statistics.fmean(self.chance(len(rewards), n) for rewards, n in zip(task_rewards, passed, strict=True))


def chance_of_any(n: int, passed: int, k: int) -> float:
    """Probability that at least one of k samples passes, over all subsets of k of the n."""
    return 1 - math.comb(n - passed, k) / math.comb(n, k)


def chance_of_all(n: int, passed: int, k: int) -> float:
    """Probability that all of k samples pass."""
    return math.comb(passed, k) / math.comb(n, k)


class PassAtK(PassMetric):
    """Unbiased probability that at least one of k samples passes; `pass@3` sets k = 3."""

    name: ClassVar[str] = "pass_at_k"

    def chance(self, n: int, passed: int) -> float:
        return chance_of_any(n, passed, self.k)


class PassHatK(PassMetric):
    """Unbiased probability that all of k samples pass; `pass^3` sets k = 3."""

    name: ClassVar[str] = "pass^k"

    def chance(self, n: int, passed: int) -> float:
        return chance_of_all(n, passed, self.k)


class PassRate(PassMetric):
    """Share of samples with a reward of at least 1; equals pass@1."""

    name: ClassVar[str] = "pass_rate"
    Config = PassParams

    def chance(self, n: int, passed: int) -> float:
        return passed / n
