"""Traces -> lines of the store: the id first, the reward worked out, secrets and personal things gone.

Some thousand lines are made and looked through at once. Pieces of a long file are read by two processes; what comes out
is the same, in the same order.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic_core import to_json

from ...redact import redact
from .privacy import Pseudonyms, find_perhaps_personal, find_suspicious
from .reading import Counts, Piece, Record, TraceFile
from .trace import Feedback, RewardRule, Trace, work_out_reward

_AT_ONCE: Final = 4000
_BYTES_AT_ONCE: Final = 4_000_000
_AHEAD: Final = 4
"""Pieces of a long file that are read before the first of them is written."""
_FIRST_SAID: Final = "conversation"
"""From this field on a line holds what people wrote; the numbers before it are no telephone numbers."""
_FIRST_SAID_AT: Final = f'"{_FIRST_SAID}":'.encode()


@dataclass(frozen=True, slots=True)
class Conversion:
    """What lines are made with."""

    rules: tuple[RewardRule, ...]
    salt: bytes | None
    """Of the pseudonyms; None keeps personal things as they are."""
    scores: Mapping[str, list[Feedback]]


@dataclass(frozen=True, slots=True)
class Batch:
    """Some lines, and what was seen while they were made."""

    ids: list[bytes] = field(default_factory=list[bytes])
    lines: list[bytes] = field(default_factory=list[bytes])
    rewarded: list[bool] = field(default_factory=list[bool])
    """Of each line, whether it has a reward."""
    counts: Counts = field(default_factory=Counts)
    redacted: dict[str, int] = field(default_factory=dict[str, int])


def convert_file(file: TraceFile, conversion: Conversion) -> Iterator[Batch]:
    """All lines of a file, some thousand at a time."""
    if not file.is_long or (os.cpu_count() or 1) < 2:
        yield from _convert(file, conversion)
        return
    from multiprocessing import get_context

    # Started anew, not forked: in a process with threads a fork may inherit a lock that nobody releases any more.
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        running: deque[Future[list[Batch]]] = deque()
        for piece in file.pieces():
            running.append(pool.submit(convert_piece, file, conversion, piece))
            # In the order of the file, and only so many ahead: a long file must not end up in memory.
            if len(running) >= _AHEAD:
                yield from running.popleft().result()
        while running:
            yield from running.popleft().result()


def convert_piece(file: TraceFile, conversion: Conversion, piece: Piece) -> list[Batch]:
    """Some lines of a file; in a process of its own."""
    return list(_convert(file, conversion, piece))


def _convert(file: TraceFile, conversion: Conversion, piece: Piece | None = None) -> Iterator[Batch]:
    cleaner, counts = _Cleaner(conversion), Counts()
    yield from cleaner.convert(file.traces(counts, conversion.scores, piece), file.format)
    yield Batch(counts=counts, redacted=cleaner.redacted())


def convert_records(records: Iterable[Record], format: str, conversion: Conversion) -> list[Batch]:
    """Records that came over the network; what is wrong with one is told by its number."""
    cleaner, counts = _Cleaner(conversion), Counts()
    traces = TraceFile(Path("record"), format).read(enumerate(records, 1), counts, conversion.scores)
    made = list(cleaner.convert(traces, format))
    return [*made, Batch(counts=counts, redacted=cleaner.redacted())]


class _Cleaner:
    def __init__(self, conversion: Conversion) -> None:
        self._rules = conversion.rules
        self._personal = None if conversion.salt is None else Pseudonyms(conversion.salt)
        self._secrets = 0

    def convert(self, traces: Iterable[Trace], source: str) -> Iterator[Batch]:
        """Lines of traces, as many at once as can well be held."""
        batch, made, size = Batch(), list[dict[str, Any]](), 0
        for trace in traces:
            line = self._make(trace, source)
            encoded = _encode(line)
            made.append(line)
            batch.ids.append(line["id"].encode())
            batch.lines.append(encoded)
            batch.rewarded.append(line["reward"] is not None)
            size += len(encoded)
            if len(made) >= _AT_ONCE or size >= _BYTES_AT_ONCE:
                self._clean(made, batch.lines)
                yield batch
                batch, made, size = Batch(), [], 0
        self._clean(made, batch.lines)
        yield batch

    def redacted(self) -> dict[str, int]:
        counts = dict(self._personal.counts) if self._personal else {}
        return {**counts, **({"SECRET": self._secrets} if self._secrets else {})}

    def _make(self, trace: Trace, source: str) -> dict[str, Any]:
        reward, feedback = work_out_reward(trace.feedback, self._rules) if trace.feedback else (None, [])
        return {
            "id": trace.id_in(source),
            "time": trace.time,
            "source": source,
            "model": trace.model,
            "reward": reward,
            "usage": trace.usage,
            _FIRST_SAID: trace.conversation,
            "feedback": feedback,
            "messages": trace.messages,
        }

    def _clean(self, made: list[dict[str, Any]], lines: list[bytes]) -> None:
        """Take what is personal and what is secret out of lines, of which most have neither."""
        if self._personal is not None:
            for at in find_perhaps_personal([line[line.find(_FIRST_SAID_AT) :] for line in lines]):
                mask, line = self._personal.mask, made[at]
                made[at] = {**line, **{key: mask(line[key]) for key in ("messages", "feedback", _FIRST_SAID)}}
                lines[at] = _encode(made[at])
        # After the marks were put in: these lines are what will be written.
        for at in find_suspicious(lines):
            hidden = {key: redact(value) for key, value in made[at].items()}
            if hidden != made[at]:
                self._secrets += 1
                lines[at] = _encode(hidden)


def _encode(line: dict[str, Any]) -> bytes:
    # JSON has no word for NaN, and a line with one could be read by nobody else.
    return to_json(line, inf_nan_mode="null") + b"\n"
