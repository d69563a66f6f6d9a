"""What to doubt about a conclusion, and what to do next: rules, not opinions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..statistics.two_level import RunScores
from .comparison import Analysis
from .evidence import Evidence
from .looks import Looks
from .measured import saturated
from .rules import Ruling
from .summary import counted

_SEEDS_TO_START_WITH = 3


def threats(evidence: Evidence, claim: dict[str, Any] | None, analysis: Analysis, looks: Looks | None) -> list[str]:
    """Everything that makes the numbers worth less than they look."""
    return [*_about_the_design(evidence, claim, analysis, looks), *_about_the_data(evidence, analysis)]


def next_steps(evidence: Evidence, claim: dict[str, Any] | None, analysis: Analysis, ruling: Ruling) -> list[str]:
    """What would settle it, the most useful first."""
    steps = [*ruling.remedies, *_repairs(evidence, analysis)]
    if ruling.verdict != "invalid":
        steps += _onward(claim, analysis, ruling)
    return list(dict.fromkeys(steps))


def _about_the_design(
    evidence: Evidence, claim: dict[str, Any] | None, analysis: Analysis, looks: Looks | None
) -> Iterator[str]:
    question, baseline = analysis.question, analysis.baseline
    if claim is not None and not evidence.registered:
        yield "The journal does not hold the hypothesis, so it may have been written after the scores were known."
    if question.shared and len(analysis.report.runs) > 1:
        yield "Runs are chosen by the same scores that are reported, because there is no separate val and test set."
    if looks is not None and looks.before:
        yield (
            f"The test set had been scored {counted(looks.before, 'time')} in "
            f"{counted(looks.experiments, 'earlier experiment')}, so choices may have been fitted to it."
        )
    if baseline is not None and baseline.how.startswith("it is the first run"):
        yield f"`{baseline.name}` is the baseline only because it is the first run. Name one in the hypothesis."
    if baseline is not None and baseline.kind == "model":
        yield "The baseline is a model before training: any training at all may be what helped."
    if question.sign > 0 and question.metric.endswith("loss"):
        yield f"More {question.metric} counts as better. If that is not meant, set success_metric: {{mode: min}}."
    if evidence.stopped is not None:
        yield f"The experiment was stopped before its end: {evidence.stopped}."
    if evidence.searched:
        yield "A search spent more on what scored well early, so losers may have lost by an unlucky start."


def _about_the_data(evidence: Evidence, analysis: Analysis) -> Iterator[str]:
    report = analysis.report
    if report.runs and not report.by_task:
        yield "The metric has no scores by task, so the interval knows the luck of seeds but not that of the tasks."
    if report.by_task and (report.n_tasks or 0) < 2:
        yield "There is a single task, so the interval knows the luck of seeds but not that of the tasks."
    if report.dropped_tasks:
        yield f"Left out for all arms, because some have no score: {counted(report.dropped_tasks, 'task')}."
    if failed := sum(report.failed_samples.values()):
        yield f"Failed on our side, and in no score: {counted(failed, 'sample')}."
    seeds = {run.n_seeds for run in report.runs.values()}
    if len(seeds) > 1:
        yield f"Runs have between {min(seeds)} and {max(seeds)} scored seeds."
    if seeds == {2}:
        yield "Two seeds a run tell little about how far a third would lie from them."
    if saturated(report):
        yield "Every run scores the same on every task: this set cannot tell them apart."
    yield from _unchanging_seeds(report.runs)
    for run in evidence.runs:
        if run.name in report.runs and run.problems:
            yield f"Some seeds of `{run.name}` failed or are not scored; those that are left may be the lucky ones."


def _unchanging_seeds(runs: Mapping[str, RunScores]) -> Iterator[str]:
    for name, run in runs.items():
        same = bool((run.values == run.values[0]).all())
        if same and run.n_seeds > 1 and run.values.min() < run.values.max():
            yield f"All seeds of `{name}` scored the same on every task: check that the seed changes anything."


def _repairs(evidence: Evidence, analysis: Analysis) -> Iterator[str]:
    unfinished = [arm for arm in evidence.arms if arm.problem is not None or arm.status is None]
    broken = [arm.arm for arm in unfinished if arm.stopped is None]
    if broken:
        shown = ", ".join(f"`{arm}`" for arm in broken[:3]) + (f" and {len(broken) - 3} more" if broken[3:] else "")
        yield f"Repair {shown} and run the experiment again with --resume."
    if analysis.question.skipped is not None:
        yield f"Score the test set {'/'.join(analysis.question.skipped)}."


def _onward(claim: dict[str, Any] | None, analysis: Analysis, ruling: Ruling) -> Iterator[str]:
    if analysis.baseline is None:
        yield "Give it something to compare with: a run named `baseline`, or `models: [base]` in a benchmark."
    if claim is None:
        yield "State a hypothesis: {claim, metric, min_effect, baseline} under metadata.hypothesis."
        return
    if ruling.verdict == "supported":
        if analysis.question.shared:
            yield "Confirm it once on a sealed set: add a benchmark with `split: test`, and call this one `split: val`."
        else:
            yield f"Take `{ruling.judged}` as the baseline of the next experiment."
    elif ruling.verdict == "refuted":
        yield "Give this claim up, or claim a smaller effect; more seeds of the same runs would not change the answer."
    elif ruling.judged is not None and analysis.comparison(ruling.judged) is not None:
        yield _more_evidence(ruling.judged, analysis, float(claim["min_effect"]))


def _more_evidence(judged: str, analysis: Analysis, min_effect: float) -> str:
    """How many seeds would settle it, at the effect that is left after the flattery of choosing is taken away."""
    base = analysis.baseline_scores
    seeds = analysis.report.runs[judged].n_seeds
    baseline_seeds = base.n_seeds if base is not None and base.trained else seeds
    plan = analysis.plan(judged)
    comparison = analysis.comparison(judged)
    if plan is None or comparison is None or min(seeds, baseline_seeds) < 2:
        return (
            f"Repeat `{judged}` and the baseline with `n_repeats: {_SEEDS_TO_START_WITH}`: nothing counts before that."
        )
    effect = analysis.question.sign * comparison.adjusted - min_effect
    if effect <= 0:
        return "Try a bigger change: what was seen is no more than the best of several runs gains by luck."
    needed = plan.seeds_needed(effect)
    if needed is None:
        return "Add tasks, or samples of each task: no number of seeds would show an effect this small."
    if needed <= seeds:
        return (
            f"Repeat `{judged}` and the baseline with fresh seeds: {seeds} should have been enough to see this effect."
        )
    return (
        f"Set `n_repeats: {needed}` for `{judged}` and the baseline: "
        "at the effect seen here, that many seeds show it in 80 % of repetitions."
    )
