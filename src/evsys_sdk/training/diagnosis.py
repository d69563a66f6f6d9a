"""Detects problems in the rollouts and losses of a run, and reports each in one sentence.

Each finding is reported once: in the log, in the journal during the run, and in its result. No finding ends a run. The
variance between steps separates a decline from noise. A converged run is fine, although its rewards no longer differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from logging import INFO, WARNING
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ..log import get_logger
from ..record.events import note_finding
from .callback import Callback, RunControl, RunInfo
from .saturation import RewardSaturation, StepSummary

if TYPE_CHECKING:
    from ..rollouts.rollout import Rollout

_SEE_ROLLOUTS = "See `evsys rollouts`."
_SAME_STEPS = 3
"""Consecutive steps after which equal or missing rewards count as a finding."""
_WINDOW = 5
"""Steps over which level and length are averaged."""
_SURE = 5.0
"""Standard errors of a decline that counts; high, because every step is compared with the best of all."""
_FIRST_STEPS = 10
_MOVED = 0.005
"""Share by which the loss must fall between the halves of the first steps ..."""
_LEARNED_LOSS = 0.3
"""... unless the loss is below this."""
_LASTING = 3
"""Consecutive steps of decline that count as a finding."""


@dataclass(slots=True)
class Diagnosis(Callback):
    """Reports problems in the rollouts and losses of a run."""

    name = "diagnosis"
    _info: RunInfo | None = None
    _sentences: dict[str, str] = field(default_factory=dict[str, str])
    """Finding -> its sentence."""
    _first: list[StepSummary] = field(default_factory=list[StepSummary])
    _last: list[StepSummary] = field(default_factory=list[StepSummary])
    _best: list[float] = field(default_factory=list[float])
    """Mean rewards of the best window of steps so far."""
    _saturation: RewardSaturation = field(default_factory=RewardSaturation)
    _losses: list[float] = field(default_factory=list[float])
    _rates: list[float] = field(default_factory=list[float])
    """Losses and learning rates of the first steps."""
    _worse_for: int = 0
    _changes: tuple[int, float] = (0, 0.0)
    """Number of step-to-step changes of the mean reward, and the sum of their squares."""

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        self._info = info

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Check once whether the loss has fallen, after the first steps at the full learning rate."""
        info, loss = self._info, metrics.get("loss")
        if info is None or info.measure != "loss" or loss is None or len(self._losses) == _FIRST_STEPS:
            return
        self._losses.append(loss)
        self._rates.append(metrics.get("learning_rate", 0.0))
        if len(self._losses) < _FIRST_STEPS or self._rates[0] < 0.5 * max(self._rates):
            return
        half = _FIRST_STEPS // 2
        before, now = fmean(self._losses[:half]), fmean(self._losses[half:])
        if before > _LEARNED_LOSS and now > (1 - _MOVED) * before:
            self._report(
                "flat",
                f"the loss did not fall in the first {_FIRST_STEPS} steps ({before:.4g} to {now:.4g}) at a learning "
                f"rate of {max(self._rates):.2g}. Change learning_rate by a factor of ten, and check which tokens are "
                "trained on in rendered_examples.md.",
            )

    def on_rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        if not rollouts:
            return
        now = StepSummary.of(step, rollouts)
        self._last = [*self._last, now][-_WINDOW:]
        self._first = self._first if len(self._first) == _WINDOW else [*self._first, now]
        if len(self._last) > 1 and (before := self._last[-2].mean) is not None and now.mean is not None:
            self._changes = (self._changes[0] + 1, self._changes[1] + (now.mean - before) ** 2)
        self._check_failures(rollouts)
        self._check_equal()
        self._check_collapse()
        self._check_length()

    def findings(self) -> list[str]:
        return list(self._sentences.values())

    def state(self) -> dict[str, Any]:
        return {
            "said": self._sentences,
            "first": [asdict(summary) for summary in self._first],
            "last": [asdict(summary) for summary in self._last],
            "best": self._best,
            "worse_for": self._worse_for,
            "changes": list(self._changes),
            "losses": self._losses,
            "rates": self._rates,
            "saturation": self._saturation.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._sentences = dict(state["said"])
        self._first = [StepSummary(**summary) for summary in state["first"]]
        self._last = [StepSummary(**summary) for summary in state["last"]]
        self._best, self._worse_for = list(state["best"]), int(state["worse_for"])
        self._changes = (int(state["changes"][0]), float(state["changes"][1]))
        self._saturation.restore(state.get("saturation", {}))
        # Checkpoints of earlier versions lack them; their first steps are over.
        self._losses = list(state.get("losses", [0.0] * _FIRST_STEPS))
        self._rates = list(state.get("rates", []))

    def _check_failures(self, rollouts: Sequence[Rollout]) -> None:
        recent = self._last[-_SAME_STEPS:]
        failed, n = sum(step.failed for step in recent), sum(step.n for step in recent)
        all_failed = recent[-1].failed == recent[-1].n
        if all_failed or (len(recent) == _SAME_STEPS and 2 * failed >= n):
            first = next((rollout.error for rollout in rollouts if rollout.status == "infra"), None)
            steps = f"step {recent[-1].step}" if all_failed else _steps(recent)
            counted = f"all {recent[-1].n}" if all_failed else f"{failed} of {n}"
            cause = f" First error of the last step: {first.rstrip('.')}." if first else ""
            self._report("failing", f"{counted} rollouts of {steps} failed.{cause} {_SEE_ROLLOUTS}")

    def _check_equal(self) -> None:
        saturation = self._saturation.update(self._last[-1])
        if saturation is not None and saturation.kind != "converged":
            self._report("collapsed" if saturation.kind == "collapsed" else "equal", saturation.text)

    def _check_collapse(self) -> None:
        means = [step.mean for step in self._last if step.mean is not None]
        if len(means) < _WINDOW:
            return
        if not self._best or fmean(means) > fmean(self._best):
            self._best, self._worse_for = means, 0
            return
        best, last = fmean(self._best), fmean(means)
        # Half the mean square of step-to-step changes estimates the variance of one step without its trend. The error
        # is that of a difference between two means of _WINDOW steps.
        scatter = self._changes[1] / self._changes[0] / 2
        error = math.sqrt(2 * scatter / _WINDOW)
        fell = best - last > 0.5 * (best - self._saturation.lowest) and best - last > _SURE * error
        self._worse_for = self._worse_for + 1 if fell else 0
        if self._worse_for >= _LASTING:
            self._report(
                "collapsing",
                f"the mean reward fell from {best:.3g} to {last:.3g} ({_steps(self._last)}): the policy is getting "
                "worse. Lower learning_rate, set kl_coefficient, or return to the best checkpoint.",
            )

    def _check_length(self) -> None:
        # Wait until the windows do not overlap.
        if len(self._first) < _WINDOW or self._last[-1].step <= self._first[-1].step:
            return
        before, now = fmean(step.tokens for step in self._first), fmean(step.tokens for step in self._last)
        cut_before, cut_now = fmean(step.cut_off for step in self._first), fmean(step.cut_off for step in self._last)
        if now >= 2 * before and cut_now >= 0.5 and cut_now >= cut_before + 0.3:
            self._report(
                "lengthening",
                f"answers have grown from {before:.3g} to {now:.3g} tokens and {cut_now:.0%} of them are cut off "
                f"({_steps(self._last)}). Raise sampling.max_tokens, or set overlong_penalty or normalise: fixed.",
            )

    def _report(self, finding: str, text: str) -> None:
        if finding in self._sentences:
            return
        self._sentences[finding] = text
        step = self._last[-1].step if self._last else 0
        is_new = self._info is None or note_finding(self._info.run_dir, step=step, finding=finding, text=text)
        get_logger(__name__).log(WARNING if is_new else INFO, "%s", text)


def _steps(summaries: Sequence[StepSummary]) -> str:
    return f"steps {summaries[0].step} to {summaries[-1].step}"
