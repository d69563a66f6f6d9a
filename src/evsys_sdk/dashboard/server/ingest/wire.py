"""Records as received from clients, decoded and checked by msgspec; `dashboard/records.py` documents each."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, cast

import msgspec

from ....errors import DataError, show
from ....record.values import number
from ...records import check_id

LARGEST_NUMBER = 1 << 53  # largest range of exact integers in JavaScript
MOST_METRICS = 10_000
LONGEST_NAME = 500
_ODD = {"NaN", "Infinity", "-Infinity"}

type Whole = Annotated[int, msgspec.Meta(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
type Object = dict[str, Any]
type Columns = dict[str, Sequence[float]]


class _Record(msgspec.Struct, tag_field="kind", frozen=True):
    """Base of all records; unknown fields are ignored, so that newer clients can send more."""


class Stream(_Record, tag="stream", frozen=True):
    """The first record of a stream."""

    stream: str
    format: int


class ExperimentSet(_Record, tag="experiment", frozen=True):
    """Fields of an experiment."""

    id: str
    set: Object


class RunSet(_Record, tag="run", frozen=True):
    """Fields of a run."""

    id: str
    set: Object
    experiment: str | None = None


class StepRecord(_Record, tag="step", frozen=True):
    """Metrics of one step."""

    run: str
    line: Object
    at: float | None = None


class ScoreRecord(_Record, tag="score", frozen=True):
    """One scoring."""

    id: str
    run: str
    line: Object


class RolloutRows(_Record, tag="rollouts", frozen=True):
    """Predictions of one scoring, or rollouts of one step."""

    run: str
    split: str
    name: str
    step: Whole
    rows: list[Object]


class Rewind(_Record, tag="rewind", frozen=True):
    """A run resumes at `next_step`; its records from there on will be sent again."""

    run: str
    next_step: Whole


class JournalEvent(_Record, tag="event", frozen=True):
    """One line of a journal."""

    experiment: str
    event: Object


class SpendRecord(_Record, tag="spend", frozen=True):
    """One line of a ledger."""

    experiment: str
    number: Whole
    line: Object


class BenchmarkRecord(_Record, tag="benchmark", frozen=True):
    """A benchmark that is scored on."""

    id: str
    name: str
    metadata: Object


class AnchorRecord(_Record, tag="anchor", frozen=True):
    """The length and last hash of a journal."""

    head: str
    events: int = 0
    experiment: str | None = None


class LoopSet(_Record, tag="loop", frozen=True):
    """The state of a closed loop or a campaign."""

    system: str
    at: float
    page: Object


class AnswerRecord(_Record, tag="answer", frozen=True):
    """The outcome of a request."""

    request: str
    state: str
    answer: str = ""


type Record = (
    Stream
    | ExperimentSet
    | RunSet
    | StepRecord
    | ScoreRecord
    | RolloutRows
    | Rewind
    | JournalEvent
    | SpendRecord
    | BenchmarkRecord
    | AnchorRecord
    | LoopSet
    | AnswerRecord
)
_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")
"""An escaped NUL, which PostgreSQL cannot store; an even number of backslashes before it are escaped backslashes."""
_decode: Callable[[bytes], Record] = msgspec.json.Decoder(Record.__value__).decode


def decode(line: bytes) -> Record:
    """Decode one record; raise DataError if it is invalid."""
    try:
        return decode_all([line])[0]
    except DataError as error:
        raise DataError(f"{error}. It begins with {show(line[:80].decode(errors='replace'))}.") from None


def decode_all(lines: Sequence[bytes]) -> list[Record]:
    """Decode many records; raise DataError if any is invalid."""
    try:
        return [_decode(_NUL.sub(rb"\1\\ufffd", line) if b"\\u0000" in line else line) for line in lines]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise DataError(str(error)) from None


def columns_of(lines: Sequence[Object]) -> tuple[Sequence[int], Columns] | None:
    """Convert lines with the same names to steps and columns of metrics; None if a value needs `metrics_of`.

    Nearly all metrics pass here, so the work is done by column, not by value.
    """
    if len(lines[0]) > MOST_METRICS or any(len(name) > LONGEST_NAME for name in lines[0]):
        return None
    columns: dict[str, list[Any]] = {name: [line[name] for line in lines] for name in lines[0]}
    steps = columns.pop("step", [])
    if set(map(type, steps)) != {int} or min(steps) < -LARGEST_NUMBER or max(steps) > LARGEST_NUMBER:
        return None
    for name, values in columns.items():
        kinds = set(map(type, values))  # by type, because `isinstance(True, int)` is true
        try:
            columns[name] = values if kinds == {float} else list(map(float, values))
        except (TypeError, ValueError, OverflowError):
            return None
        if not kinds <= {float, int} or not all(map(math.isfinite, columns[name])):
            return None
    return steps, cast("Columns", columns)


def metrics_of(line: Object) -> tuple[int, list[tuple[str, float | None, str | None]]]:
    """The step of a line, and name, value and non-finite mark of each metric."""
    step = line.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or abs(step) > LARGEST_NUMBER:
        raise DataError(f"a line of metrics has step {show(step)}. It should be a whole number.")
    odd = cast("Object", line.get("_nonfinite") or {})
    if len(line) > MOST_METRICS or not isinstance(odd, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DataError(f"a line of metrics has {len(line)} entries; at most {MOST_METRICS} are accepted.")
    metrics: list[tuple[str, float | None, str | None]] = []
    for name, value in line.items():
        if name in ("step", "_nonfinite"):
            continue
        if len(name) > LONGEST_NAME:
            raise DataError(f"a metric's name has {len(name)} characters: {show(name)}. Use at most {LONGEST_NAME}.")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            finite = number(value)
            if finite is None:
                raise DataError(f"metric {show(name)} is {show(value)}, which is too large.")
            metrics.append((name, finite, None))
        elif value is None:
            special = odd.get(name)
            metrics.append((name, None, special if special in _ODD else None))
        else:
            raise DataError(f"metric {show(name)} is {show(value)}, which is not a number.")
    return step, metrics


def check_ids(*ids: str | None) -> None:
    """Raise if an id cannot be used in a URL."""
    for id in ids:
        if id is not None:
            check_id(id)


def whole(value: Any) -> int | None:
    """Return `value` if it is an integer that fits a column, else None."""
    fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER
    return value if fits else None
