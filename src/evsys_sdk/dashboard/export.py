"""One experiment as files: every answer of the read API as JSON, and a report that a browser shows without a server."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..files import write_json, write_text
from ..history.text import interval_text, score_text
from .answers import describe_experiment, sum_spend, trace_lineage
from .curves import CurveQuery, draw_curves
from .items import list_items
from .local import LocalRecords
from .shapes import ExperimentDetail, Run, Series
from .source import LARGEST_PAGE, RolloutQuery
from .upload import experiment_id_of

_WIDTH, _HEIGHT = 640, 220
_STYLE = """
body { font: 14px system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } td, th { padding: 4px 12px 4px 0; }
th { text-align: left; border-bottom: 1px solid #ccc; } .quiet { color: #595959; } pre { white-space: pre-wrap; }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e6e6e6; } .quiet { color: #a6a6a6; } }
"""
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")


def export_experiment(folder: Path, target: Path) -> list[str]:
    """Write everything about an experiment below `target`; returns the files."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target}: there is something already. Name a new folder with --output.")
    records, id = LocalRecords([folder.parent], folder.parent), experiment_id_of(folder)
    detail = describe_experiment(records, id)
    curves = draw_curves(records, id, CurveQuery())
    answers: dict[str, Any] = {
        "experiment": detail,
        "curves": curves,
        "items": list_items(records, id, limit=LARGEST_PAGE),
        "spend": sum_spend(records, id),
        "lineage": trace_lineage(records, id),
        "journal": records.events(id, "", LARGEST_PAGE),
        "rollouts": records.rollouts(id, RolloutQuery(limit=LARGEST_PAGE)),
    }
    for name, answer in answers.items():
        write_json(target / f"{name}.json", answer.model_dump())
    write_text(target / "report.html", _report(detail, curves.metric, curves.series))
    return [*(f"{name}.json" for name in answers), "report.html"]


def _report(detail: ExperimentDetail, metric: str, series: Sequence[Series]) -> str:
    one = detail.experiment
    verdict = one.verdict or one.status
    parts = [
        f"<h1>{_text(detail.claim.text or one.name)}</h1>",
        f"<p><strong>{_text(verdict)}</strong> <span class='quiet'>{_text(one.id)}</span></p>",
        f"<p>{_text(one.sentence)}</p>",
        _table(detail),
        f"<h2>{_text(metric)}</h2>{_plot(series)}" if series else "",
        _list("Threats", detail.threats),
        _list("Next", detail.next),
        _list("Failures", [f"{row['arm']}: {row['reason']}" for row in detail.failures]),
        _list("Notes", [note.text for note in detail.notes]),
        f"<h2>Conclusion</h2><pre>{_text(detail.conclusion_text)}</pre>" if detail.conclusion_text else "",
    ]
    head = f"<meta charset='utf-8'><title>{_text(one.name)}</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def _table(detail: ExperimentDetail) -> str:
    heads = ["run", *detail.varied, detail.experiment.metric or "score", "95 % interval", "difference", "seeds"]
    rows = "".join(
        f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in _cells(run, detail))}</tr>" for run in detail.runs
    )
    return f"<table><tr>{''.join(f'<th>{_text(head)}</th>' for head in heads)}</tr>{rows}</table>"


def _cells(run: Run, detail: ExperimentDetail) -> list[str]:
    name = run.run + (" (baseline)" if run.is_baseline else "") + (" (best)" if run.is_best else "")
    varied = [str(run.varied.get(path, "")) for path in detail.varied]
    gap = run.difference
    difference = "" if gap is None else f"{gap.value:+.3g} {interval_text(gap.low, gap.high)}"
    return [name, *varied, score_text(run.score), interval_text(run.low, run.high), difference, str(run.n_seeds)]


def _plot(series: Sequence[Series]) -> str:
    """Every series as a line; the axes are named by their ends."""
    points = [(x, y) for one in series for x, y in zip(one.x, one.y, strict=True) if y is not None]
    if not points:
        return ""
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    across, up = _WIDTH / ((right - left) or 1), _HEIGHT / ((high - low) or 1)
    runs = list(dict.fromkeys(one.run for one in series))
    lines: list[str] = []
    for one in series:
        path = " ".join(
            f"{(x - left) * across:.1f},{_HEIGHT - (y - low) * up:.1f}"
            for x, y in zip(one.x, one.y, strict=True)
            if y is not None
        )
        colour = _COLOURS[runs.index(one.run) % len(_COLOURS)]
        lines.append(
            f"<polyline fill='none' stroke='{colour}' points='{path}'><title>{_text(one.arm)}</title></polyline>"
        )
    caption = f"{low:.3g} to {high:.3g} over steps {left:g} to {right:g}; one line an arm, one colour a run"
    box = f"viewBox='0 -4 {_WIDTH} {_HEIGHT + 8}' width='{_WIDTH}' role='img' aria-label='{_text(caption)}'"
    return f"<svg {box}>{''.join(lines)}</svg><p class='quiet'>{_text(caption)}</p>"


def _list(title: str, entries: Sequence[str]) -> str:
    shown = "".join(f"<li>{_text(entry)}</li>" for entry in entries)
    return f"<h2>{title}</h2><ul>{shown}</ul>" if entries else ""


def _text(value: object) -> str:
    return html.escape(str(value))
