"""Detects rewards that no longer differ, and the cause: converged, collapsed, stalled, or never different.

A step whose rewards are equal within every task has no gradient. The cause depends on the steps before: rewards that
differed and are high now have converged; low rewards of a policy with a single answer have collapsed; rewards that
never differed give no gradient at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ..rollouts.rollout import Rollout

_PATIENCE = 3
"""Consecutive steps with equal rewards that count, if they never differed or are perfect ..."""
_LONGER = 5
"""... and if a few equal ones may be chance."""
_HIGH = 0.8
"""Share of the reward range above which a constant reward counts as learned."""
_LOW_ENTROPY = 0.05
"""Nats per sampled token; lower values mean a nearly deterministic policy."""
_SEE_ROLLOUTS = "See `evsys rollouts`."


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Statistics of the rollouts of one step."""

    step: int
    n: int
    failed: int
    low: float | None
    high: float | None
    mean: float | None
    tokens: float
    """Mean tokens per answer."""
    cut_off: float
    """Share of truncated rollouts."""
    same_text: bool
    """Whether all rollouts of each task have the same text, with several per task."""
    constant: bool = False
    """Whether the rewards are equal within every task."""
    entropy: float | None = None
    """Nats per sampled token, estimated from log-probabilities."""

    @classmethod
    def of(cls, step: int, rollouts: Sequence[Rollout]) -> StepSummary:
        rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
        by_task: dict[str, list[Rollout]] = {}
        for rollout in rollouts:
            by_task.setdefault(rollout.task_id, []).append(rollout)
        groups = list(by_task.values())
        return cls(
            step,
            n=len(rollouts),
            failed=sum(rollout.status == "infra" for rollout in rollouts),
            low=min(rewards, default=None),
            high=max(rewards, default=None),
            mean=fmean(rewards) if rewards else None,
            tokens=fmean(sum(turn.output_tokens for turn in rollout.turns) for rollout in rollouts),
            cut_off=fmean(rollout.status == "truncated" for rollout in rollouts),
            same_text=all(len(group) > 1 and len({rollout.completion for rollout in group}) == 1 for group in groups),
            constant=all(len({rollout.reward for rollout in group} - {None}) < 2 for group in groups),
            entropy=sampled_entropy(rollouts),
        )


def sampled_entropy(rollouts: Sequence[Rollout]) -> float | None:
    """Mean negative log-probability of the sampled tokens; None without log-probabilities."""
    logprobs = [logprob for rollout in rollouts for turn in rollout.turns for logprob in turn.logprobs]
    return -fmean(logprobs) if logprobs else None


@dataclass(frozen=True, slots=True)
class Saturation:
    """Rewards that no longer differ."""

    kind: Literal["converged", "collapsed", "stalled", "solved", "never"]
    text: str

    @property
    def ends_run(self) -> bool:
        """Whether to save and score the run; rewards that never differed fail it instead."""
        return self.kind != "never"


@dataclass(slots=True)
class RewardSaturation:
    """The range of rewards so far, and the number of consecutive steps without a difference within a task."""

    lowest: float = math.inf
    highest: float = -math.inf
    varied: bool = False
    """Whether rewards have ever differed within a task."""
    means: list[float] = field(default_factory=list[float])
    """Mean rewards of the last consecutive steps without a difference."""
    in_a_row: int = 0

    def update(self, now: StepSummary) -> Saturation | None:
        """Add a step; returns a saturation after too many consecutive steps without a difference."""
        if now.low is None or now.high is None or now.mean is None:
            return None
        self.lowest, self.highest = min(self.lowest, now.low), max(self.highest, now.high)
        if not now.constant:
            self.varied, self.means, self.in_a_row = True, [], 0
            return None
        self.means, self.in_a_row = [*self.means, now.mean][-_LONGER:], self.in_a_row + 1
        perfect = min(self.means) == self.highest
        if self.in_a_row < (_PATIENCE if perfect or not self.varied else _LONGER):
            return None
        return self._describe(now, perfect)

    def _describe(self, now: StepSummary, perfect: bool) -> Saturation:
        steps = f"steps {now.step - self.in_a_row + 1} to {now.step}"
        mean = fmean(self.means)
        if not self.varied:
            if self.lowest >= 1:
                text = "from the first step on, so there is nothing left to learn. Use harder tasks."
                return Saturation("solved", f"every rollout has the reward {self.lowest:g} {text}")
            return Saturation("never", _explain_never(steps, self.lowest, self.highest, now))
        if perfect:
            return Saturation("converged", "every rollout has the highest reward; there is nothing left to learn")
        if mean >= self.lowest + _HIGH * (self.highest - self.lowest):
            text = f"the rollouts of each task of {steps} have equal rewards, {mean:.3g} on average"
            return Saturation("converged", f"the rewards have converged: {text}; there is nothing left to learn")
        level = f"no rewards differ within a task in {steps}, at a mean of {mean:.3g} (highest seen: {self.highest:g})"
        if now.same_text or (now.entropy is not None and now.entropy < _LOW_ENTROPY):
            return Saturation("collapsed", f"{level}: {_explain_collapse(now)}")
        return Saturation(
            "stalled",
            f"{level}, although the answers differ. {_SEE_ROLLOUTS} Raise group_size or batch_size, add easier tasks, "
            "or give partial rewards.",
        )

    def state(self) -> dict[str, Any]:
        """State for `restore`, as finite numbers."""
        state: dict[str, Any] = {"varied": self.varied, "means": self.means, "in_a_row": self.in_a_row}
        bounds = {"lowest": self.lowest, "highest": self.highest}
        return state | {name: value for name, value in bounds.items() if math.isfinite(value)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.lowest, self.highest = state.get("lowest", math.inf), state.get("highest", -math.inf)
        self.varied, self.means = bool(state.get("varied", False)), list(state.get("means", ()))
        self.in_a_row = int(state.get("in_a_row", 0))


def _explain_collapse(now: StepSummary) -> str:
    entropy = "" if now.entropy is None else f" (entropy {now.entropy:.2g} nats per token)"
    remedy = "Lower learning_rate, set kl_coefficient (0.01 to 0.1), keep sampling.temperature at 1"
    return f"the policy has collapsed to one answer{entropy}. {remedy}, or start again from an earlier checkpoint."


def _explain_never(steps: str, lowest: float, highest: float, now: StepSummary) -> str:
    """Why rewards never differed, and the likely cause."""
    value = f"are {lowest:g}" if lowest == highest else "do not differ within any task"
    text = f"the rewards of all rollouts of {steps} {value}, so there is no gradient. {_SEE_ROLLOUTS}"
    if now.cut_off >= 0.5:
        return f"{text} {now.cut_off:.0%} of them are cut off: raise sampling.max_tokens."
    same = "All rollouts of a task have the same text: raise sampling.temperature. " if now.same_text else ""
    return (
        f"{text} {same}Compare an answer with what the verifier expects: describe the answer format in the prompt, "
        "train with `sft` first, or make the tasks easier."
    )
