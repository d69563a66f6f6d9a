"""Notices tasks that a model is judged by among what it is trained on, whoever put them there.

    seen = TrainedTasks({"test/tools": {"t-1": "start mail 7"}}, client.tokenizer)
    seen.look(data)              at every backward pass
    seen.summarise()             {"test/tools": {"n": 1, "first": ["t-1"]}}

What is new is told at once, before the weights have learned it: a killed process must not take it along.

What a config names is looked at before the run, with more care. But a recipe may bring rows of its own, and a file may
change after it was looked at; what goes through the client is what the weights have learned from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..data.task_identity import task_key

if TYPE_CHECKING:
    from ..backends.datum import Datum

_ANCHOR = 8
"""Tokens by which a task is looked for; where they stand, its whole text is."""
_SHORTEST = 4
"""Tokens of a task; fewer stand anywhere by chance."""
_NAMED = 10
"""Tasks that are named; of the others the number is enough."""
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << 64)
"""Numbers wrap around at 64 bits, where every odd one has an inverse."""

type _Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class _Task:
    benchmark: str
    id: str
    text: str


class TrainedTasks:
    """The questions of some benchmarks as tokens, and which of them have been trained on."""

    def __init__(
        self,
        tasks: Mapping[str, Mapping[str, str]],
        tokenizer: Any,
        *,
        known: Mapping[str, Sequence[str]] | None = None,
        tell: Callable[[dict[str, list[str]]], None] | None = None,
    ) -> None:
        """`tasks`: the text of each task by benchmark and id; `known`: those that were trained on before a resume.

        `tell` hears of every task once, by benchmark, before anything is learned from it.
        """
        self._tokenizer, self._tell = tokenizer, tell
        self._found = {name: dict.fromkeys(found) for name, found in (known or {}).items()}
        self._new: dict[str, list[str]] = {}
        self._looked: set[int] = set()
        self._anchors: dict[int, dict[int, list[_Task]]] = {}
        """By length and hash."""
        for benchmark, texts in tasks.items():
            for task, text in texts.items():
                self._anchor(_Task(benchmark, task, task_key(text)), text)

    def _anchor(self, task: _Task, text: str) -> None:
        # The first and the last token may be other ones where something stands beside them.
        inner = np.asarray(self._tokenizer.encode(text, add_special_tokens=False)[1:-1], dtype=np.int64)
        length = min(len(inner), _ANCHOR)
        if length < _SHORTEST:
            return
        known = self._anchors.setdefault(length, {})
        hashes = _window_hashes(_prefix_hashes(inner), length)
        # Of the end, the middle and the beginning the one that fewest tasks share: the rest is a template.
        places = [int(hashes[at]) for at in (-1, len(hashes) // 2, 0)]
        known.setdefault(min(places, key=lambda place: len(known.get(place, ()))), []).append(task)

    def look(self, data: Sequence[Datum]) -> None:
        """Look at each sequence once: epochs repeat them."""
        for datum in data:
            # Of what was looked at only a number is kept: the tokens of a whole run would not be small.
            content = hash(datum.tokens.tobytes())
            if self._anchors and content not in self._looked:
                self._looked.add(content)
                self._search(datum.tokens)
        if self._new and self._tell is not None:
            self._tell(self._new)
        self._new = {}

    def _search(self, tokens: NDArray[np.int64]) -> None:
        prefixes = _prefix_hashes(tokens)
        near: list[_Task] = []
        for length, tasks in self._anchors.items():
            if length <= len(tokens):
                near += [task for place in _window_hashes(prefixes, length).tolist() for task in tasks.get(place, ())]
        if near:
            text = task_key(self._tokenizer.decode(tokens.tolist()))
            for task in near:
                if re.search(rf"(?<!\w){re.escape(task.text)}(?!\w)", text):
                    self._note(task)

    def _note(self, task: _Task) -> None:
        found = self._found.setdefault(task.benchmark, {})
        if task.id not in found:
            found[task.id] = None
            self._new.setdefault(task.benchmark, []).append(task.id)

    def summarise(self) -> dict[str, dict[str, Any]] | None:
        """How many tasks of each benchmark have been trained on, and the first few; None where there are none."""
        return {name: {"n": len(tasks), "first": list(tasks)[:_NAMED]} for name, tasks in self._found.items()} or None


def _prefix_hashes(tokens: NDArray[np.int64]) -> _Hashes:
    """Of every beginning: the sum of token times power, so that the hash of a part is a difference of two."""
    terms = (tokens + 1).astype(np.uint64) * _powers(_BASE, len(tokens))
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])


def _window_hashes(prefixes: _Hashes, length: int) -> _Hashes:
    """Of every part of a length; divided by the power it begins with, so that equal parts are equal anywhere."""
    differences = prefixes[length:] - prefixes[:-length]
    return differences * _powers(_INVERSE, len(differences))


_known: dict[int, _Hashes] = {}


def _powers(base: int, n: int) -> _Hashes:
    """The first powers of a base, kept for the next time."""
    found = _known.get(base)
    if found is None or len(found) < n:
        factors = np.full(max(n, 1024), base, np.uint64)
        factors[0] = 1
        found = _known[base] = np.cumprod(factors, dtype=np.uint64)
    return found[:n]
