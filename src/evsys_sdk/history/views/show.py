"""`evsys show`: one experiment as data and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...record.events import Event, Kind
from ...record.flat_config import scalars
from ...record.runs import config_runs
from ...record.values import find_row, items, number, part, text
from ...record.view.model import RunView
from ..detail import Detail, checkpoints, commands
from ..effects import contrasts_of
from ..find import shortest
from ..text import (
    TextPage,
    clip,
    date_text,
    difference_text,
    duration_text,
    interval_text,
    score_text,
    short_spend_text,
    spend_text,
    text_or_json,
)

_RUN_HEADERS = ("run", "seeds", "score", "95 % interval", "differs by", "failed", "spend")
_MOST_FAILURES = 10
_MOST_CHECKPOINTS = 5
_MOST_ARMS = 8


def show_data(detail: Detail) -> dict[str, Any]:
    """The JSON form."""
    best = detail.best_arm
    return {
        **detail.view.to_dict(),
        "contrasts": [asdict(contrast) for contrast in contrasts_of(detail.record, detail.view)],
        "best_arm": best.name if best else None,
        "artifacts": best.artifacts if best else {},
        "checkpoints": checkpoints(best) if best else [],
        "decisions": [event.to_dict() for event in detail.record.decisions],
        "conclusion": detail.conclusion or None,
        "config": detail.config,
        "commands": commands(detail),
    }


def show_page(detail: Detail) -> str:
    """The page of `evsys show`."""
    page, view = TextPage(), detail.view
    page.add(f"{view.id}: {view.status}{_when(detail)}")
    if view.invalidated:
        page.paragraph(f"INVALIDATED: {view.invalidated}")
    for remark in view.remarks:
        page.paragraph(f"Remark: {remark}")
    if view.flags:
        page.paragraph(f"FLAGGED by its last audit: {', '.join(view.flags)} (evsys audit {view.id} says why)")
    if view.hypothesis:
        page.paragraph(f"Hypothesis: {view.hypothesis}")
    if view.description:
        page.paragraph(view.description)
    verdict = view.sentence or view.verdict
    page.paragraph(
        f"Verdict: {verdict}" if verdict else "No conclusion was written; scores are plain means over seeds."
    )
    page.heading("Runs")
    columns = len(_RUN_HEADERS) - (page.width < 100)  # narrow pages omit the spend, which is below as a total
    page.table(_RUN_HEADERS[:columns], [_run_row(run)[:columns] for run in view.runs], (0,))
    if detail.view.metric:
        direction = "less" if detail.view.mode == "min" else "more"
        page.add(f"score: {detail.view.metric} ({direction} is better); * marks the best run")
    _list(page, "Unfinished arms", _write_unfinished(detail))
    _list(page, "Failures", [f"{failure.arm}: {failure.reason}" for failure in view.failures])
    _list(page, "Decisions", [_decision(event) for event in detail.record.decisions])
    _list(page, "Next", [step for step in items(detail.conclusion.get("next")) if isinstance(step, str)])
    _list(page, "Best arm", _best_lines(detail), wrap=False)
    notes = [f"{date_text(note.time)}{f' {note.author}' if note.author else ''}: {note.text}" for note in view.notes]
    _list(page, "Notes", notes)
    page.heading("Record")
    page.add(*_facts(detail))
    return str(page)


def _write_unfinished(detail: Detail) -> list[str]:
    lines: list[str] = []
    for arm in detail.view.arms:
        if arm.status not in ("completed", "failed"):
            score = "no score yet" if arm.score is None else f"{score_text(arm.score)} at step {arm.score_step}"
            lines.append(f"{arm.arm}: {arm.status}, {score}")
    return lines


def _when(detail: Detail) -> str:
    view = detail.view
    took = f", took {duration_text(view.ended - view.started)}" if view.ended and view.started else ""
    return f", started {date_text(view.started)}{took}"


def _run_row(run: RunView) -> list[str]:
    return [
        f"{'* ' if run.is_best else ''}{run.run}",
        str(run.n_seeds or "-"),
        score_text(run.score) + ("" if run.step is None else f" (step {run.step})"),
        interval_text(run.low, run.high, run.covers) or "-",
        "baseline" if run.is_baseline else _difference(run),
        str(run.failures or "-"),
        short_spend_text(run.spend) or "-",
    ]


def _difference(run: RunView) -> str:
    """The difference to the baseline from the conclusion, with its simultaneous interval."""
    difference = run.difference
    return "-" if difference is None else difference_text(difference.value, difference.low, difference.high)


def _list(page: TextPage, title: str, lines: Sequence[str], *, wrap: bool = True) -> None:
    if lines:
        page.heading(title)
        for line in lines[:_MOST_FAILURES]:
            (page.paragraph if wrap else page.add)(f"- {line}")
    if len(lines) > _MOST_FAILURES:
        page.add(f"- ... {len(lines) - _MOST_FAILURES} more in --json")


def _decision(event: Event) -> str:
    """A decision of search, an interim analysis, the budget or a retry, as text."""
    payload = event.payload
    if event.kind == Kind.ARM_RETRIED:
        return f"{payload.get('arm')} was resumed: {payload.get('reason')}"
    if event.kind == Kind.SEARCH_DECISION:
        return _search_decision(payload)
    if event.kind == Kind.LOOKED:
        look, of, seeds = (payload.get(name) for name in ("look", "of", "seeds"))
        return f"look {look} of {of}, {seeds} seeds a run: {text(payload.get('why'))}"
    return clip(
        f"stopped by the budget: {', '.join(f'{name} {text_or_json(value)}' for name, value in payload.items())}", 240
    )


def _search_decision(payload: dict[str, Any]) -> str:
    """Where arms were compared, who continued and who did not, each with its score; earlier versions also had races."""
    place = " ".join(f"{name} {payload[name]}" for name in ("rung", "race") if payload.get(name) is not None)
    step = number(payload.get("step"))
    where = [f"after step {step:.0f}"] if step is not None else []
    where += [f"by {text(payload.get('metric'))}"] if text(payload.get("metric")) else []
    scores = part(payload, "scores")
    parts = [text(payload.get("why"))] if text(payload.get("why")) else []
    for what, verb in (("kept", "went on"), ("stopped", "stopped"), ("added", "added")):
        names = [name for name in items(payload.get(what)) if isinstance(name, str)]
        shown = [
            f"{name} {score_text(number(scores[name]))}" if name in scores else name for name in names[:_MOST_ARMS]
        ]
        more = f" and {len(names) - _MOST_ARMS} more" if len(names) > _MOST_ARMS else ""
        parts += [f"{verb}: {', '.join(shown)}{more}"] if names else []
    return f"{' '.join(filter(None, ['search', place, *where]))}: {'; '.join(parts)}"


def _best_lines(detail: Detail) -> list[str]:
    arm = detail.best_arm
    if arm is None:
        return []
    lines = [f"{arm.name} ({arm.status})"]
    if params := scalars(part(find_row(config_runs(detail.config), "name", detail.chosen_run), "algorithm", "params")):
        lines.append(clip("params: " + ", ".join(f"{name}={value}" for name, value in params.items()), 300))
    for path in dict.fromkeys(arm.artifacts.values()):  # without duplicates: the best checkpoint is often the last
        names = ", ".join(name for name, artifact in arm.artifacts.items() if artifact == path)
        lines.append(f"{names}: {shortest(path)}")
    stored = checkpoints(arm)
    if stored:
        steps = [f"{line['step']}{' (final)' if line['final'] else ''}" for line in stored[-_MOST_CHECKPOINTS:]]
        lines.append(
            f"checkpoints at steps: {', '.join(steps)}" + (f" ({len(stored)} in all)" if len(stored) > 5 else "")
        )
    return lines


def _facts(detail: Detail) -> list[str]:
    view = detail.view
    kinds = [*view.algorithms, *view.models, *(f"on {backend}" for backend in view.backends)]
    facts = {
        "spend": spend_text(view.spend),
        "what": ", ".join(kinds),
        "varied": ", ".join(view.varied),
        "tags": ", ".join(view.tags),
        "parent": view.parent_id,
        "folder": shortest(detail.folder),
        "config sha256": view.config_sha256[:12],
        **commands(detail),
    }
    return [f"- {name}: {value}" for name, value in facts.items() if value]
