"""What to doubt about a conclusion, and what to do next: rules, not opinions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..hypothesis import Claim
from ..statistics.two_level import RunScores
from .comparison import Analysis
from .evidence import Evidence, Looks, find_differing_settings
from .model import Sequential
from .rules import MIN_SEEDS, Ruling
from .summary import BOUNDED, list_names, number, pluralise

_LOW = 0.02
"""A best score below this says that the tasks are too hard, rather than how good the runs are."""


def list_threats(evidence: Evidence, claim: Claim | None, analysis: Analysis, looks: Looks | None) -> list[str]:
    """Everything that makes the numbers worth less than they look."""
    return [*_about_the_design(evidence, claim, analysis, looks), *_about_the_data(evidence, analysis)]


def next_steps(
    evidence: Evidence,
    claim: Claim | None,
    analysis: Analysis,
    ruling: Ruling,
    extremes: Sequence[str],
    sequential: Sequential | None = None,
) -> list[str]:
    """What would settle it, the most useful first."""
    steps = [*ruling.remedies, *_repairs(evidence, analysis)]
    if sequential is not None and sequential.outcome == "futile":
        most = pluralise(sequential.looks[-1], "seed")
        steps.append(f"Give this claim up, or make a bigger change: {most} a run would hardly have supported it.")
    elif ruling.verdict != "invalid":
        steps += _onward(claim, analysis, ruling, extremes)
    return list(dict.fromkeys(steps))


def find_extremes(claim: Claim | None, analysis: Analysis) -> list[str]:
    """Saturation, ceiling and floor: scores that leave no room for the effect."""
    report, base = analysis.report, analysis.baseline_scores
    if report.is_saturated:
        return ["Saturated: every run scores the same on every task, so that this set cannot tell them apart."]
    if not analysis.question.is_rate or not report.runs:
        return []
    means = [run.mean for run in report.runs.values()]
    if analysis.question.sign > 0 and max(means) < _LOW:
        return [f"Floor: the best run scores {number(max(means))}, so the tasks are too hard to tell the runs apart."]
    if base is None or analysis.baseline is None or analysis.baseline.kind == "level":
        return []
    room = 1 - base.mean if analysis.question.sign > 0 else base.mean
    wanted = claim.threshold if claim is not None else 0.0
    if room > max(wanted, _LOW) or (claim is not None and claim.kind == "not_worse"):
        return []
    return [
        f"{'Ceiling' if analysis.question.sign > 0 else 'Floor'}: `{analysis.baseline.name}` scores "
        f"{number(base.mean)}, which leaves {number(room)} to gain."
    ]


def _about_the_design(
    evidence: Evidence, claim: Claim | None, analysis: Analysis, looks: Looks | None
) -> Iterator[str]:
    question, baseline = analysis.question, analysis.baseline
    if claim is not None and not evidence.registered:
        yield "The journal does not hold the hypothesis, so it may have been written after the scores were known."
    if question.shared and analysis.n_compared > 1:
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
    yield from _about_what_differs(evidence, claim, analysis)
    if question.sign > 0 and question.metric.endswith("loss"):
        yield f"More {question.metric} counts as better. If that is not meant, set success_metric: {{mode: min}}."
    if evidence.stopped is not None:
        yield f"The experiment was stopped before its end: {evidence.stopped}."
    if evidence.searched:
        yield "A search spent more on what scored well early, so losers may have lost by an unlucky start."


def _about_what_differs(evidence: Evidence, claim: Claim | None, analysis: Analysis) -> Iterator[str]:
    """Settings that are not what is claimed about, and may be what made the difference."""
    paths = dict.fromkeys(path for changed in find_differing_settings(evidence.runs).values() for path in changed)
    if claim is not None and claim.kind == "trend":
        if others := [path for path in paths if path != claim.axis]:
            yield f"Along `{claim.axis}` the runs differ in {list_names(others)} as well, which may make the trend."
        return
    baseline, candidates = analysis.baseline, analysis.candidates
    if baseline is not None and baseline.kind == "run" and len(candidates) == 1 and len(paths) > 1:
        named = list_names(list(paths))
        yield f"`{candidates[0]}` and the baseline differ in {named}: which of it matters cannot be told."


def _about_the_data(evidence: Evidence, analysis: Analysis) -> Iterator[str]:
    report = analysis.report
    if report.runs and report.n_tasks is None:
        yield "The metric has no scores by task, so the interval contains seed variance but no task sampling variance."
    if report.n_tasks == 1:
        yield "There is a single task, so the interval contains seed variance but no task sampling variance."
    if report.dropped_tasks:
        yield f"Left out for all arms, because some have no score: {pluralise(report.dropped_tasks, 'task')}."
    if failed := sum(report.failed_samples.values()):
        bounded = f" {BOUNDED}" if report.extremes else ""
        yield f"Failed on our side, and in no score: {pluralise(failed, 'sample')}.{bounded}"
    yield from _about_clusters(analysis)
    seeds = {run.n_seeds for run in report.runs.values()}
    if len(seeds) > 1:
        yield f"Runs have between {min(seeds)} and {max(seeds)} scored seeds."
    yield from _find_unchanging_seeds(report.runs)
    for run in evidence.runs:
        if run.name in report.runs and run.problems:
            yield f"Some seeds of `{run.name}` failed or are not scored; those that are left may be the lucky ones."


def _about_clusters(analysis: Analysis) -> Iterator[str]:
    report = analysis.report
    if report.n_clusters is not None and 1 < report.n_clusters < 10:
        yield f"The tasks come from {report.n_clusters} clusters, which is little to know other ones by."


def _find_unchanging_seeds(runs: Mapping[str, RunScores]) -> Iterator[str]:
    for name, run in runs.items():
        same = bool((run.values == run.values[0]).all())
        if same and run.n_seeds > 1 and run.values.min() < run.values.max():
            yield f"All seeds of `{name}` scored the same on every task: check that the seed changes anything."


def _repairs(evidence: Evidence, analysis: Analysis) -> Iterator[str]:
    unfinished = [arm for arm in evidence.arms if arm.problem is not None or arm.status is None]
    broken = [arm.arm for arm in unfinished if arm.stopped is None]
    if broken:
        yield f"Repair {list_names(broken, most=3)} and run the experiment again with --resume."
    if analysis.question.skipped is not None:
        yield f"Score the test set {'/'.join(analysis.question.skipped)}."


def _onward(claim: Claim | None, analysis: Analysis, ruling: Ruling, extremes: Sequence[str]) -> Iterator[str]:
    if analysis.baseline is None and (claim is None or claim.kind != "trend"):
        yield "Give it something to compare with: a run named `baseline`, or `models: [base]` in a benchmark."
    if claim is None:
        yield "State a hypothesis: {claim, metric, min_effect, baseline} under metadata.hypothesis."
        return
    if ruling.verdict == "supported" and claim.kind == "trend":
        yield f"Go further along `{claim.axis}`: where the trend ends is where the best value is."
    elif ruling.verdict == "supported":
        if analysis.question.shared and (analysis.question.report or ("",))[0] != "test":
            yield "Confirm it once on a sealed set: add a benchmark with `split: test`, and call this one `split: val`."
        elif ruling.judged is not None:
            yield f"Take `{ruling.judged}` as the baseline of the next experiment."
    elif extremes and ruling.verdict != "refuted":
        yield _leave_extreme(analysis)
    elif ruling.verdict == "refuted" and claim.limits and ruling.reasons:
        yield "Make the run cheaper, or claim the same at a higher limit in another experiment."
    elif ruling.verdict == "refuted":
        yield "Give this claim up, or claim a smaller effect; more seeds of these runs would hardly change the answer."
    elif ruling.judged is not None and analysis.comparison(ruling.judged) is not None:
        yield _more_evidence(ruling.judged, analysis, claim)
    elif claim.kind == "trend":
        yield "Add seeds, or values further apart on the axis: both make the slope better known."


def _leave_extreme(analysis: Analysis) -> str:
    """What to do where scores leave no room; a score of 0 is often a broken measurement, not a hard task."""
    best = max(analysis.question.sign * run.mean for run in analysis.report.runs.values())
    if abs(best) < _LOW:
        return (
            "Read some answers first (`evsys show`): a score of 0 often means truncated answers, another format or a "
            "learning rate without effect. Otherwise score the runs on easier tasks."
        )
    return "Score the runs on harder tasks: on these, no change can show its effect."


def _more_evidence(judged: str, analysis: Analysis, claim: Claim) -> str:
    """How many seeds would settle it, at the effect that was seen."""
    base, comparison = analysis.baseline_scores, analysis.comparison(judged)
    seeds = analysis.report.runs[judged].n_seeds
    baseline_seeds = base.n_seeds if base is not None and base.trained else seeds
    prospect = analysis.prospect
    if prospect is None or comparison is None or min(seeds, baseline_seeds) < MIN_SEEDS:
        return f"Repeat `{judged}` and the baseline with `n_repeats: {MIN_SEEDS}`: fewer seeds support no claim."
    effect = analysis.question.sign * comparison.difference - claim.threshold
    sees = analysis.detectable
    if effect <= 0 and sees is None:
        return "Add seeds and tasks: with these, no effect within the range of the metric can be detected."
    if effect <= 0 and sees is not None:
        if claim.min_effect and sees > claim.min_effect:
            needed = prospect.seeds_needed(claim.min_effect)
            how = "more tasks" if needed is None else f"`n_repeats: {needed}`, or more tasks"
            return (
                f"Increase the power: the minimum detectable effect is {number(sees)}, and {number(claim.min_effect)} "
                f"was claimed; {how} would do."
            )
        return f"Try a bigger change: the minimum detectable effect of this design is {number(sees)}."
    needed = prospect.seeds_needed(effect)
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
