"""A cache of the views of one root, in an SQLite file next to them.

For a list of 10,000 views, SQLite reads the needed columns in a quarter of the time of parsing a JSON file, and a
changed experiment is one changed row. A file that is damaged, of another version, locked or not writable is replaced,
or the cache is kept in memory.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..record.layout import HISTORY_CACHE
from ..record.values import Note
from ..record.view.model import ArmView, Difference, ExperimentView, Failure, RunView
from ..record.view.question import Question
from .effects import Contrast

_FORMAT = 10
"""Increase it when the view of the same folder changes."""
_STORED_FAILURES = 5
"""Reasons of failures that are stored for digests."""
_MOST_SETTINGS = 200
"""Settings of runs that a search finds, e.g. `learning_rate=0.1`."""
_PATIENCE_S = 2.0
"""Seconds to wait for another writer."""

_SORTED = json.JSONEncoder(sort_keys=True, check_circular=False)
"""Shared, because `json.dumps` would create an encoder per row."""

type Row = tuple[Any, ...]
type NewRow = dict[str, Any]

COLUMNS: dict[str, tuple[str, Callable[[ExperimentView], Any]]] = {
    "id": ("TEXT", lambda view: view.id),
    "name": ("TEXT", lambda view: view.name),
    "verdict": ("TEXT", lambda view: view.verdict),
    "started": ("REAL", lambda view: view.started),
    "metric": ("TEXT", lambda view: view.metric),
    "mode": ("TEXT", lambda view: view.mode),
    "score": ("REAL", lambda view: view.best_score),
    "counts": ("INTEGER", lambda view: int(view.counts)),
    "parent": ("TEXT", lambda view: view.parent_id),
    "tags": ("TEXT", lambda view: _between_bars(view.tags)),
    "algorithms": ("TEXT", lambda view: _between_bars(view.algorithms)),
    "models": ("TEXT", lambda view: _between_bars(view.models)),
    "backends": ("TEXT", lambda view: _between_bars(view.backends)),
    "n_arms": ("INTEGER", lambda view: view.n_arms),
    "tokens": ("REAL", lambda view: view.spend.get("tokens_trained", 0.0) + view.spend.get("tokens_sampled", 0.0)),
    "usd": ("REAL", lambda view: view.spend.get("usd")),
    "wall_s": ("REAL", lambda view: view.spend.get("wall_s")),
    "gpu_s": ("REAL", lambda view: view.spend.get("gpu_s")),
    "claim": ("TEXT", lambda view: view.hypothesis or view.name),
    "seeds": ("INTEGER", lambda view: view.best_seeds),
    "tasks": ("TEXT", lambda view: next((run.tasks for run in view.runs if run.is_best), "")),
    "reasons": ("TEXT", lambda view: _reasons(view)),
    "n_notes": ("INTEGER", lambda view: len(view.notes)),
    "same_evidence": ("TEXT", lambda view: view.same_evidence),
    "error_rate": ("REAL", lambda view: _claim_error_rate(view)),
    "invalidated": ("TEXT", lambda view: view.invalidated),
}
"""Columns for lists and digests. `tags`, `algorithms` and `models` are lists between bars, `reasons` is JSON."""
LISTED = (
    *("id", "name", "verdict", "started", "mode", "score", "parent", "tags", "algorithms", "models"),
    *("tokens", "usd", "wall_s", "error_rate"),
)
"""Columns of filters and orders; the table of a server has only these."""
RUN_COLUMNS: dict[str, tuple[str, Callable[[ExperimentView, RunView], Any]]] = {
    "model": ("TEXT", lambda _, run: run.model),
    "backend": ("TEXT", lambda _, run: run.backend),
    "metric": ("TEXT", lambda view, _: view.metric),
    "mode": ("TEXT", lambda view, _: view.mode),
    "tasks": ("TEXT", lambda _, run: run.tasks),
    "algorithm": ("TEXT", lambda _, run: run.algorithm),
    "params": ("TEXT", lambda _, run: _SORTED.encode(run.params)),
    "id": ("TEXT", lambda view, _: view.id),
    "run": ("TEXT", lambda _, run: run.run),
    "first": ("INTEGER", lambda view, run: int(_is_first(view, run))),
    "counts": ("INTEGER", lambda view, _: int(view.counts)),
    "verdict": ("TEXT", lambda view, _: view.verdict),
    "rank": ("REAL", lambda view, run: _rank(view, run)),
    "seeds": ("INTEGER", lambda _, run: run.n_seeds),
    "arms": ("INTEGER", lambda _, run: run.n_arms),
    "usd": ("REAL", lambda _, run: run.spend.get("usd", 0.0)),
    "wall_s": ("REAL", lambda _, run: run.spend.get("wall_s", 0.0)),
}
"""One row per scored run; `rank` is its score, negated if lower is better; None if a seed failed."""
EFFECT_COLUMNS: dict[str, tuple[str, Callable[[ExperimentView, Contrast], Any]]] = {
    "model": ("TEXT", lambda view, contrast: _run_of(view, contrast).model),
    "backend": ("TEXT", lambda view, contrast: _run_of(view, contrast).backend),
    "metric": ("TEXT", lambda view, _: view.metric),
    "tasks": ("TEXT", lambda view, contrast: _run_of(view, contrast).tasks),
    "algorithm": ("TEXT", lambda view, pair: "" if pair.axis == "algorithm" else _run_of(view, pair).algorithm),
    "axis": ("TEXT", lambda _, contrast: contrast.axis),
    "before": ("TEXT", lambda _, contrast: contrast.before),
    "after": ("TEXT", lambda _, contrast: contrast.after),
    "counts": ("INTEGER", lambda view, _: int(view.counts)),
    "difference": ("REAL", lambda _, contrast: contrast.difference),
    "low": ("REAL", lambda _, contrast: contrast.low),
    "high": ("REAL", lambda _, contrast: contrast.high),
    "weight": ("REAL", lambda _, contrast: 1 / contrast.stderr**2 if contrast.stderr else None),
    "df": ("REAL", lambda _, contrast: contrast.df),
    "seeds": ("INTEGER", lambda _, contrast: contrast.seeds),
}
"""One row per contrast."""
_FRESHNESS = {"folder": "TEXT PRIMARY KEY", "fingerprint": "TEXT", "unfinished": "INTEGER", "status": "TEXT"}
FRESHNESS = tuple(_FRESHNESS)
"""Columns that show whether a row is current; an index covers them."""
_TABLES: dict[str, dict[str, str]] = {
    "experiments": {**_FRESHNESS, **{name: kind for name, (kind, _) in COLUMNS.items()}},
    # Large columns that few queries need, in another table.
    "details": {"folder": "TEXT PRIMARY KEY", "text": "TEXT", "view": "TEXT"},
    "runs": {"folder": "TEXT", **{name: kind for name, (kind, _) in RUN_COLUMNS.items()}},
    "effects": {"folder": "TEXT", **{name: kind for name, (kind, _) in EFFECT_COLUMNS.items()}},
}
SEARCHED = "(SELECT text FROM details WHERE details.folder = experiments.folder)"
"""The SQL expression of the searched text."""

_FOLDERS = {"run_folders": "runs (folder)", "effect_folders": "effects (folder)"}
"""Indexes for the replacement of rows."""
_INDEXES = {
    "freshness": f"experiments ({', '.join(FRESHNESS)})",
    "ranking": "experiments (verdict, counts, metric, mode, score, started, status, folder)",
    "claims": (
        "experiments (claim, models, backends, metric, tasks, verdict, counts, same_evidence, started, id, folder, "
        "status)"
    ),
    "trials": "experiments (error_rate, verdict) WHERE error_rate IS NOT NULL",
    "failing": "experiments (reasons) WHERE reasons != ''",
    "noted": "experiments (n_notes) WHERE n_notes > 0",
    "distrusted": "experiments (invalidated) WHERE invalidated != ''",
    "combinations": (
        "runs (model, backend, metric, mode, tasks, algorithm, params, counts, rank, first, arms, usd, wall_s)"
    ),
    "best_runs": "runs (model, backend, metric, mode, tasks, counts, rank, verdict, seeds)",
    "changes": f"effects ({', '.join(EFFECT_COLUMNS)})",
    "names": "experiments (name, status)",
    "by_tags": "experiments (tags, status)",
}
"""Indexes for the queries of a digest."""


class ViewCache:
    """An open cache; on disk, or in memory if the disk cannot be used."""

    def __init__(self, root: Path) -> None:
        self.path = root / HISTORY_CACHE
        self._db = self._open()

    def read(
        self, columns: Sequence[str], where: str = "", values: Sequence[Any] = (), table: str = "experiments"
    ) -> list[Row]:
        """Columns of the rows that match `where`, the SQL after FROM."""
        return self._db.execute(f"SELECT {','.join(columns)} FROM {table} {where}", values).fetchall()

    def view_of(self, folder: str) -> str:
        """The stored view of a folder."""
        return self._db.execute("SELECT view FROM details WHERE folder = ?", (folder,)).fetchone()[0]

    def write(self, changed: Iterable[NewRow], gone: Iterable[str] = ()) -> None:
        """Replace and remove rows; continues in memory if the file cannot be written."""
        rows, names = list(changed), [(name,) for name in gone]
        try:
            self._write(rows, names)
        except sqlite3.OperationalError:  # read-only, locked for too long, or the disk is full
            with contextlib.suppress(sqlite3.Error):
                self._db.rollback()
            self._db = self._copy_to_memory()
            self._write(rows, names)

    @property
    def is_on_disk(self) -> bool:
        """Whether it is on the disk."""
        return bool(self._db.execute("PRAGMA database_list").fetchone()[2])

    def add_indexes(self) -> None:
        """Add the indexes after the first refresh, which takes half of the time of adding them before."""
        if _version_of(self._db) != _version():
            with contextlib.suppress(sqlite3.OperationalError), self._db:  # else the next process does it
                self._db.execute("BEGIN IMMEDIATE")  # two read transactions could not both upgrade to write
                _add_indexes(self._db, _INDEXES)
                self._db.execute(f"PRAGMA user_version = {_version()}")

    def close(self) -> None:
        self._db.close()

    def reset(self, error: Exception) -> None:
        """Clear the cache: replace a damaged file, or continue in memory if the file is only locked."""
        self.close()
        if isinstance(error, sqlite3.OperationalError):
            self._db = self._with_tables(_connect(":memory:"))
            return
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        self._db = self._open()

    def _write(self, rows: list[NewRow], names: list[tuple[str]]) -> None:
        with self._db:  # one transaction, so that readers see all or nothing
            for table, columns in _TABLES.items():
                is_multi_row = table in ("runs", "effects")
                # These rows have no key, so the old ones are deleted first.
                changed = [(row["folder"],) for row in rows] if is_multi_row else []
                self._db.executemany(f"DELETE FROM {table} WHERE folder = ?", [*names, *changed])
                if is_multi_row:
                    values: list[Row] = [entry for row in rows for entry in row.get(table, ())]
                else:
                    values = [tuple(map(row.get, columns)) for row in rows]
                insert = f"INSERT OR REPLACE INTO {table} VALUES ({','.join('?' * len(columns))})"
                self._db.executemany(insert, values)

    def _open(self) -> sqlite3.Connection:
        for _ in range(2):  # a second time after a damaged file was removed
            try:
                return self._with_tables(_connect(str(self.path)))
            except sqlite3.OperationalError:  # not writable, or locked for too long
                break
            except sqlite3.DatabaseError:  # damaged, or of another version
                try:
                    self.path.unlink(missing_ok=True)
                except OSError:
                    break
        return self._with_tables(_connect(":memory:"))

    def _with_tables(self, db: sqlite3.Connection) -> sqlite3.Connection:
        """The connection with its tables; raises DatabaseError for a file of another version."""
        try:
            if abs(_version_of(db)) != _version():
                db.execute("BEGIN IMMEDIATE")  # another process may be creating the tables
                version = _version_of(db)
                if abs(version) not in (0, _version()):
                    raise sqlite3.DatabaseError("another version of evsys-sdk wrote it")
                for table, kinds in _TABLES.items():
                    columns = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
                    db.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
                _add_indexes(db, _FOLDERS)
                db.execute(
                    f"PRAGMA user_version = {version or -_version()}"
                )  # negative until `add_indexes` has added the indexes
                db.commit()
        except BaseException:
            db.close()
            raise
        return db

    def _copy_to_memory(self) -> sqlite3.Connection:
        memory = _connect(":memory:")
        try:
            self._db.backup(memory)
            memory = self._with_tables(memory)
        except sqlite3.Error:
            memory = self._with_tables(_connect(":memory:"))
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
        return memory


def make_row(
    folder: str,
    fingerprint: str,
    status: str,
    view: ExperimentView | None = None,
    contrasts: Sequence[Contrast] = (),
    *,
    unfinished: int = 0,
) -> NewRow:
    """The cache row of a folder; without a view, the row of a folder that is no experiment."""
    row: NewRow = {"folder": folder, "fingerprint": fingerprint, "unfinished": unfinished, "status": status}
    if view is None:
        return row
    row |= {name: value(view) for name, (_, value) in COLUMNS.items()}
    row |= {"text": searched_text(view), "view": view.to_json()}
    scored = [run for run in view.runs if is_scored(run)]
    runs = [(folder, *(value(view, run) for _, value in RUN_COLUMNS.values())) for run in scored]
    effects = [(folder, *(value(view, contrast) for _, value in EFFECT_COLUMNS.values())) for contrast in contrasts]
    if not row["view"].isascii():  # the view contains all texts
        row = {name: _storable(value) for name, value in row.items()}
        runs, effects = ([tuple(map(_storable, values)) for values in rows] for rows in (runs, effects))
    return row | {"runs": runs, "effects": effects}


def is_scored(run: RunView) -> bool:
    """Whether a run of this experiment has a score; runs of a parent have no arms here."""
    return run.score is not None and run.n_arms > 0


def _storable(value: Any) -> Any:
    """Text with lone surrogates escaped, which SQLite cannot store."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def _run_of(view: ExperimentView, contrast: Contrast) -> RunView:
    return next(run for run in view.runs if run.run == contrast.run)


