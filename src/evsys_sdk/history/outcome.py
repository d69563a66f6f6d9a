"""What an experiment found, and how it compares with another.

It is the conclusion, and where that says nothing the plain means of the scores on record. Two experiments are compared
task by task: how much better one is, and how far that can be believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ..record.run_files.scores import task_scores
from ..record.runs import RunRecord
from ..record.values import Object, items, number, part, text
from .summary import SPLITS, is_score

if TYPE_CHECKING:
    from .detail import Detail

type ByTask = dict[str, float]


@dataclass(frozen=TYPE_CHECKING, slots=True)  # see `RunRecord`
class RunScore:
    """What one run scored, over its seeds."""

    run: str
    score: float | None = None
    low: float | None = None
    high: float | None = None
    n_seeds: int = 0
    n_tasks: int | None = None
    failures: int = 0
    role: str = ""
    """`baseline` for the run that the others are compared with."""
    covers: str = ""
    """What its interval is about: `tasks` alone where no run has a second seed, else `tasks and seeds`."""
    step: int | None = None
    """The step that the score is of, where no seed came to its end."""


@dataclass(frozen=TYPE_CHECKING, slots=True)  # see `RunRecord`
class Outcome:
    """The answer of an experiment."""

    verdict: str = ""
    sentence: str = ""
    """Why that is the verdict."""
    metric: str = ""
    mode: str = "max"
    best_run: str = ""
    best: RunScore | None = None
    next: str = ""
    """What the conclusion suggests to do next."""
    runs: list[RunScore] = field(default_factory=list[RunScore])


def outcome_of(conclusion: Object, config: Object, arms: Sequence[RunRecord]) -> Outcome:
    """The conclusion, completed from the scores on record where it says nothing: of arms that were interrupted, too."""
    own_metric, own_mode = find_deciding_metric(config, arms)
    metric, mode = text(conclusion.get("metric")) or own_metric, text(conclusion.get("mode")) or own_mode
    concluded = {run.run: run for run in _read_concluded_runs(conclusion)}
    score = number(conclusion.get("best_score"))
    if metric != own_metric and own_metric and not is_score(metric):  # a loss says little about a recipe with a reward
        metric, mode, concluded, score = own_metric, own_mode, {}, None
    plain = {run.run: run for run in plain_scores(arms, metric)}
    # A conclusion about ends does not tell what a run scored on the way.
    unsaid = {
        name
        for name, run in plain.items()
        if name not in concluded or (concluded[name].score is None and run.step is not None)
    }
    runs = [plain[name] if name in unsaid else concluded[name] for name in {**concluded, **plain}]
    own = [run for run in runs if run.run in plain or not plain]  # the others are those of a parent
    best_run = _best_run(conclusion, own, unsaid, mode)
    best = next((run for run in runs if run.run == best_run), None)
    if best_run and score is not None and (best is None or best.score is None):
        best = RunScore(best_run, score)
    return Outcome(
        verdict=text(conclusion.get("verdict")),
        sentence=text(conclusion.get("summary")),
        metric=metric,
        mode="min" if mode == "min" else "max",
        best_run=best_run,
        best=best,
        next=" ".join(one for one in items(conclusion.get("next")) if isinstance(one, str)),
        runs=runs,
    )


def _best_run(conclusion: Object, runs: Sequence[RunScore], unsaid: set[str], mode: str) -> str:
    """What the conclusion says, unless a run that it knows no score of has a better one on record."""
    said = text(conclusion.get("best_arm"))
    if said and runs and all(run.run != said for run in runs):  # its parent's run was better than its own
        return best_of([run for run in runs if not run.failures], mode)
    usable = [run for run in runs if not run.failures and (not conclusion or run.run == said or run.run in unsaid)]
    scored = [run for run in usable if run.score is not None]
    return best_of(scored, mode) or said if not conclusion or any(run.run in unsaid for run in scored) else said


def find_deciding_metric(config: Object, arms: Sequence[RunRecord]) -> tuple[str, str]:
    """Full name and direction of the metric that ranks runs, also where none of them came to its end.

    Without a benchmark that is the measure by which the recipe itself chooses its best checkpoint.
    """
    on_the_way = {metric: None for arm in arms if arm.status != "completed" for metric, _, _, _ in arm.scores}
    metric, mode = success_metric(config, arms, scored=on_the_way)
    return (metric, mode) if metric else _own_measure(arms)


def success_metric(config: Object, arms: Iterable[RunRecord], *, scored: Iterable[str] = ()) -> tuple[str, str]:
    """Full name and direction of the metric that decides, among those that arms ended with or were `scored` by."""
    wanted = part(config, "metadata").get("success_metric")
    name = text(wanted) or text(part(wanted).get("name"))
    mode = text(part(wanted).get("mode")) or "max"
    known = {key: None for arm in arms for key in arm.metrics}
    if name in known:
        return name, mode
    scores = sorted((key for key in {**known, **dict.fromkeys(scored)} if is_score(key)), key=_rank)
    if name:
        return next((key for key in scores if key.endswith(f"/{name}")), name), mode
    return (scores[0] if scores else ""), mode


def _own_measure(arms: Sequence[RunRecord]) -> tuple[str, str]:
    for arm in arms:
        notes = part(arm.result or {}, "extras") if arm.metrics else {}
        if measure := text(notes.get("selection_metric")):
            name = measure if measure in arm.metrics else f"final_{measure}"
            return (name if name in arm.metrics else measure), text(notes.get("selection_mode")) or "min"
    return "", "max"


def latest_score(arm: RunRecord, metric: str) -> tuple[float, int | None] | None:
    """The score of an arm, and the step it is of where the arm did not come to its end; None without any."""
    if arm.status == "completed":
        value = None if arm.unscored else arm.metrics.get(metric)
        return None if value is None else (value, None)
    if arm.problem:
        return None
    taken = [
        (step, value)
        for name, step, line, found in arm.scores
        if name == metric and line.get("split") != "baseline" and (value := number(found.get("value"))) is not None
    ]
    taken = taken or (arm.logged.get(metric, []) if metric and not is_score(metric) else [])
    if taken:
        step, value = max(taken)
        return value, int(step)
    return (arm.metrics[metric], int(arm.metrics.get("steps", 0))) if metric in arm.metrics else None


def plain_scores(arms: Sequence[RunRecord], metric: str) -> list[RunScore]:
    """The mean of each run over its seeds. It has no interval: conclusions draw those, from tasks and seeds."""
    by_run: dict[str, list[RunRecord]] = {}
    for arm in arms:
        by_run.setdefault(arm.run, []).append(arm)
    return [_plain_score(run, found, metric) for run, found in by_run.items()]


def best_of(runs: Sequence[RunScore], mode: str) -> str:
    """The run with the best mean; the earlier one wins a tie."""
    sign = 1 if mode == "min" else -1
    scored = [run for run in runs if run.score is not None]
    return min(scored, key=lambda run: sign * (run.score or 0.0)).run if scored else ""


def _plain_score(run: str, arms: Sequence[RunRecord], metric: str) -> RunScore:
    """Seeds that came to their end count; where none did, those that were scored on the way."""
    bad = sum(bool(arm.problem) for arm in arms)
    found = [(arm, *score) for arm in arms if (score := latest_score(arm, metric)) is not None]
    ended = [one for one in found if one[2] is None]
    good = ended or found
    if not good:
        return RunScore(run, failures=bad)
    mean = sum(value for _, value, _ in good) / len(good)
    tasks = good[0][0].metrics.get(f"{metric.rpartition('/')[0]}/tasks")
    step = min((step for _, _, step in good if step is not None), default=None)
    n_tasks = None if tasks is None else int(tasks)
    return RunScore(run, mean, n_seeds=len(good), n_tasks=n_tasks, failures=bad, step=step)


def _read_concluded_runs(conclusion: Object) -> list[RunScore]:
    rows = [part(raw) for raw in items(conclusion.get("runs"))]
    repeated = any((number(row.get("n_seeds")) or 0) > 1 for row in rows)  # runs lend each other their seed noise
    return [
        RunScore(
            text(row.get("name")),
            number(row.get("mean")),
            number(row.get("low")),
            number(row.get("high")),
            int(number(row.get("n_seeds")) or 0),
            None if (n_tasks := number(row.get("n_tasks"))) is None else int(n_tasks),
            int(number(row.get("failures")) or 0),
            "baseline" if row.get("is_baseline") is True else "",
            "" if number(row.get("low")) is None else "tasks and seeds" if repeated else "tasks",
        )
        for row in rows
        if text(row.get("name"))
    ]


def _rank(metric: str) -> tuple[int, str]:
    return next(index for index, split in enumerate(SPLITS) if metric.startswith(f"{split}/")), metric


@dataclass(frozen=True, slots=True)
class SetScores:
    """One metric of one run on one set: the seeds, each with its score and, where known, that of each task."""

    sha256: str
    totals: list[float] = field(default_factory=list[float])
    by_task: list[ByTask] = field(default_factory=list[ByTask])

    @property
    def mean(self) -> float:
        return sum(self.totals) / len(self.totals)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """One metric, second experiment minus first."""

    metric: str
    first: float
    second: float
    difference: float
    low: float | None
    high: float | None
    n_tasks: int | None
    """Tasks that were paired; None where there are no scores by task."""
    n_seeds: tuple[int, int]
    remark: str = ""
    covers: str = ""
    """What the interval is about: `tasks`, `seeds`, or `tasks and seeds`."""
    stderr: float | None = None
    df: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves zero out, and the luck of training is in it."""
        clear = self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)
        return clear and "seeds" in self.covers


