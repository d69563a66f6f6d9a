"""What becomes of arms that a search does not train to their end: settled for the search, and marked in the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...record.reader import ExperimentRecord
from ...spend.ledger import is_budget_stop
from ..arms.results import STOPPED_BY_SEARCH, ArmResult
from ..record_dir import ExperimentDir, write_result
from .allocation import Outcome


def is_settled(result: ArmResult) -> bool:
    """Whether a search may decide by it: not if it was interrupted, because it goes on when the experiment does."""
    if result.status != "cancelled" or result.paused_after is not None:
        return True
    reason = result.result.notes.stop_reason or ""
    return is_budget_stop(reason) and "this arm" in reason  # its own limit; that of the experiment stops everything


def all_settled(outcomes: Sequence[Outcome], keys: Sequence[tuple[str, int | None]]) -> bool:
    """Whether every one of these requests has an outcome to decide by."""
    settled = {outcome.request.key for outcome in outcomes if is_settled(outcome.result)}
    return settled.issuperset(keys)


def mark_stopped(results: Sequence[ArmResult], folder: ExperimentDir) -> list[ArmResult]:
    """The results, with the reason in those that a recorded decision stopped, here and on disk."""
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
        return "unscored", f"it has no {metric} after step {step}, so the search could not let it go on"
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
