"""Load the rows of a source and apply its transforms before the run, for a limited time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from ...config import DataConfig
from ...data import Workspace, apply_transforms, build_transforms, describe_source, load_rows
from ...data.bad_rows import BadRows
from ...data.row_files import kind_of
from ...errors import ConfigError, DataError, EvsysError, MissingExtraError, Problem, place_in_user_code, problems_of
from ...paths import in_project
from ...protocols import DataStore, Row
from ...redact import redact_text

_MOST_SECONDS = 1.0
"""Time limit per source; the run itself checks the remaining rows."""
_MOST_ROWS = 200_000
_IN_TRANSFORM = re.compile(r"^transform '([^']*)'")
_ROW = re.compile(r"(?:\bdata: )?\b(?:eval )?row \d+(?::|,)? ?")
_LOOKED_AT = 512
_KEPT = 2_000
_SHOWN = 5
_LONGEST = 64
_SIZED = 4096

type Attempt = Callable[[list[Row]], EvsysError | None]
"""A function that tries rows and returns the error; None if they are accepted."""


@dataclass(slots=True)
class PulledRows:
    """The rows of one source after its transforms, up to the limits of time and number."""

    data: DataConfig
    rows: list[Row] = field(default_factory=list[Row])
    origins: list[int | None] = field(default_factory=list[int | None])
    """For each row, the number of its raw row; None if unknown."""
    complete: bool = True
    """Whether all rows of the source were read."""
    read: int = 0
    """Number of raw rows read."""
    raw: list[Row] = field(default_factory=list[Row])
    """The first raw rows."""
    problems: list[Problem] = field(default_factory=list[Problem])
    """Places are relative to the `data` block."""
    left_out: list[Problem] = field(default_factory=list[Problem])
    """The bad rows that the config skips; places as in `problems`."""

    def where(self, index: int) -> str:
        """Describe row `index` for a message: `file:line` for JSONL files."""
        origin = self.origins[index]
        named = describe_source(self.data)
        if origin is None:
            return f"{named}, row {index + 1} after the transforms"
        path, kind = self.data.path, self.data.source_kind
        is_lines = path is not None and kind == "jsonl" and kind_of(path) in (None, kind) and not _is_cached(self.data)
        return f"{named}:{origin}" if is_lines else f"{named}, row {origin}"


def pull_rows(data: DataConfig, store: DataStore) -> PulledRows:
    """Load the rows of a source; `problems` of the result contains its errors."""
    pulled = PulledRows(data)
    try:
        transforms = build_transforms(data.transforms)
    except EvsysError:  # reported with the kinds and params of the config
        return pulled
    try:
        is_named = data.source_kind == "hf_dataset" and not _is_cached(data)
        if is_named and data.hf_dataset is not None and not in_project(data.hf_dataset).exists():
            if find_spec("datasets") is None:
                raise MissingExtraError("data source 'hf_dataset'", "hf")
            pulled.complete = False  # a download from the hub may be slow; the run does it
            return pulled
        _pull(pulled, store, transforms)
    except (EvsysError, OSError) as error:
        pulled.problems = _problems(data, error)
    except Exception as error:  # user code
        pulled.problems = _problems(data, DataError(f"{_describe(error)}. Correct it, or the rows it is given."))
    return pulled


def _pull(pulled: PulledRows, store: DataStore, transforms: Iterable[Any]) -> None:
    bad = BadRows(skip=pulled.data.on_bad_row == "skip")
    raw = _Counted(load_rows(pulled.data, store=store, workspace=Workspace(), bad=bad), bad)
    for row in apply_transforms(iter(raw), transforms, bad=bad):
        pulled.rows.append(row)
        pulled.origins.append(bad.number)
        if raw.cut or len(pulled.rows) >= _MOST_ROWS or raw.is_late():
            pulled.complete = False
            bad.finish()
            break
    pulled.complete, pulled.read, pulled.raw = pulled.complete and not raw.cut, raw.number, raw.kept
    if bad.skip and bad.count:
        left_out = Problem(f"{bad.count} rows are left out: {bad.report()}", path="on_bad_row")
        pulled.left_out = [left_out]
    if not pulled.rows and pulled.complete:
        raise DataError(
            f"the transforms leave none of the {raw.number} rows of {describe_source(pulled.data)}. "
            "Look at what each keeps with `evsys dataset show`, or remove the one that drops them."
        )


def try_rows(pulled: PulledRows, attempt: Attempt, place: str) -> list[Problem]:
    """Try some of the rows; report the error at the first row that causes it alone."""
    chosen = _choose(pulled.rows)
    error = attempt([pulled.rows[index] for index in chosen]) if chosen else None
    if error is None:
        return []
    if isinstance(error, ConfigError) or not _ROW.search(str(error)):
        return problems_of(error, place)
    same = _without_numbers(error)
    alone = {index: attempt([pulled.rows[index]]) for index in chosen}  # row numbers in `error` count the chosen rows
    bad = [index for index, one in alone.items() if one is not None and _without_numbers(one) == same]
    if not bad:
        return problems_of(error, place)
    found = problems_of(alone[bad[0]] or error, place, "Correct the row, or leave it out with a transform.")
    where, more = pulled.where(bad[0]), ""
    if bad[1:]:
        others = ", ".join(map(pulled.where, bad[1:_SHOWN])) + (" ..." if bad[_SHOWN:] else "")
        more = f" (the same in {len(bad) - 1} more of {len(chosen)} rows: {others})"
    return [replace(one, message=f"{where}: {_ROW.sub('', one.message, count=1)}{more}") for one in found]


def _choose(rows: Sequence[Row]) -> list[int]:
    """Indices of a sample of rows: the longest ones, and evenly spaced others."""
    if len(rows) <= _LOOKED_AT:
        return list(range(len(rows)))
    # The longest rows, because they may exceed the model's context.
    sized = _spread(len(rows), _SIZED)
    longest = sorted(sized, key=lambda index: -len(repr(rows[index])))[:_LONGEST]
    return sorted({*longest, *_spread(len(rows), _LOOKED_AT - _LONGEST)})


def _spread(count: int, most: int) -> list[int]:
    return [at * count // most for at in range(most)] if count > most else list(range(count))


def _without_numbers(error: EvsysError) -> str:
    return re.sub(r"\d+", "", str(error))


class _Counted:
    """A stream of raw rows that counts them and ends at the time limit."""

    def __init__(self, rows: Iterable[Row], bad: BadRows) -> None:
        self._rows, self._bad = rows, bad
        self._until = time.monotonic() + _MOST_SECONDS
        self.number = 0
        self.cut = False
        self.kept: list[Row] = []

    def __iter__(self) -> Iterator[Row]:
        for number, row in enumerate(self._rows, 1):
            self.number = number
            if number <= _KEPT:
                self.kept.append(dict(row))  # a transform may change the row
            yield row
            # The caller checks the time per output row only, and a transform may drop or collect all rows.
            if number % 16 == 0 and self.is_late():
                self.cut = True
                self._bad.number = None  # rows that transforms yield from here on have no single raw row
                return

    def is_late(self) -> bool:
        return time.monotonic() > self._until


def _is_cached(data: DataConfig) -> bool:
    return bool(data.dataset_id or data.dataset_name)


def _problems(data: DataConfig, error: Exception) -> list[Problem]:
    # Redact before joining lines: an error of user code may quote a secret that spans several lines.
    text = " ".join(redact_text(str(error)).split())
    known = DataError(text if isinstance(error, EvsysError) else f"{text}. Check the path and its permissions.")
    if found := _IN_TRANSFORM.match(text):
        at = next((at for at, spec in enumerate(data.transforms) if spec.kind == found[1]), None)
        place = f"transforms[{at}]" if at is not None else "transforms"
        remedy = "Correct the transform, or the rows it is given; `evsys dataset show` prints them."
        return problems_of(known, place, remedy)
    return problems_of(known, _field(data), "Check that it is what you meant.")


def _field(data: DataConfig) -> str:
    """The config key that names the source."""
    if _is_cached(data):
        return "dataset_id" if data.dataset_id else "dataset_name"
    return {"in_memory": "rows", "hf_dataset": "hf_dataset"}.get(data.source_kind, "path")


def _describe(error: Exception) -> str:
    place = place_in_user_code(error)
    return f"{type(error).__name__}: {error}".rstrip(": .") + (f" (at {place})" if place else "")
