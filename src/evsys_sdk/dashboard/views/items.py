"""Task by task: what one run gets right that another does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...history.pairs import pair_scores
from ...history.views.compare import differing_paths
from ...record.run_files.scores import metric_name
from ...record.values import number, part, text
from ...record.view.model import Difference, ExperimentView
from ...record.view.question import is_score
from ...record.view.task_scores import SetScores, add_score
from ..shapes import Comparison, ConfigDifference, Item, Items, MetricDifference
from .answers import baseline_of
from .source import BadQuery, NotFound, Object, RecordSource, lighten

type RunSets = dict[str, SetScores]
"""The last scoring of each set by one run, over its seeds, by full metric name."""

_MOST_FLIPS = 200


def list_items(
    source: RecordSource, id: str, *, metric: str = "", a: str = "", b: str = "", limit: int = 200, cursor: str = ""
) -> Items:
    """Two runs of one experiment on one benchmark."""
    one, scores = source.experiment(id).experiment, source.scores(id)
    runs = list(dict.fromkeys(arm.run for arm in one.arms))
    a = a or baseline_of(one)
    b = b or next((run for run in (one.best_run, *runs) if run and run != a), a)
    for run in (a, b):
        if run and run not in runs:
            raise NotFound("run", run)
    left, right = scores_of_run(one, scores, a), scores_of_run(one, scores, b)
    return _items(left, right, a, b, metric or one.metric, limit, cursor)


def compare(source: RecordSource, a: str, b: str) -> Comparison:
    """Two experiments, by their best runs."""
    first, second = source.experiment(a), source.experiment(b)
    views = (first.experiment, second.experiment)
    chosen = [one.best_run or next((arm.run for arm in one.arms), "") for one in views]
    left, right = [scores_of_run(one, source.scores(one.id), run) for one, run in zip(views, chosen, strict=True)]
    paired = [pair_scores(metric, left[metric], right[metric]) for metric in sorted(left) if metric in right]
    metric = views[0].metric
    has_tasks = metric in left and metric in right and any(left[metric].by_task)
    return Comparison(
        a=lighten(views[0]),
        b=lighten(views[1]),
        metrics=[
            MetricDifference(
                metric=pair.metric,
                a=pair.first,
                b=pair.second,
                difference=pair.difference,
                low=pair.low,
                high=pair.high,
                n_tasks=pair.n_tasks,
                remark=pair.remark,
            )
            for pair in paired
        ],
        config=[
            ConfigDifference(path=path, a=one, b=other)
            for path, (one, other) in differing_paths([(first.config, chosen[0]), (second.config, chosen[1])])
        ],
        items=_items(left, right, chosen[0], chosen[1], metric, _MOST_FLIPS, "") if has_tasks else None,
    )


def scores_of_run(one: ExperimentView, scores: Mapping[str, Sequence[Object]], run: str) -> RunSets:
    """What one run scored, over all of its seeds."""
    found: RunSets = {}
    for arm in one.arms:
        if arm.run != run:
            continue
        # Of a set that was scored during training as well, the last step counts; the model before training is no run.
        latest: dict[str, tuple[float, Object, Object]] = {}
        for line in scores.get(arm.arm, ()):
            split, name, step = text(line.get("split")), text(line.get("name")), number(line.get("step")) or 0.0
            for short, raw in part(line, "metrics").items():
                metric = metric_name(split, name, short)
                value = part({"it": raw}, "it") or {"value": raw}
                if split != "baseline" and (metric not in latest or latest[metric][0] <= step):
                    latest[metric] = (step, line, value)
        for metric, (_, line, value) in latest.items():
            add_score(found, metric, line, value)
        for metric, score in arm.metrics.items():
            if is_score(metric) and metric not in latest:
                add_score(found, metric, {}, {"value": score, "stderr": arm.metrics.get(f"{metric}/stderr")})
    return found


def _items(left: RunSets, right: RunSets, a: str, b: str, metric: str, limit: int, cursor: str) -> Items:
    metrics = sorted({name for one in (left, right) for name, scores in one.items() if any(scores.by_task)})
    if metric not in metrics and metrics:
        metric = metrics[0]
    first, second = _means(left.get(metric)), _means(right.get(metric))
    tasks = [_item(task, first.get(task), second.get(task)) for task in dict.fromkeys([*first, *second])]
    order = {"lost": 0, "gained": 1, "unpaired": 2, "same": 3}  # what got worse is what one looks for
    tasks.sort(key=lambda item: (order[item.change], item.task))
    begin = _position(cursor)
    pair = pair_scores(metric, left[metric], right[metric]) if metric in left and metric in right else None
    return Items(
        metric=metric,
        metrics=metrics,
        a=a,
        b=b,
        gained=sum(item.change == "gained" for item in tasks),
        lost=sum(item.change == "lost" for item in tasks),
        same=sum(item.change == "same" for item in tasks),
        difference=None if pair is None else Difference(value=pair.difference, low=pair.low, high=pair.high, p=None),
        items=tasks[begin : begin + limit],
        next=str(begin + limit) if begin + limit < len(tasks) else None,
    )


def _means(scores: SetScores | None) -> dict[str, float]:
    """Each task's mean over the seeds that were scored on it."""
    seen: dict[str, list[float]] = {}
    for by_task in scores.by_task if scores is not None else ():
        for task, value in by_task.items():
            seen.setdefault(task, []).append(value)
    return {task: sum(values) / len(values) for task, values in seen.items()}


def _item(task: str, a: float | None, b: float | None) -> Item:
    if a is None or b is None:
        return Item(task=task, a=a, b=b, change="unpaired")
    return Item(task=task, a=a, b=b, change="gained" if b > a else "lost" if b < a else "same")


def _position(cursor: str) -> int:
    if not cursor:
        return 0
    if not cursor.isdecimal() or len(cursor) > 9:
        raise BadQuery(f"cursor {cursor[:40]!r} is not one that this list gave out.")
    return int(cursor)