def compare_pairs(first: Detail, second: Detail) -> list[PairedDifference]:
    """Every metric that both experiments have, in the order of its name."""
    left, right = first.scores, second.scores
    return [pair_scores(metric, left[metric], right[metric]) for metric in sorted(left) if metric in right]


def scores_of(arms: Iterable[RunRecord]) -> dict[str, SetScores]:
    """The last scoring of each set by the seeds of a run, by full metric name; without one, the plain metrics."""
    found: dict[str, SetScores] = {}
    for arm in arms:
        # Steps in order, so that the last one stays.
        latest = {metric: (line, value) for metric, _, line, value in arm.scores if line.get("split") != "baseline"}
        for metric, (line, value) in latest.items():
            add_score(found, metric, line, value)
        for metric, score in arm.metrics.items():
            if is_score(metric) and metric not in latest:
                add_score(found, metric, {}, {"value": score})
    return found


def add_score(found: dict[str, SetScores], metric: str, line: Mapping[str, Any], value: Mapping[str, Any]) -> None:
    """Count one seed's scoring of a set to what is `found` of a metric."""
    score = number(value.get("value"))
    if score is None:
        return
    known = found.setdefault(metric, SetScores(text(line.get("sha256"))))
    known.totals.append(score)
    known.by_task.append(task_scores(line, value) or {})


