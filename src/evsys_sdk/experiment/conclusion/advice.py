"""Threats to the validity of a conclusion, and next steps, by fixed rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..hypothesis import Claim
from .comparison import Analysis
from .evidence import Looks, find_differing_settings
from .model import Sequential
from .rules import MIN_SEEDS, Ruling
from .summary import list_names, number, pluralise

_LOW = 0.02
"""If the best score is below this value, the tasks are too hard to compare runs."""


def find_extremes(analysis: Analysis) -> list[str]:
    """Describe saturation, ceiling and floor effects."""
    report, base, sign, claim = analysis.report, analysis.baseline_scores, analysis.question.sign, analysis.claim
    if report.is_saturated:
        return ["Saturated: every run scores the same on every task, so that this set cannot tell them apart."]
    best = max((sign * run.mean for run in report.runs.values()), default=1.0)
    if analysis.question.is_rate and 0 <= best < _LOW:
        return [f"Floor: the best run scores {number(best)}, so the tasks are too hard to tell the runs apart."]
    if base is None or base.is_level or not analysis.question.is_rate or (claim and claim.kind == "not_worse"):
        return []
    room, name = 1 - base.mean if sign > 0 else base.mean, analysis.baseline.name if analysis.baseline else ""
    if room > max(claim.threshold if claim else 0.0, _LOW):
        return []
    end = "Ceiling" if sign > 0 else "Floor"
    return [f"{end}: `{name}` scores {number(base.mean)}, which leaves {number(room)} to gain."]


def list_threats(analysis: Analysis, looks: Looks | None) -> list[str]:
    """List the threats to the validity of the results: design, data, and remarks of the audit."""
    remarks = (f"{remark.rstrip('.')}." for remark in analysis.evidence.remarks)
    return [*_about_the_design(analysis, looks), *_about_the_data(analysis), *remarks]


def _about_the_design(analysis: Analysis, looks: Looks | None) -> Iterator[str]:
    evidence, claim = analysis.evidence, analysis.claim
    question, baseline = analysis.question, analysis.baseline
    if question.shared and len(analysis.candidates) > 1:
        yield "Runs are chosen by the same scores that are reported, because there is no separate val and test set."
    if looks is not None and looks.before:
        yield (
            f"The test set had been scored {pluralise(looks.before, 'time')} in "
            f"{pluralise(looks.experiments, 'earlier experiment')}, so choices may have been fitted to it."
        )
    if baseline is not None and baseline.how.startswith("it is the first run"):
        yield f"`{baseline.name}` is the baseline only because it is the first run. Name one in the hypothesis."
    if baseline is not None and baseline.kind == "model":
        yield "The baseline is a model before training: any training at all may be what helped."
    if baseline is not None and evidence.parent is not None and baseline.name == evidence.parent.name:
        yield f"`{baseline.name}` was run in another experiment: code, prices or the machine may have changed since."
    axis = claim.axis if claim is not None else None
    paths = [path for path in find_differing_settings(evidence.runs) if path != axis]
    if paths and (axis is not None or (len(paths) > 1 and len(evidence.runs) == 2)):
        yield f"The runs differ in {list_names(paths)}: which of it matters cannot be told."
    if evidence.stopped is not None:
        yield f"The experiment was stopped before its end: {evidence.stopped}."


def _about_the_data(analysis: Analysis) -> Iterator[str]:
    report = analysis.report
    if report.runs and (report.n_tasks or 1) == 1:
        what = "There is a single task" if report.n_tasks else "The metric has no scores by task"
        yield f"{what}, so the interval contains seed variance but no task sampling variance."
    if report.dropped_tasks:
        yield f"Left out for all arms, because some have no score: {pluralise(report.dropped_tasks, 'task')}."
    if failed := sum(report.failed_samples.values()):
        yield (
            f"Failed on our side, and in no score: {pluralise(failed, 'sample')}. Intervals reach from all of them "
            "wrong to all of them right."
        )
    if report.n_clusters is not None and 1 < report.n_clusters < 10:
        yield f"The tasks come from {report.n_clusters} clusters, which is little to know other ones by."
    # If a run scores the same on every task, its seeds cannot differ.
    varied = {name: run.values for name, run in report.runs.items() if run.n_seeds > 1 and len({*run.values[0]}) > 1}
    if same := [name for name, values in varied.items() if (values == values[0]).all()]:
        yield f"All seeds of {list_names(same)} scored the same on every task: check that the seed changes anything."


def next_steps(analysis: Analysis, ruling: Ruling, extremes: Sequence[str], sequential: Sequential | None) -> list[str]:
    """List the next steps, the most useful first."""
    steps = list(ruling.remedies)
    if broken := [arm.arm for arm in analysis.evidence.arms if arm.problem is not None or arm.status is None]:
        steps.append(f"Repair {list_names(broken, most=3)} and run the experiment again with --resume.")
    if analysis.question.skipped is not None:
        steps.append(f"Score the test set {'/'.join(analysis.question.skipped)}.")
    if ruling.verdict != "invalid":
        steps += _onward(analysis, ruling, extremes, futile=bool(sequential and sequential.outcome == "futile"))
    return list(dict.fromkeys(steps))


def _onward(analysis: Analysis, ruling: Ruling, extremes: Sequence[str], *, futile: bool) -> Iterator[str]:
    claim = analysis.claim
    if analysis.baseline is None and (claim is None or claim.kind != "trend"):
        yield "Give it something to compare with: a run named `baseline`, or `models: [base]` in a benchmark."
    if claim is None:
        yield "State a hypothesis: {claim, metric, min_effect, baseline} under metadata.hypothesis."
    elif ruling.verdict == "supported" and analysis.question.shared and (analysis.question.report or "?")[0] != "test":
        yield "Confirm it once on a sealed set: add a benchmark with `split: test`, and call this one `split: val`."
    elif ruling.verdict == "supported":
        if ruling.judged is not None:
            yield f"Take `{ruling.judged}` as the baseline of the next experiment."
    elif ruling.verdict == "refuted" or futile:
        yield "Give this claim up, or make a bigger change; more seeds of these runs would hardly change the answer."
    elif extremes:
        best = max(analysis.question.sign * run.mean for run in analysis.report.runs.values())
        yield (
            "Score the runs on harder tasks: on these, no change can show its effect."
            if abs(best) >= _LOW
            else "Read some answers first (`evsys show`): a score of 0 often means truncated answers, another format "
            "or a learning rate without effect. Otherwise score the runs on easier tasks."
        )
    elif ruling.judged is not None or claim.kind == "trend":
        yield _more_evidence(claim, analysis, ruling.judged)


def _more_evidence(claim: Claim, analysis: Analysis, judged: str | None) -> str:
    """Recommend the number of seeds for 80 % power at the observed effect, or at the claimed one."""
    comparison, prospect, detectable = analysis.comparison(judged), analysis.prospect, analysis.detectable
    seeds = min((run.n_seeds for run in analysis.report.runs.values()), default=0)
    if seeds < MIN_SEEDS:
        return f"Repeat all runs with `n_repeats: {MIN_SEEDS}`: fewer seeds support no claim."
    if comparison is None or prospect is None:
        return "Add tasks, or seeds."
    effect, known = analysis.question.sign * comparison.difference - claim.threshold, ""
    if detectable is not None:
        known = f" (minimum detectable effect now: {number(detectable)})"
    if effect <= 0 and not claim.min_effect:
        return f"Make a bigger change, or add tasks{known}."
    needed = prospect.seeds_needed(effect if effect > 0 else claim.min_effect)
    how = "add tasks, or samples of each task" if needed is None else f"set `n_repeats: {max(needed, seeds + 1)}`"
    return f"For 80 % power at the {'effect seen here' if effect > 0 else 'claimed effect'}, {how}{known}."
