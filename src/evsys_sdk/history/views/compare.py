"""`evsys compare`: compare runs with the first one: scores, flipped tasks, curves and config differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...record.flat_config import flatten_config
from ...record.runs import config_runs
from ...record.values import Object
from ...record.view.model import RunView
from ..detail import Detail
from ..pairs import PairedDifference, compare_sides
from ..text import TextPage, interval_text, score_text, short_spend_text, text_or_json
from .answers import Flips, find_flips
from .curves import Curve, read_training_curve, score_curve
from .listing import verdict_text

_NOT_COMPARED = ("name", "run", "runs", "matrix", "base_run", "parent_experiment_id", "output_dir")
"""Fields that always differ between experiments, or that are compared by run."""
ABSENT = "(not set)"
_EXPERIMENT_HEADERS = ("", "experiment", "status", "verdict", "run", "score", "95 % interval", "spend")
_PAIR_HEADERS = ("metric", "A", "", "difference", "95 % interval", "remark")
_MOST_PATHS = 12
_MOST_FLIPS = 3
_WIDE_ENOUGH = 100

type Difference = tuple[str, list[Any]]
"""Dotted path, and its value in each experiment."""


@dataclass(frozen=True, slots=True)
class RunComparison:
    """The comparison of runs with the first one."""

    details: list[Detail]
    config: list[Difference]
    pairs: list[list[PairedDifference]]
    """For each experiment but the first."""
    flips: list[Flips | None]
    """For each experiment but the first: the flipped tasks."""
    loss: list[Curve]
    scores: list[Curve]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        others = zip(self.details[1:], self.pairs, strict=True)
        return {
            "experiments": [detail.view.to_dict() for detail in self.details],
            "config": [{"path": path, "values": values} for path, values in self.config],
            "differences": [{**self._names(detail), **pair.to_dict()} for detail, pairs in others for pair in pairs],
            "flips": [
                {**self._names(detail), **flips.to_dict()}
                for detail, flips in zip(self.details[1:], self.flips, strict=True)
                if flips is not None
            ],
            "curves": [
                {"experiment": curve.label, "metric": curve.metric, "points": curve.points}
                for curve in [*self.loss, *self.scores]
            ],
        }

    def _names(self, other: Detail) -> dict[str, str]:
        first = self.details[0]
        names = {"experiment": other.view.id, "run": other.chosen_run}
        return {**names, "against": first.view.id, "against_run": first.chosen_run}


def compare_experiments(details: Sequence[Detail]) -> RunComparison:
    """Compare the first run with the others."""
    loss: list[Curve] = []
    scores: list[Curve] = []
    for letter, detail in zip(letters(), details, strict=False):
        arm = detail.best_arm
        if arm is not None:
            label = f"{letter} {detail.label}"
            loss += filter(None, [read_training_curve(arm, label)])
            scores += filter(None, [score_curve(arm, detail.view.metric, label)])
    pairs = [compare_sides(details[0].side, other.side) for other in details[1:]]
    flips = [find_flips(details[0], other) for other in details[1:]]
    return RunComparison(list(details), config_differences(details), pairs, flips, _same(loss), _same(scores))


def config_differences(details: Sequence[Detail]) -> list[Difference]:
    """Every config path whose values differ between the experiments."""
    return differing_paths([(detail.config, detail.chosen_run) for detail in details])


def differing_paths(configs: Sequence[tuple[Object, str]]) -> list[Difference]:
    """Every config path in which runs, given as (config, name), differ; paths of the run come first."""
    flat = [flatten_config({"run": _own_run(config, run)} | _shared(config)) for config, run in configs]
    paths = dict.fromkeys(path for values in flat for path in values)
    return [
        (path, [values.get(path, ABSENT) for values in flat])
        for path in paths
        if any(values.get(path, ABSENT) != flat[0].get(path, ABSENT) for values in flat)
    ]


def _own_run(config: Object, name: str) -> Object:
    runs = config_runs(config)
    settings = next((run for run in runs if run.get("name") == name), runs[0] if runs else {})
    return {key: value for key, value in settings.items() if key != "name"}


def _shared(config: Object) -> Object:
    return {name: value for name, value in config.items() if name not in _NOT_COMPARED}


def letters() -> str:
    """The names of experiments in tables."""
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def compare_page(comparison: RunComparison) -> str:
    """The page of `evsys compare`."""
    page = TextPage()
    columns = len(_EXPERIMENT_HEADERS) - (page.width < _WIDE_ENOUGH)  # narrow pages omit the spend
    page.table(_EXPERIMENT_HEADERS[:columns], [row[:columns] for row in _experiment_rows(comparison)], (4, 1))
    for letter, pairs, flips in zip(letters()[1:], comparison.pairs, comparison.flips, strict=False):
        page.heading(f"{letter} minus A, task by task")
        if pairs:
            rows = _pair_rows(pairs)
            filled = [at for at in range(len(_PAIR_HEADERS)) if any(row[at] != "-" for row in rows)]
            page.table(
                [_PAIR_HEADERS[at] or letter for at in filled], [[row[at] for at in filled] for row in rows], (0,)
            )
            for population, metrics in _populations(pairs).items():
                page.paragraph(f"{', '.join(metrics)}: {population}." if len(pairs) > 1 else f"Interval: {population}.")
        else:
            other, first = comparison.details[letters().index(letter)].label, comparison.details[0].label
            page.add(f"{other} has no scored metric in common with {first}.")
        if flips is not None:
            _add_flips(page, flips, letter)
    if curves := [*comparison.loss, *comparison.scores]:
        page.heading("Curves; --plot draws them")
        ends = [(curve.metric, curve.label, *curve.points[0], *curve.points[-1]) for curve in curves]
        rows = [[metric, run[0], f"{a:g}", score_text(b), f"{c:g}", score_text(d)] for metric, run, a, b, c, d in ends]
        page.table(("metric", "run", "first step", "value", "last step", "value"), rows, (0,))
    page.heading("What differs in the config")
    headers = ["path", *letters()[: len(comparison.details)]]
    rows = [[path, *map(text_or_json, values)] for path, values in comparison.config[:_MOST_PATHS]]
    if rows:
        page.table(headers, rows, range(1, len(headers)))  # paths stay whole, because their ends distinguish them
    else:
        page.add("nothing")
    if (n_omitted := len(comparison.config) - _MOST_PATHS) > 0:
        page.add(f"... {n_omitted} more in --json")
    return str(page)


def _experiment_rows(comparison: RunComparison) -> list[list[str]]:
    rows: list[list[str]] = []
    for letter, detail in zip(letters(), comparison.details, strict=False):
        view, run = detail.view, detail.view.run(detail.chosen_run) or RunView(detail.chosen_run)
        cells = [letter, view.id, view.status, verdict_text(view), run.run or "-", score_text(run.score)]
        rows.append([*cells, interval_text(run.low, run.high, run.covers) or "-", short_spend_text(run.spend) or "-"])
    return rows


def _pair_rows(pairs: Sequence[PairedDifference]) -> list[list[str]]:
    return [
        [
            pair.metric,
            score_text(pair.first),
            score_text(pair.second),
            f"{pair.difference:+.4g}{' *' if pair.is_clear else ''}",
            interval_text(pair.low, pair.high, pair.covers) or "-",
            pair.remark or "-",
        ]
        for pair in pairs
    ]


def _populations(pairs: Sequence[PairedDifference]) -> dict[str, list[str]]:
    """What the intervals cover -> the metrics."""
    metrics: dict[str, list[str]] = {}
    for pair in pairs:
        if pair.population not in ("", "-"):
            metrics.setdefault(pair.population, []).append(pair.metric)
    return metrics


def _add_flips(page: TextPage, flips: Flips, letter: str) -> None:
    """Add the number of flipped tasks, and the first ones with both answers."""
    gained, lost = len(flips.gained), len(flips.lost)
    page.paragraph(f"{flips.metric}: of {flips.n_tasks} tasks, {letter} gains {gained} and loses {lost}.")
    for what, flipped in (("gained", flips.gained), ("lost", flips.lost)):
        for flip in flipped[:_MOST_FLIPS]:
            page.add(f"- {what} {flip.task}: {score_text(flip.first)} -> {score_text(flip.second)}")
            answers = {"A": flip.first_answer, letter: flip.second_answer}
            page.quote({"prompt": flip.prompt, "expected": flip.expected, **answers})
        if n_omitted := len(flipped[_MOST_FLIPS:]):
            page.add(f"- ... {n_omitted} more {what} in --json")


def _same(curves: Sequence[Curve]) -> list[Curve]:
    """The curves of the same metric as the first, because others have another scale."""
    return [curve for curve in curves if curve.metric == curves[0].metric]
