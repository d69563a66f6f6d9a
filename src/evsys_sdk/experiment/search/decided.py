"""Seeds look by look, until the claim is decided or cannot be any more: `until: decided`.

Looks are planned before the first step and stand in the journal: after so many seeds of every run, the claim is judged
from the record as the conclusion would judge it. Each look is tested at its share of the error rate, after O'Brien and
Fleming, so that all of them together are wrong as rarely as one look at the end. What a look found follows from the
arms up to it alone; an experiment that was killed takes the same decisions when it continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..arms.arm import Arm
from ..arms.results import ArmResult
from .allocation import AllocationDecision, all_settled

if TYPE_CHECKING:
    from ..conclusion.interim import Look

type Judge = Callable[[Sequence[Arm]], Look]
"""What the record shows of these arms."""


class UntilDecided:
    """Trains the seeds of all runs up to one look after the other."""

    def __init__(self, arms: Sequence[Arm], looks: Sequence[int], judge: Judge) -> None:
        self._arms, self._looks, self._judge = list(arms), list(looks), judge
        self._found: dict[tuple[str, ...], Look] = {}
        """By the arms that had a score: one that failed may have been trained again since."""
        self._last = AllocationDecision([])

    def decide(self, results: Sequence[ArmResult]) -> AllocationDecision:
        arms: list[Arm] = []
        notes: list[dict[str, object]] = []
        before = 0
        for number, seeds in enumerate(self._looks, start=1):
            arms += [arm for arm in self._arms if before <= arm.repeat < seeds]
            before = seeds
            # The last look is the conclusion itself.
            if number == len(self._looks) or not all_settled(results, arms):
                break
            look = self._look(arms, results)
            notes.append({"look": number, "of": len(self._looks), "seeds": seeds, **look.to_dict()})
            if look.ends:
                break
        # Only a new object makes the scheduler look for what is new.
        if (len(arms), notes) != (len(self._last.arms), list(self._last.notes)):
            self._last = AllocationDecision(arms, notes)
        return self._last

    def _look(self, trained: Sequence[Arm], results: Sequence[ArmResult]) -> Look:
        names = {arm.name for arm in trained}
        scored = [one.name for one in results if one.is_scored and one.name in names]
        key = tuple(sorted(scored))
        if key not in self._found:
            self._found[key] = self._judge(trained)
        return self._found[key]


def judge_look(experiment_dir: Path, trained: Sequence[Arm]) -> Look:
    """What the record shows of these arms, and whether more seeds could change it."""
    from ..audit.report import AuditReport
    from ..conclusion.interim import judge_interim
    from ..conclusion.reading import read_evidence
    from ..conclusion.verdict import conclude_from

    names = {arm.name for arm in trained}
    # Whether the record contradicts itself is asked when it is concluded from, once it is whole.
    evidence = read_evidence(experiment_dir, AuditReport(experiment_dir))
    runs = [replace(run, arms=[arm for arm in run.arms if arm.arm in names]) for run in evidence.runs]
    return judge_interim(conclude_from(replace(evidence, runs=[run for run in runs if run.arms])))
