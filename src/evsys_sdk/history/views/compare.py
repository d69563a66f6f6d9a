"""`evsys compare`: what differs between experiments, in their configs, their scores and their curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...record.flat_config import flatten_config
from ...record.runs import config_runs
from ...record.values import Object
from ..detail import Detail
from ..pairs import PairedDifference, compare_pairs
from ..text import Page, interval_text, score_text, short_spend_text, text_or_json
from .answers import Flips, find_flips
from .curves import Curve, draw, read_training_curve, score_curve
from .listing import verdict_text

_NOT_TOLD = ("name", "run", "runs", "matrix", "base_run", "parent_experiment_id", "output_dir")
"""Fields that differ between experiments as a matter of course, or are compared run by run."""
ABSENT = "(not set)"
_EXPERIMENT_HEADERS = ("", "experiment", "status", "verdict", "best run", "score", "95 % interval", "spend")
_PAIR_HEADERS = ("metric", "A", "", "difference", "95 % interval", "tasks", "remark")
_MOST_PATHS = 40
_MOST_FLIPS = 3
_WIDE_ENOUGH = 100

type Difference = tuple[str, list[Any]]
"""Dotted path, and the value of each experiment."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two experiments or more; the first is what the others are compared with."""

    details: list[Detail]
    config: list[Difference]
    pairs: list[list[PairedDifference]]
    """For each experiment but the first."""
    flips: list[Flips | None]
    """For each experiment but the first: the tasks that only one of the two gets right."""
    loss: list[Curve]
    scores: list[Curve]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        others = zip(self.details[1:], self.pairs, strict=True)
        return {
            "experiments": [detail.view.to_dict() for detail in self.details],
            "config": [{"path": path, "values": values} for path, values in self.config],
            "differences": [
                {"experiment": detail.view.id, "against": self.details[0].view.id, **pair.to_dict()}
                for detail, pairs in others
                for pair in pairs
            ],
            "flips": [
                {"experiment": detail.view.id, "against": self.details[0].view.id, **flips.to_dict()}
                for detail, flips in zip(self.details[1:], self.flips, strict=True)
                if flips is not None
            ],
            "curves": [
                {"experiment": curve.label, "metric": curve.metric, "points": curve.points}
                for curve in [*self.loss, *self.scores]
            ],
        }


def compare_experiments(details: Sequence[Detail]) -> Comparison:
    """Everything that can be told about the difference between the first experiment and the others."""
    loss: list[Curve] = []
    scores: list[Curve] = []
    for letter, detail in zip(letters(), details, strict=False):
        arm = detail.best_arm
        if arm is not None:
            label = f"{letter} {detail.view.id}"
            loss += filter(None, [read_training_curve(arm, label)])
            scores += filter(None, [score_curve(arm, detail.view.metric, label)])
    pairs = [compare_pairs(details[0], other) for other in details[1:]]
    flips = [find_flips(details[0], other) for other in details[1:]]
    return Comparison(list(details), config_differences(details), pairs, flips, _same(loss), _same(scores))


def config_differences(details: Sequence[Detail]) -> list[Difference]:
    """Every path whose value is not the same in all of them."""
    return differing_paths([(detail.config, detail.chosen_run) for detail in details])


def differing_paths(configs: Sequence[tuple[Object, str]]) -> list[Difference]:
    """Every path in which configs differ, each given with the run that stands for it where they share no run."""
    named = [{str(run.get("name")): run for run in config_runs(config)} for config, _ in configs]
    share_names = bool(set(named[0]).intersection(*named[1:]))
    flat = [
        flatten_config(
            {name: value for name, value in config.items() if name not in _NOT_TOLD} | _runs(chosen, own, share_names)
        )
        for (config, chosen), own in zip(configs, named, strict=True)
    ]
    paths = dict.fromkeys(path for one in flat for path in one)
    return [
        (path, [one.get(path, ABSENT) for one in flat])
        for path in paths
        if any(one.get(path, ABSENT) != flat[0].get(path, ABSENT) for one in flat)
    ]


