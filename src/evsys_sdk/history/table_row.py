"""An `ExperimentSummary` as the row that the cache keeps of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ..record.reader import UNFINISHED
from .cache import COLUMNS, Row
from .summary import ExperimentSummary


def table_row(folder: str, fingerprint: str, summary: ExperimentSummary, live_status: Callable[[], str]) -> Row:
    """The row of an experiment."""
    unfinished = summary.status == UNFINISHED
    spend = summary.spend
    tokens = spend.get("tokens_trained", 0.0) + spend.get("tokens_sampled", 0.0)
    values: dict[str, Any] = {
        "folder": folder,
        "fingerprint": fingerprint,
        "unfinished": int(unfinished),
        "id": summary.id,
        "name": summary.name,
        "status": live_status() if unfinished else summary.status,
        "verdict": summary.verdict,
        "started": summary.started,
        "ended": summary.ended,
        "metric": summary.metric,
        "mode": summary.mode,
        "score": summary.best_score,
        "counts": int(summary.counts),
        "parent": summary.parent_id,
        "tags": listed(summary.tags),
        "algorithms": listed(summary.algorithms),
        "models": listed(summary.models),
        "n_runs": summary.n_runs,
        "n_arms": summary.n_arms,
        "n_failures": summary.n_failures,
        "tokens": tokens,
        "usd": spend.get("usd"),
        "wall_s": spend.get("wall_s"),
        "gpu_s": spend.get("gpu_s"),
        "tried": json.dumps(summary.params, ensure_ascii=False),
        "reasons": json.dumps([one.reason for one in summary.failures], ensure_ascii=False) if summary.failures else "",
        "n_notes": len(summary.notes),
        "invalidated": summary.invalidated,
        "text": searchable(summary),
        "summary": summary.to_json(),
    }
    return tuple(_storable(values[name]) for name in (*COLUMNS, "text", "summary"))


def foreign_row(folder: str, fingerprint: str, status: str) -> Row:
    """The row of a folder that is no experiment."""
    known: dict[str, Any] = {"folder": folder, "fingerprint": fingerprint, "unfinished": 0, "status": status}
    return tuple(known.get(name) for name in (*COLUMNS, "text", "summary"))


def listed(values: list[str]) -> str:
    """A list as the text between bars that conditions are asked of."""
    return f"|{'|'.join(values)}|".casefold() if values else ""


def searchable(summary: ExperimentSummary) -> str:
    """Everything a free-text search looks at."""
    notes = [note.text for note in summary.notes]
    parts = [summary.id, summary.name, summary.hypothesis, summary.description, summary.sentence, summary.next, *notes]
    return "\n".join([*parts, summary.invalidated, *summary.tags]).casefold()


def _storable(value: Any) -> Any:
    """Half of a surrogate pair is legal JSON and no text that SQLite takes."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
