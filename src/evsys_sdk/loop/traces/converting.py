"""Traces -> lines of the store: the id first, the reward worked out, secrets and personal things gone.

Long files are read by two processes at a time; what comes out is the same, in the same order.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_core import to_json

from ...redact import is_suspicious, redact
from .personal import Pseudonyms, is_perhaps_personal
from .reading import Counts, NumberedLines, TraceFile, numbered_lines
from .trace import Feedback, RewardRule, Trace, work_out_reward

_AT_ONCE: Final = 4000
_AHEAD: Final = 4
"""Pieces of a long file that are read before the first of them is written."""
_FIRST_SAID: Final = "conversation"
"""From this field on a line holds what people wrote; the numbers before it are no telephone numbers."""


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

    lines: list[tuple[bytes, bytes, bool]]
    """Id, line, and whether it has a reward."""
    counts: Counts
    redacted: dict[str, int] = field(default_factory=dict[str, int])


def convert_file(file: TraceFile, conversion: Conversion) -> Iterator[Batch]:
    """All lines of a file, some thousand at a time."""
    if not file.is_long or (os.cpu_count() or 1) < 2:
        yield from _convert_in_turn(file, conversion)
        return
    from multiprocessing import get_context

    trouble = Counts()
    pieces = itertools.batched(numbered_lines(file.path, trouble.spoil), _AT_ONCE)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        running: deque[Future[Batch]] = deque()
        for piece in pieces:
            running.append(pool.submit(convert_lines, file, conversion, piece))
            if len(running) >= _AHEAD:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    yield Batch([], trouble)


def convert_lines(file: TraceFile, conversion: Conversion, lines: NumberedLines) -> Batch:
    """Some lines of a file; in a process of its own."""
    cleaner, counts = _Cleaner(conversion), Counts()
    made = [cleaner.convert(trace, file.format) for trace in file.traces(counts, conversion.scores, lines)]
    return Batch(made, counts, cleaner.redacted())


def _convert_in_turn(file: TraceFile, conversion: Conversion) -> Iterator[Batch]:
    cleaner, counts = _Cleaner(conversion), Counts()
    made = (cleaner.convert(trace, file.format) for trace in file.traces(counts, conversion.scores))
    for piece in itertools.batched(made, _AT_ONCE):
        yield Batch(list(piece), Counts())
    yield Batch([], counts, cleaner.redacted())


class _Cleaner:
    def __init__(self, conversion: Conversion) -> None:
        self._rules = conversion.rules
        self._personal = None if conversion.salt is None else Pseudonyms(conversion.salt)
        self._secrets = 0

    def convert(self, trace: Trace, source: str) -> tuple[bytes, bytes, bool]:
        id = trace.id_in(source)
        reward, feedback = work_out_reward(trace.feedback, self._rules) if trace.feedback else (None, [])
        line = {
            "id": id,
            "time": trace.time,
            "source": source,
            "model": trace.model,
            "reward": reward,
            "usage": trace.usage,
            _FIRST_SAID: trace.conversation,
            "feedback": feedback,
            "messages": trace.messages,
        }
        return id.encode(), self._clean(line), reward is not None

    def redacted(self) -> dict[str, int]:
        counts = dict(self._personal.counts) if self._personal else {}
        return {**counts, **({"SECRET": self._secrets} if self._secrets else {})}

    def _clean(self, line: dict[str, Any]) -> bytes:
        encoded = to_json(line, inf_nan_mode="null")
        text = encoded.decode("utf-8", "replace")
        if self._personal is not None and is_perhaps_personal(text[text.find(f'"{_FIRST_SAID}":') :]):
            masked = {key: self._personal.mask(line[key]) for key in ("messages", "feedback", _FIRST_SAID)}
            line = {**line, **masked}
            encoded = to_json(line, inf_nan_mode="null")
            text = encoded.decode("utf-8", "replace")
        if is_suspicious(text):
            hidden = {key: redact(value) for key, value in line.items()}
            if hidden != line:
                self._secrets += 1
                encoded = to_json(hidden, inf_nan_mode="null")
        return encoded + b"\n"