def _is_first(view: ExperimentView, run: RunView) -> bool:
    """Whether a run is the first of its experiment with its model and tasks, to count experiments."""
    scored = (other for other in view.runs if is_scored(other))
    return next(other for other in scored if (other.model, other.tasks) == (run.model, run.tasks)) is run


def _rank(view: ExperimentView, run: RunView) -> float | None:
    return None if run.failures else (-1 if view.mode == "min" else 1) * (run.score or 0.0)


def _claim_error_rate(view: ExperimentView) -> float | None:
    """The false positive rate of its claim; None if it tests none."""
    return None if view.verdict in ("", "invalid") or view.same_evidence else view.error_rate


def _reasons(view: ExperimentView) -> str:
    return json.dumps([failure.reason for failure in view.failures[:_STORED_FAILURES]]) if view.failures else ""


def _between_bars(values: list[str]) -> str:
    """A list as text for conditions, with its lower-case form if that differs."""
    text = f"|{'|'.join(values)}|" if values else ""
    return text if text == text.casefold() else f"{text}\n{text.casefold()}"


def read_between_bars(column: str | None) -> list[str]:
    """The list of a column from `_between_bars`."""
    return [word for word in (column or "").partition("\n")[0].split("|") if word]


def searched_text(view: ExperimentView) -> str:
    """The text of an experiment that a search covers."""
    parts = [view.id, view.name, view.hypothesis, view.description, view.sentence, view.next]
    parts += [note.text for note in view.notes]
    settings = {f"{path.rpartition('.')[2]}={value}": None for run in view.runs for path, value in run.varied.items()}
    return "\n".join([*parts, view.invalidated, *view.tags, *list(settings)[:_MOST_SETTINGS]]).casefold()


def _add_indexes(db: sqlite3.Connection, indexes: dict[str, str]) -> None:
    for name, columns in indexes.items():
        db.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {columns}")


def _version_of(db: sqlite3.Connection) -> int:
    return db.execute("PRAGMA user_version").fetchone()[0]


def _connect(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_PATIENCE_S)


def _version() -> int:
    """The version of the cache, which changes with its columns and the fields of a view."""
    return _checksum([view_version(), *_TABLES.items(), *_FOLDERS.items(), *_INDEXES.items()])


def view_version() -> int:
    """The version of stored views, which changes with their fields."""
    kinds = (ExperimentView, RunView, ArmView, Question, Difference, Failure, Note)
    return _checksum([_FORMAT, *(entry.name for kind in kinds for entry in fields(kind))])


def _checksum(shape: list[Any]) -> int:
    # SQLite stores a signed 32-bit number; a new file has 0, and negative numbers mean "without indexes".
    return zlib.crc32(repr(shape).encode()) & 0x7FFFFFFF or 1
