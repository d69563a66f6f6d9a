"""Draw curves and scores as PNG or SVG with matplotlib (the extra `plot`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import DataError
from ...lazy import import_extra
from ...record.view.model import RunView
from ..detail import Detail
from .compare import RunComparison, letters
from .curves import Curve, read_training_curve, score_curve

_FORMATS = (".png", ".svg")
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""A palette for colour-blind readers."""
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 1)))
_MOST_SERIES = 12
_MOST_RUNS = 30
_FEW_POINTS = 12
"""Curves with fewer points get markers."""


def plot_experiment(detail: Detail, path: str) -> None:
    """Draw the curves of every arm and the score of each run with its interval; seeds share the run's colour."""
    arms = detail.arms[:_MOST_SERIES]
    losses = _same_metric([read_training_curve(arm, arm.run) for arm in arms])
    scores = _same_metric([score_curve(arm, detail.view.metric, arm.run) for arm in arms])
    _draw(path, _Picture(detail.view.id, losses, scores, detail.view.runs, detail.view.metric))


def plot_comparison(comparison: RunComparison, path: str) -> None:
    """Draw the curves of the best arms, and the scores of the compared runs in the metric of the first."""
    metric = comparison.details[0].view.metric
    runs = [
        replace(run, run=f"{letter} {detail.label}", is_baseline=False)
        for letter, detail in zip(letters(), comparison.details, strict=False)
        if detail.view.metric == metric and (run := detail.view.run(detail.chosen_run))
    ]
    title = " against ".join(detail.label for detail in comparison.details)
    _draw(path, _Picture(title, comparison.loss, comparison.scores, runs, metric))


@dataclass(frozen=True, slots=True)
class _Picture:
    title: str
    losses: Sequence[Curve]
    scores: Sequence[Curve]
    runs: Sequence[RunView]
    metric: str

    def colours(self) -> dict[str, str]:
        """A colour per run or experiment, for all panels."""
        names = [*(run.run for run in self.runs), *(curve.label for curve in [*self.losses, *self.scores])]
        return {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(dict.fromkeys(names))}


def _draw(path: str, picture: _Picture) -> None:
    file = Path(path)
    if file.suffix.lower() not in _FORMATS:
        raise DataError(f"--plot {path}: the file must end in .png or .svg (got {file.suffix or 'no ending'!r}).")
    matplotlib = import_extra("matplotlib", extra="plot", needed_by="--plot")
    # Not pyplot, which stores every figure and needs a display.
    figures = import_extra("matplotlib.figure", extra="plot", needed_by="--plot")
    scored, colours = [run for run in picture.runs if run.score is not None][:_MOST_RUNS], picture.colours()
    curves = [group for group in (picture.losses, picture.scores) if group]
    if not curves and not scored:
        raise DataError(f"{picture.title} has neither curves nor scores to draw. Run `evsys show` to see why.")
    with matplotlib.rc_context({"svg.hashsalt": "evsys", "font.size": 9}):  # deterministic output
        size = (4.6 * (len(curves) + bool(scored)), max(3.4, 0.32 * len(scored) + 1.6))
        figure: Any = figures.Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(curves) + bool(scored), squeeze=False)[0]
        for axes, group in zip(panels, curves, strict=False):
            _curves(axes, group, colours)
        if scored:
            _scores(panels[-1], scored, picture.metric, colours)
        figure.suptitle(picture.title, fontsize=11)
        file.parent.mkdir(parents=True, exist_ok=True)
        # Without the date in an SVG, so that the output is deterministic.
        figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix.lower() == ".svg" else None)


def _curves(axes: Any, curves: Sequence[Curve], colours: Mapping[str, str]) -> None:
    names = list(colours)
    for index, curve in enumerate(curves):
        steps, values = zip(*curve.points, strict=True)
        first = all(curve.label != other.label for other in curves[:index])
        axes.plot(
            steps,
            values,
            label=curve.label if first else None,
            color=colours[curve.label],
            linestyle=_DASHES[names.index(curve.label) % len(_DASHES)],
            marker="o" if len(steps) < _FEW_POINTS else None,
            linewidth=1.4,
            markersize=3.5,
        )
    axes.set_title(curves[0].metric, fontsize=10)
    axes.set_xlabel("step")
    axes.xaxis.get_major_locator().set_params(integer=True)
    _plain(axes)
    if len({curve.label for curve in curves}) > 1:
        axes.legend(fontsize=7, frameon=False)


def _scores(axes: Any, runs: Sequence[RunView], metric: str, colours: Mapping[str, str]) -> None:
    for place, run in enumerate(runs):
        colour, score = colours[run.run], run.score or 0.0
        if run.low is not None and run.high is not None:
            axes.plot([run.low, run.high], [place, place], color=colour, linewidth=2, alpha=0.7)
        axes.plot([score], [place], marker="o", color=colour, markersize=6)
        axes.annotate(f"{score:.3g}", (score, place), (0, 7), textcoords="offset points", ha="center", fontsize=7)
    axes.set_yticks(range(len(runs)), [f"{run.run} (baseline)" if run.is_baseline else run.run for run in runs])
    axes.set_ylim(len(runs) - 0.5, -0.6)
    axes.margins(x=0.12)
    over = dict.fromkeys(run.covers for run in runs if run.low is not None)
    axes.set_title(f"{metric}, 95 % interval over {' or '.join(over)}" if over else metric, fontsize=10)
    _plain(axes)


def _plain(axes: Any) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _same_metric(curves: Sequence[Curve | None]) -> list[Curve]:
    """The curves that are not None and have the same metric as the first."""
    present = [curve for curve in curves if curve is not None]
    return [curve for curve in present if curve.metric == present[0].metric]
