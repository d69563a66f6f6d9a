"""`until: decided`: add seeds in rounds until the claim is decided or cannot be decided any more.

The interim analyses are planned in the journal before the first step. After the planned number of seeds of every run,
the claim is tested as in a conclusion, at this analysis' share of the error rate (O'Brien and Fleming), so that all
analyses together have the error rate of one. An analysis uses only the arms up to it, so that a killed experiment makes
the same decisions when it is resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..arms.arm import Arm
from ..arms.results import ArmResult
from .allocation import AllocationDecision, all_settled

type Judge = Callable[[Sequence[Arm]], dict[str, Any]]
"""Analyses the record of these arms; returns the fields for the journal."""


class UntilDecided:
    """Trains seeds of all runs up to the next interim analysis."""

    def __init__(self, arms: Sequence[Arm], looks: Sequence[int], judge: Judge) -> None:
        self._arms, self._looks, self._judge = list(arms), list(looks), judge
        self._found: dict[tuple[str, ...], dict[str, Any]] = {}
        """By the names of the scored arms, because a failed arm may be retried."""
        self._last = AllocationDecision([])

    def decide(self, results: Sequence[ArmResult]) -> AllocationDecision:
        arms: list[Arm] = []
        notes: list[dict[str, object]] = []
        before = 0
        for number, seeds in enumerate(self._looks, start=1):
            arms += [arm for arm in self._arms if before <= arm.repeat < seeds]
            before = seeds
            # The last analysis is the conclusion itself.
            if number == len(self._looks) or not all_settled(results, arms):
                break
            look = self._look(arms, results)
            notes.append({"look": number, "of": len(self._looks), "seeds": seeds, **look})
            if look["ends"]:
                break
        # The scheduler compares the objects.
        if (len(arms), notes) != (len(self._last.arms), list(self._last.notes)):
            self._last = AllocationDecision(arms, notes)
        return self._last

    def _look(self, trained: Sequence[Arm], results: Sequence[ArmResult]) -> dict[str, Any]:
        names = {arm.name for arm in trained}
        scored = [result.name for result in results if result.is_scored and result.name in names]
        key = tuple(sorted(scored))
        if key not in self._found:
            self._found[key] = self._judge(trained)
        return self._found[key]


def judge_look(experiment_dir: Path, trained: Sequence[Arm]) -> dict[str, Any]:
    """Analyse the record of these arms, and whether more seeds could change the result."""
    from ..audit.report import AuditReport
    from ..conclusion.interim import judge_interim
    from ..conclusion.reading import read_evidence
    from ..conclusion.verdict import conclude_from

    names = {arm.name for arm in trained}
    # Without an audit: that comes with the conclusion, when the record is complete.
    evidence = read_evidence(experiment_dir, AuditReport(experiment_dir))
    runs = [replace(run, arms=[arm for arm in run.arms if arm.arm in names]) for run in evidence.runs]
    return judge_interim(conclude_from(replace(evidence, runs=[run for run in runs if run.arms])))
