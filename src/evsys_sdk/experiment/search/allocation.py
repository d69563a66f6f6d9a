"""Which arms are trained, and how far: the contract of searches, and the plain case in which all are trained in full.

An allocation is asked again whenever an arm has ended. Its answer must follow from the outcomes alone, not from the
order or the time in which they came, so that a killed experiment takes the same decisions when it continues. An arm
that is not trained to its end is settled for the search, and marked in the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ...record.reader import ExperimentRecord
from ...spend.ledger import is_budget_stop
from ..arms.arm import Arm
from ..arms.results import STOPPED_BY_SEARCH, ArmResult
from ..record_dir import ExperimentDir, write_result


@dataclass(frozen=True, slots=True)
class ArmRequest:
    """Train this arm, to its end or up to a step."""

    arm: Arm
    until_step: int | None = None

    @property
    def key(self) -> tuple[str, int | None]:
        return self.arm.name, self.until_step


@dataclass(frozen=True, slots=True)
class ArmOutcome:
    """What came of a request."""

    request: ArmRequest
    result: ArmResult


@dataclass(frozen=True, slots=True)
class AllocationDecision:
    """What an allocation has decided, as it is recorded: requests in order, and why."""

    requests: Sequence[ArmRequest]
    notes: Sequence[dict[str, Any]] = ()
    """One record for each choice made so far, oldest first; new ones are written to the journal."""


class Allocation(Protocol):
    """Decides which arms are trained."""

    def decide(self, outcomes: Sequence[ArmOutcome]) -> AllocationDecision:
        """Every request so far, including those that are done; no more of them means the end.

        The very same object as the last time says at once that nothing is new.
        """
        ...


class EveryArm:
    """Train all arms in full."""

    def __init__(self, arms: Sequence[Arm], *, in_rounds: bool = False) -> None:
        """`in_rounds`: every run gets its first seed before any gets its second."""
        ordered = sorted(arms, key=lambda arm: arm.repeat) if in_rounds else arms
        self._all = AllocationDecision([ArmRequest(arm) for arm in ordered])

    def decide(self, outcomes: Sequence[ArmOutcome]) -> AllocationDecision:
        return self._all


class DrawnArms:
    """Train all arms in full, and record that they were drawn; it was done when the config was expanded."""

    def __init__(self, arms: Sequence[Arm], seed: int) -> None:
        runs = list(dict.fromkeys(arm.of_run for arm in arms))
        note = {"sampled": runs, "seed": seed, "why": f"{len(runs)} runs were drawn with seed {seed}"}
        self._all = AllocationDecision([ArmRequest(arm) for arm in arms], [note])

    def decide(self, outcomes: Sequence[ArmOutcome]) -> AllocationDecision:
        return self._all


def is_settled(result: ArmResult) -> bool:
    """Whether a search may decide by it: not if it was interrupted, because it continues when the experiment does."""
    if result.status != "cancelled" or result.paused_after is not None:
        return True
    reason = result.result.notes.stop_reason or ""
    return is_budget_stop(reason) and "this arm" in reason  # its own limit; that of the experiment stops everything


def all_settled(outcomes: Sequence[ArmOutcome], keys: Sequence[tuple[str, int | None]]) -> bool:
    """Whether every one of these requests has an outcome to decide by."""
    settled = {outcome.request.key for outcome in outcomes if is_settled(outcome.result)}
    return settled.issuperset(keys)


def mark_stopped(results: Sequence[ArmResult], folder: ExperimentDir) -> list[ArmResult]:
    """The results, with the reason in those that a recorded decision stopped, here and on disk."""
    # Without a pause no search has stopped anything, and the journal need not be read.
    if all(result.paused_after is None for result in results):
        return list(results)
    reasons: dict[str, tuple[str, str]] = {}
    for decision in ExperimentRecord(folder.path).search_decisions:
        reasons |= {arm: _reason(arm, decision) for arm in decision.get("stopped", ())}
    return [_mark(result, reasons.get(result.name), folder) for result in results]


def _reason(arm: str, decision: dict[str, Any]) -> tuple[str, str]:
    """The note, and what it says."""
    score: float | None = decision["scores"].get(arm)
    step: Any = decision["steps"][arm] if decision["step"] is None else decision["step"]
    metric = decision["metric"]
    if score is None:
        return "unscored", f"it has no {metric} after step {step}, so the search stopped it"
    others = f"{len(decision['kept'])} of {len(decision['scores'])}"
    return STOPPED_BY_SEARCH, f"after step {step} its {metric} of {score:.4g} was not among the best {others}"


def _mark(result: ArmResult, reason: tuple[str, str] | None, folder: ExperimentDir) -> ArmResult:
    if result.paused_after is None or reason is None:
        return result
    key, text = reason
    notes = replace(result.result.notes, **{key: text})
    if notes == result.result.notes:
        return result
    error = result.result.error if key == "unscored" else None  # being stopped by a search is no error
    marked = replace(result.result, error=error, notes=notes)
    write_result(folder.run_dir(result.name), marked, hparams=result.arm.run.model_dump(mode="json"))
    return ArmResult(result.arm, marked)
