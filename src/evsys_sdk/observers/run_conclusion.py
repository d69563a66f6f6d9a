"""What happened in one run, in words: the page `local_logger` leaves behind.

It reports; it does not judge. Whether the hypothesis holds is decided over all arms and seeds of the experiment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..history.text import markdown_table
from ..protocols import RunResult
from ..record.metrics import restore_nonfinite


@dataclass(frozen=True, slots=True)
class RunStory:
    """Everything the page is written from."""

    experiment: str
    run_id: str
    result: RunResult
    total_steps: int | None = None
    stop_reason: str | None = None
    last_step: Mapping[str, Any] | None = None
    """The last line of training metrics."""
    scores: Sequence[Mapping[str, Any]] = ()
    """The last line of each benchmark, with its `split`."""
    checkpoints: Sequence[Mapping[str, Any]] = ()


def write_up(story: RunStory) -> str:
    """The page as Markdown."""
    parts = [
        f"# Conclusion of run `{story.run_id}`: {story.result.status}",
        _what_happened(story),
        _error(story.result),
        _table("Last training metrics", ("metric", "value"), _last_metrics(story)),
        _table("Last scores", ("split", "benchmark", "step", "metric", "value"), _scores(story)),
        _table("Result", ("metric", "value"), story.result.metrics.items()),
        _table("Artifacts", ("name", "path"), story.result.artifacts.items()),
        _checkpoints(story),
        f"This page is about one run of experiment `{story.experiment}`; one run alone does not decide a hypothesis.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _what_happened(story: RunStory) -> str:
    done = story.last_step["step"] if story.last_step else 0
    planned = "" if story.total_steps is None else f" of {story.total_steps}"
    verb = {"completed": "It completed", "failed": "It failed", "cancelled": "It was cancelled"}[story.result.status]
    lines = [f"{verb} after {done}{planned} steps."]
    if story.stop_reason:
        lines.append(f"It was stopped before its planned end: {story.stop_reason}.")
    if not story.scores:
        lines.append("Nothing was scored, so this run says nothing about task performance.")
    return " ".join(lines)


def _error(result: RunResult) -> str:
    if not result.error:
        return "" if result.status != "failed" else "## Error\n\nNo reason was recorded."
    return "## Error\n\n" + "\n".join(f"    {line}" for line in result.error.splitlines())


def _last_metrics(story: RunStory) -> Iterable[tuple[str, Any]]:
    return restore_nonfinite(story.last_step).items() if story.last_step else ()


def _scores(story: RunStory) -> Iterable[tuple[Any, ...]]:
    for line in story.scores:
        record = restore_nonfinite(line)
        split, name, step = record.pop("split"), record.pop("name"), record.pop("step")
        if not record:
            yield split, name, step, "(no score)", ""
        for metric, value in record.items():
            yield split, name, step, metric, value


def _checkpoints(story: RunStory) -> str:
    if not story.checkpoints:
        return "## Checkpoints\n\nNone was written."
    last = story.checkpoints[-1]
    step = last.get("next_step", last.get("step"))
    best = story.result.artifacts.get("best_checkpoint")
    lines = [
        f"{len(story.checkpoints)} written; the last one is `{last.get('name')}`, after step {step}.",
        f"Best by validation: `{best}`." if best else "None was chosen as the best one.",
    ]
    return "## Checkpoints\n\n" + " ".join(lines)


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    texts = [[f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    return f"## {title}\n\n{markdown_table(header, texts)}" if texts else ""