def _runs(chosen: str, own: Mapping[str, Object], share_names: bool) -> Object:
    """Runs by name where the experiments share names; else the chosen run of each."""
    if share_names:
        return {"runs": {name: _without_name(run) for name, run in own.items()}}
    first = [own[name] for name in (chosen, *own) if name in own]
    return {"run": _without_name(first[0])} if first else {}


def _without_name(run: Object) -> Object:
    return {key: value for key, value in run.items() if key != "name"}


def letters() -> str:
    """What experiments are called in tables."""
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def compare_page(comparison: Comparison, *, markdown: bool = False) -> str:
    """The comparison, for a terminal or as Markdown."""
    page = Page(markdown=markdown)
    if markdown:
        page.title(" against ".join(detail.view.id for detail in comparison.details))
    columns = len(_EXPERIMENT_HEADERS) - (not markdown and page.width < _WIDE_ENOUGH)  # there is no room for the spend
    page.table(_EXPERIMENT_HEADERS[:columns], [row[:columns] for row in _experiment_rows(comparison)], (4, 1))
    page.heading("Config")
    headers = ["path", *letters()[: len(comparison.details)]]
    rows = [[path, *map(text_or_json, values)] for path, values in comparison.config[:_MOST_PATHS]]
    if rows:
        page.table(headers, rows, range(1, len(headers)))  # the end of a path says most, so paths stay whole
    else:
        page.add("no difference")
    if (left := len(comparison.config) - _MOST_PATHS) > 0:
        page.add(f"... {left} more in --json")
    for letter, pairs, flips in zip(letters()[1:], comparison.pairs, comparison.flips, strict=False):
        page.heading(f"{letter} minus A, task by task")
        if pairs:
            page.table([header or letter for header in _PAIR_HEADERS], _pair_rows(pairs), (0, 6))
        else:
            other, first = comparison.details[letters().index(letter)].view.id, comparison.details[0].view.id
            page.add(f"{other} has no scored metric in common with {first}.")
        if flips is not None:
            _add_flips(page, flips, letter)
    for curves in filter(None, (comparison.loss, comparison.scores)):
        shown, title = [(curve.label, curve.points) for curve in curves], curves[0].metric
        page.drawing(lambda width, shown=shown, title=title: draw(shown, title=title, width=width))
    return str(page)


def _experiment_rows(comparison: Comparison) -> list[list[str]]:
    rows: list[list[str]] = []
    for letter, detail in zip(letters(), comparison.details, strict=False):
        one = detail.view
        interval = interval_text(one.best_low, one.best_high, one.best_covers) or "-"
        found = [letter, one.id, one.status, verdict_text(one), detail.chosen_run or "-", score_text(one.best_score)]
        rows.append([*found, interval, short_spend_text(one.spend) or "-"])
    return rows


def _pair_rows(pairs: Sequence[PairedDifference]) -> list[list[str]]:
    return [
        [
            pair.metric,
            score_text(pair.first),
            score_text(pair.second),
            f"{pair.difference:+.4g}{' *' if pair.is_clear else ''}",
            interval_text(pair.low, pair.high, pair.covers) or "-",
            "-" if pair.n_tasks is None else str(pair.n_tasks),
            pair.remark or "-",
        ]
        for pair in pairs
    ]


def _add_flips(page: Page, flips: Flips, letter: str) -> None:
    """How many tasks changed sides, and the first of them with both answers."""
    gained, lost = len(flips.gained), len(flips.lost)
    page.paragraph(f"{flips.metric}: of {flips.n_tasks} tasks, {letter} gains {gained} and loses {lost}.")
    for what, found in (("gained", flips.gained), ("lost", flips.lost)):
        for one in found[:_MOST_FLIPS]:
            page.add(f"- {what} {one.task}: {score_text(one.first)} -> {score_text(one.second)}")
            said = {"A": one.first_answer, letter: one.second_answer}
            page.quote({"prompt": one.prompt, "expected": one.expected, **said})
        if left := len(found[_MOST_FLIPS:]):
            page.add(f"- ... {left} more {what} in --json")


def _same(curves: Sequence[Curve]) -> list[Curve]:
    """The curves that are about the same metric as the first: others have another scale."""
    return [curve for curve in curves if curve.metric == curves[0].metric]