def pair_scores(metric: str, first: SetScores, second: SetScores) -> PairedDifference:
    """Second minus first, over the tasks that both have."""
    everyone = [set(one) for one in [*first.by_task, *second.by_task]]
    common = everyone[0].intersection(*everyone[1:])
    seeds = (len(first.totals), len(second.totals))
    if len(common) < 2:  # one task tells nothing about how tasks differ
        matrices = [[[total] for total in one.totals] for one in (first, second)]
        remark = "not paired: no scores by task" if not common else "not paired: one common task"
    else:
        matrices = [[[seed[task] for task in sorted(common)] for seed in one.by_task] for one in (first, second)]
        remark = _remark(first, second, common)
    paired = len(common) if len(common) > 1 else None
    left, right = (sum(map(sum, rows)) / sum(map(len, rows)) for rows in matrices)
    stderr, df, covers = _uncertainty(matrices[0], matrices[1], by_task=paired is not None)
    difference, half = right - left, _half_width(stderr, df)
    low, high = (None, None) if half is None else (difference - half, difference + half)
    return PairedDifference(metric, left, right, difference, low, high, paired, seeds, remark, covers, stderr, df)


def _remark(first: SetScores, second: SetScores, common: set[str]) -> str:
    largest = max(len(one) for one in [*first.by_task, *second.by_task])
    remarks = [f"only {len(common)} common tasks of {largest}"] if len(common) < largest else []
    if first.sha256 and second.sha256 and first.sha256 != second.sha256:
        remarks.append("the task sets differ")
    if len(first.totals) == 1 and len(second.totals) == 1:
        remarks.append("one seed each: the interval is about tasks, not about the luck of training")
    return "; ".join(remarks)


def _uncertainty(
    left: Sequence[Sequence[float]], right: Sequence[Sequence[float]], *, by_task: bool
) -> tuple[float | None, float | None, str]:
    """Standard error, its degrees of freedom, and what it covers; nothing where neither tasks nor seeds tell."""
    import numpy as np

    from ..experiment.statistics.two_level import RunScores, compare

    found = compare(RunScores(np.array(left), by_task=by_task), [RunScores(np.array(right), by_task=by_task)])
    if found is None:
        return None, None, ""
    covers = [*(["tasks"] if by_task else []), *(["seeds"] if found.noise is not None else [])]
    return float(found.stderr[0]), float(found.df[0]), " and ".join(covers)


def _half_width(stderr: float | None, df: float | None) -> float | None:
    """Half of the 95 % interval."""
    if stderr is None or df is None:
        return None
    from ..experiment.statistics.student_t import t_quantile

    return t_quantile(0.975, df) * stderr
