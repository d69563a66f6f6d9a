"""`evsys show`: one experiment as data, as text and as a page."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from ..record.events import Kind
from ..record.runs import config_runs
from ..record.values import items, matching, number, part
from .detail import Detail, checkpoints, commands, failures, run_spend
from .outcome import RunScore
from .roots import shortest
from .summarize import scalars
from .text import (
    clip,
    date_text,
    duration_text,
    fitted_table,
    interval_text,
    markdown_table,
    score_text,
    short_spend_text,
    spend_text,
    terminal_width,
)

_RUN_HEADERS = ("run", "seeds", "score", "95 % interval", "differs by", "failed", "spend")
_MOST_FAILURES = 10
_MOST_CHECKPOINTS = 5


def show_data(detail: Detail) -> dict[str, Any]:
    """The JSON form."""
    best = detail.best_arm
    return {
        **detail.summary.to_dict(),
        "failures": failures(detail),
        "runs": [_run_data(detail, run) for run in detail.outcome.runs],
        "arms": [
            {"arm": arm.name, "run": arm.run, "seed": arm.seed, "status": arm.status, "metrics": arm.metrics}
            for arm in detail.arms
        ],
        "best_arm": best.name if best else None,
        "artifacts": best.artifacts if best else {},
        "checkpoints": checkpoints(best) if best else [],
        "decisions": detail.decisions,
        "conclusion": detail.conclusion or None,
        "config": detail.config,
        "commands": commands(detail),
    }


def show_text(detail: Detail) -> str:
    """The page for a terminal."""
    width = terminal_width()

    def table(headers: Sequence[str], rows: Sequence[Sequence[str]], flexible: Sequence[int]) -> str:
        return fitted_table(headers, rows, width=width, flexible=flexible)

    def paragraph(text: str) -> str:
        indent = "  " if text.startswith("- ") else ""
        return textwrap.fill(" ".join(text.split()), width=min(width, 110), subsequent_indent=indent)

    return _page(detail, table, paragraph, lambda title: f"\n{title}", title=lambda text: text)


def show_markdown(detail: Detail) -> str:
    """The page as Markdown."""
    return _page(
        detail,
        lambda headers, rows, _: markdown_table(headers, rows) + "\n",
        lambda text: " ".join(text.split()) + ("" if text.startswith("- ") else "\n"),
        lambda title: f"\n## {title}\n",
        title=lambda text: f"# {text}\n",
    )


def _page(
    detail: Detail,
    table: Callable[[Sequence[str], Sequence[Sequence[str]], Sequence[int]], str],
    paragraph: Callable[[str], str],
    heading: Callable[[str], str],
    *,
    title: Callable[[str], str],
) -> str:
    summary, parts = detail.summary, [title(f"{detail.summary.id}: {detail.summary.status}{_when(detail)}")]
    if summary.invalidated:
        parts.append(paragraph(f"INVALIDATED: {summary.invalidated}"))
    if summary.hypothesis:
        parts.append(paragraph(f"Hypothesis: {summary.hypothesis}"))
    if summary.description:
        parts.append(paragraph(summary.description))
    if summary.verdict or summary.sentence:
        parts.append(paragraph(f"Verdict: {summary.sentence or summary.verdict}"))
    else:
        parts.append(paragraph("No conclusion was written; scores are plain means over seeds."))
    parts += [heading("Runs"), table(_RUN_HEADERS, [_run_row(detail, run) for run in detail.outcome.runs], (0, 6))]
    if detail.outcome.metric:
        parts.append(f"score: {detail.outcome.metric} ({_direction(detail)}); * marks the best run")
    parts += _listed(heading("Failures"), [f"{one['arm']}: {one['reason']}" for one in failures(detail)], paragraph)
    parts += _listed(heading("Decisions"), [_decision(event) for event in detail.decisions], paragraph)
    parts += _listed(heading("Next"), _next_steps(detail), paragraph)
    parts += _listed(heading("Best arm"), _best_lines(detail), lambda text: text)
    notes = [f"{date_text(note.time)}{f' {note.author}' if note.author else ''}: {note.text}" for note in summary.notes]
    parts += _listed(heading("Notes"), notes, paragraph)
    parts += [heading("Record"), *_facts(detail)]
    return "\n".join(parts).replace("\n\n\n", "\n\n")


def _when(detail: Detail) -> str:
    one = detail.summary
    took = f", took {duration_text(one.ended - one.started)}" if one.ended and one.started else ""
    return f", started {date_text(one.started)}{took}"


def _direction(detail: Detail) -> str:
    return "less is better" if detail.outcome.mode == "min" else "more is better"


def _run_row(detail: Detail, run: RunScore) -> list[str]:
    mark = "* " if run.run == detail.outcome.best_run else ""
    return [
        f"{mark}{run.run}",
        str(run.n_seeds or "-"),
        score_text(run.score),
        interval_text(run.low, run.high, run.covers) or "-",
        run.role or _difference(detail, run.run),
        str(run.failures or "-"),
        short_spend_text(run_spend(detail, run.run)) or "-",
    ]


def _difference(detail: Detail, run: str) -> str:
    """What the conclusion says of the run against the baseline, corrected for the number of runs."""
    for raw in items(detail.conclusion.get("comparisons")):
        found = part({"it": raw}, "it")
        difference = number(found.get("difference"))
        if found.get("run") == run and difference is not None:
            interval = interval_text(number(found.get("low")), number(found.get("high")))
            return f"{difference:+.3g} {interval}".rstrip()
    return "-"


def _run_data(detail: Detail, run: RunScore) -> dict[str, Any]:
    return {
        "run": run.run,
        "score": run.score,
        "low": run.low,
        "high": run.high,
        "covers": run.covers,
        "n_seeds": run.n_seeds,
        "n_tasks": run.n_tasks,
        "failures": run.failures,
        "is_baseline": run.role == "baseline",
        "spend": run_spend(detail, run.run),
    }


def _listed(heading: str, lines: Sequence[str], paragraph: Callable[[str], str]) -> list[str]:
    if not lines:
        return []
    more = [f"- ... {len(lines) - _MOST_FAILURES} more in --json"] if len(lines) > _MOST_FAILURES else []
    return [heading, *(paragraph(f"- {line}") for line in lines[:_MOST_FAILURES]), *more]


def _decision(event: dict[str, Any]) -> str:
    """What search, budget or a retry decided."""
    told = {name: value for name, value in event.items() if name not in ("id", "time", "kind")}
    if event.get("kind") == Kind.ARM_RETRIED:
        return f"{told.get('arm')} was taken up again: {told.get('reason')}"
    what = "stopped by the budget" if event.get("kind") == Kind.BUDGET_STOP else "search"
    return clip(f"{what}: " + ", ".join(f"{name} {_short_json(value)}" for name, value in told.items()), 240)


def _short_json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _next_steps(detail: Detail) -> list[str]:
    return [one for one in items(detail.conclusion.get("next")) if isinstance(one, str)]


def _best_lines(detail: Detail) -> list[str]:
    arm = detail.best_arm
    if arm is None:
        return []
    lines = [f"{arm.name} ({arm.status})"]
    for run in [detail.chosen_run] if detail.chosen_run else []:
        params = scalars(_algorithm(detail, run))
        if params:
            lines.append(clip("params: " + ", ".join(f"{name}={value}" for name, value in params.items()), 300))
    lines += [f"{name}: {path}" for name, path in arm.artifacts.items()]
    found = checkpoints(arm)
    if found:
        steps = [f"{one['step']}{' (final)' if one['final'] else ''}" for one in found[-_MOST_CHECKPOINTS:]]
        lines.append(
            f"checkpoints at steps: {', '.join(steps)}" + (f" ({len(found)} in all)" if len(found) > 5 else "")
        )
    return lines


def _algorithm(detail: Detail, run: str) -> dict[str, Any]:
    return part(matching(config_runs(detail.config), "name", run), "algorithm", "params")


def _facts(detail: Detail) -> list[str]:
    one = detail.summary
    kinds = [*one.algorithms, *one.models, *(f"on {backend}" for backend in one.backends)]
    facts = {
        "spend": spend_text(one.spend),
        "what": ", ".join(kinds),
        "varied": ", ".join(one.varied),
        "tags": ", ".join(one.tags),
        "parent": one.parent_id,
        "folder": str(shortest(detail.folder)),
        "config sha256": one.config_sha256[:12],
        **commands(detail),
    }
    return [f"- {name}: {value}" for name, value in facts.items() if value]
