"""Threats to the validity of a conclusion, and next steps, by fixed rules."""

from __future__ import annotations

from collections.abc import Iterator

from ..hypothesis import Claim
from .comparison import Analysis
from .evidence import find_differing_settings
from .model import Sequential
from .rules import MIN_SEEDS, Ruling
from .summary import list_names, number, pluralise

_LOW = 0.02
"""Below this score, or this distance to the end of the range, the tasks cannot show an effect."""


def list_threats(analysis: Analysis) -> list[str]:
    """List the threats to the validity of the results: design, data, and remarks of the audit."""
    evidence, report = analysis.evidence, analysis.report
    axis = analysis.claim.axis if analysis.claim is not None else None
    paths = [path for path in find_differing_settings(evidence.runs) if path != axis]
    is_confounded = paths and (axis is not None or (len(paths) > 1 and len(evidence.runs) == 2))
    failed = sum(report.failed_samples.values())
    threats = (
        (
            analysis.question.shared and len(analysis.candidates) > 1,
            "Runs are chosen by the same scores that are reported, because there is no separate val and test set.",
        ),
        (is_confounded, f"The runs differ in {list_names(paths)}: which of it matters is unknown."),
        (evidence.stopped, f"The experiment was stopped before its end: {evidence.stopped}."),
        (
            report.runs and (report.n_tasks or 1) == 1,
            "There are no scores by task, or only one task: intervals contain no task sampling variance.",
        ),
        (
            report.dropped_tasks,
            f"Left out for all arms, because some have no score: {pluralise(report.dropped_tasks, 'task')}.",
        ),
        (
            failed,
            f"Failed on our side, and in no score: {pluralise(failed, 'sample')}. Intervals reach from all of them "
            "wrong to all of them right.",
        ),
    )
    return [*(text for applies, text in threats if applies), *(f"{one.rstrip('.')}." for one in evidence.remarks)]


def next_steps(analysis: Analysis, ruling: Ruling, sequential: Sequential | None) -> list[str]:
    """List the next steps, the most useful first."""
    steps = list(ruling.remedies)
    if broken := [arm.arm for arm in analysis.evidence.arms if arm.problem is not None or arm.status is None]:
        steps.append(f"Repair {list_names(broken, most=3)} and run the experiment again with --resume.")
    if analysis.question.skipped is not None:
        steps.append(f"Score the test set {'/'.join(analysis.question.skipped)}.")
    if ruling.verdict != "invalid":
        steps += _onward(analysis, ruling, futile=bool(sequential and sequential.outcome == "futile"))
    return list(dict.fromkeys(steps))


def _onward(analysis: Analysis, ruling: Ruling, *, futile: bool) -> Iterator[str]:
    claim, question, judged = analysis.claim, analysis.question, ruling.judged
    if analysis.baseline is None and (claim is None or claim.kind != "trend"):
        yield "Give it something to compare with: a run named `baseline`, or `models: [base]` in a benchmark."
    if claim is None:
        yield "State a hypothesis: {claim, metric, min_effect, baseline} under metadata.hypothesis."
    elif ruling.verdict == "supported":
        if question.shared and (question.report or "?")[0] != "test":
            yield "Confirm it once on a sealed set: add a benchmark with `split: test`, and call this one `split: val`."
        elif judged is not None:
            yield f"Take `{judged}` as the baseline of the next experiment."
    elif ruling.verdict == "refuted" or futile:
        yield "Give this claim up, or make a bigger change; more seeds of these runs would hardly change the answer."
    elif analysis.report.is_saturated and max(run.mean for run in analysis.report.runs.values()) < _LOW:
        yield (
            "Read some answers first (`evsys show`): a score of 0 often means truncated answers, another format "
            "or a learning rate without effect. Otherwise score the runs on easier tasks."
        )
    elif analysis.report.is_saturated or (
        claim.kind == "better" and analysis.room is not None and analysis.room <= max(claim.threshold, _LOW)
    ):
        yield "Score the runs on harder tasks: on these, no change can show its effect."
    elif judged is not None or claim.kind == "trend":
        yield _more_evidence(claim, analysis, judged)


def _more_evidence(claim: Claim, analysis: Analysis, judged: str | None) -> str:
    """Recommend the number of seeds for 80 % power at the observed effect, or at the claimed one."""
    comparison, prospect = analysis.comparison(judged), analysis.prospect
    seeds = min((run.n_seeds for run in analysis.report.runs.values()), default=0)
    if seeds < MIN_SEEDS:
        return f"Repeat all runs with `n_repeats: {MIN_SEEDS}`: fewer seeds support no claim."
    gain = 0.0 if comparison is None else analysis.question.sign * comparison.difference - claim.threshold
    effect = gain if gain > 0 else claim.min_effect
    if prospect is None or effect <= 0:
        return "Make a bigger change, or add tasks or seeds."
    needed = prospect.seeds_needed(effect)
    how = "add tasks, or samples of each task" if needed is None else f"set `n_repeats: {max(needed, seeds + 1)}`"
    return f"For 80 % power at an effect of {number(effect)}, {how}."
