"""Compare runs by task: the tasks that one run solves and another does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...history.pairs import Side, compare_sides, compare_tasks
from ...history.views.compare import differing_paths
from ...record.view.model import ExperimentView
from ...record.view.task_scores import SetScores, gather_scores
from ..shapes.experiment import Items
from ..shapes.record import ComparedRun, ComparedRuns, ConfigDifference
from .answers import baseline_of
from .lists import shown
from .rollouts import LONGEST_PREVIEW
from .source import BadQuery, ExperimentData, NotFound, Object, RecordSource

_MOST_FLIPS = 200
MOST_COMPARED = 26


def list_items(
    source: RecordSource, id: str, *, metric: str = "", a: str = "", b: str = "", limit: int = 200, cursor: str = ""
) -> Items:
    """Compare two runs of one experiment by task on one metric."""
    view, scores = source.experiment(id).experiment, source.scores(id)
    runs = list(dict.fromkeys(arm.run for arm in view.arms))
    a = a or baseline_of(view)
    b = b or next((run for run in (view.best_run, *runs) if run and run != a), a)
    for run in (a, b):
        if run and run not in runs:
            raise NotFound("run", run)
    sides = [Side(view, run, scores_of_run(view, scores, run)) for run in (a, b)]
    return _with_prompts(source, id, _items(sides[0], sides[1], metric or view.metric, limit, cursor))


def compare(source: RecordSource, references: Sequence[str]) -> ComparedRuns:
    """Compare runs of any experiments, given as EXPERIMENT or EXPERIMENT:RUN, with the first."""
    if not 1 < len(references) <= MOST_COMPARED:
        raise BadQuery(f"give 2 to {MOST_COMPARED} runs to compare (got {len(references)}).")
    chosen = [_find_run(source, reference) for reference in references]
    sides = [
        Side(data.experiment, run, scores_of_run(data.experiment, source.scores(data.experiment.id), run))
        for data, run in chosen
    ]
    compared = [
        ComparedRun(
            experiment=shown(data.experiment, data.experiment.version, data.experiment.live, line=True),
            run=run,
            score=data.experiment.run(run),
            differences=compare_sides(sides[0], side) if at else [],
            items=_compare_tasks(source, sides[0], side) if at else None,
        )
        for at, ((data, run), side) in enumerate(zip(chosen, sides, strict=True))
    ]
    config = differing_paths([(data.config, run) for data, run in chosen])
    return ComparedRuns(runs=compared, config=[ConfigDifference(path=path, values=values) for path, values in config])


def _find_run(source: RecordSource, reference: str) -> tuple[ExperimentData, str]:
    experiment, colon, run = reference.rpartition(":")
    try:
        data = source.experiment(reference)
        run = data.experiment.best_run or next((arm.run for arm in data.experiment.arms), "")
    except NotFound:
        if not colon:
            raise
        data = source.experiment(experiment)
        if run not in {arm.run for arm in data.experiment.arms}:
            raise NotFound("run", reference) from None
    return data, run


def _compare_tasks(source: RecordSource, first: Side, second: Side) -> Items | None:
    """Compare two runs by task on the first experiment's metric; None if one of them has no scores for it."""
    metric = first.view.metric
    if metric not in first.scores or metric not in second.scores or not any(first.scores[metric].by_task):
        return None
    return _with_prompts(source, second.view.id, _items(first, second, metric, _MOST_FLIPS, ""))


def _with_prompts(source: RecordSource, id: str, items: Items) -> Items:
    split, _, rest = items.metric.partition("/")
    prompts = source.prompts(id, split, rest.rpartition("/")[0]) if items.items else {}
    shown = [
        replace(task, prompt=prompts[task.task][:LONGEST_PREVIEW]) if task.task in prompts else task
        for task in items.items
    ]
    return items.model_copy(update={"items": shown})


def scores_of_run(view: ExperimentView, scores: Mapping[str, Sequence[Object]], run: str) -> dict[str, SetScores]:
    """The scores of one run over all of its seeds, by metric."""
    return gather_scores((scores.get(arm.arm, ()), arm.metrics) for arm in view.arms if arm.run == run)


def _items(first: Side, second: Side, metric: str, limit: int, cursor: str) -> Items:
    left, right = first.scores, second.scores
    metrics = sorted({name for side in (left, right) for name, scores in side.items() if any(scores.by_task)})
    if metric not in metrics and metrics:
        metric = metrics[0]
    tasks = compare_tasks(left.get(metric), right.get(metric))
    begin = _position(cursor)
    pair = next((pair for pair in compare_sides(first, second) if pair.metric == metric), None)
    return Items(
        metric=metric,
        metrics=metrics,
        a=first.run,
        b=second.run,
        gained=sum(item.change == "gained" for item in tasks),
        lost=sum(item.change == "lost" for item in tasks),
        same=sum(item.change == "same" for item in tasks),
        difference=pair,
        items=tasks[begin : begin + limit],
        next=str(begin + limit) if begin + limit < len(tasks) else None,
    )


def _position(cursor: str) -> int:
    if not cursor:
        return 0
    if not cursor.isdecimal() or len(cursor) > 9:
        raise BadQuery(f"cursor {cursor[:40]!r} does not belong to this list. Begin again without one.")
    return int(cursor)
