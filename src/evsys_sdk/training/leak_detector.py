"""Finds evaluation tasks in the batches that a model is trained on.

    detector = LeakDetector({"test/tools": {"t-1": "start mail 7"}}, client.tokenizer)
    client.on_batch = detector.check     at every backward pass
    detector.summarise()                 {"test/tools": {"n": 1, "first": ["t-1"]}}

The rows of a config are scanned before the run, more thoroughly. This finds rows that a recipe brings itself, and files
that changed after the scan. A task is reported before the backward pass, so that a killed process cannot lose it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..data.contamination import Words, holds_question, words_of

if TYPE_CHECKING:
    from ..backends.datum import Datum

_ANCHOR = 8
"""Tokens of a task that are searched for; where they are found, the whole text is compared."""
_SHORTEST = 4
"""Fewest tokens of a task that is searched for; fewer match by chance."""
_NAMED = 10
"""Tasks that the summary names."""
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << 64)
"""Every odd number has an inverse modulo 2**64."""

type _Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class _Task:
    benchmark: str
    id: str
    words: Words


class LeakDetector:
    """The questions of some benchmarks as tokens, and which of them have been trained on."""

    def __init__(
        self,
        tasks: Mapping[str, Mapping[str, str]],
        tokenizer: Any,
        *,
        known: Mapping[str, Sequence[str]] | None = None,
        report: Callable[[dict[str, list[str]]], None] | None = None,
    ) -> None:
        """`tasks`: the text of each task by benchmark and id; `known`: those that were trained on before a resume.

        `report` is called once for each task, by benchmark, before the backward pass.
        """
        self._tokenizer, self._report = tokenizer, report
        self._found = {name: dict.fromkeys(found) for name, found in (known or {}).items()}
        self._new: dict[str, list[str]] = {}
        self._checked: set[int] = set()
        self._anchors: dict[int, dict[int, list[_Task]]] = {}
        """By length and hash."""
        for benchmark, texts in tasks.items():
            for task, text in texts.items():
                self._anchor(_Task(benchmark, task, words_of(text)), text)

    def _anchor(self, task: _Task, text: str) -> None:
        # The first and the last token may differ where other text is next to them.
        inner = np.asarray(self._tokenizer.encode(text, add_special_tokens=False)[1:-1], dtype=np.int64)
        length = min(len(inner), _ANCHOR)
        if length < _SHORTEST:
            return
        known = self._anchors.setdefault(length, {})
        hashes = _window_hashes(_prefix_hashes(inner), length)
        # Of the end, the middle and the beginning, the part that the fewest tasks share: the others are a template.
        places = [int(hashes[at]) for at in (-1, len(hashes) // 2, 0)]
        known.setdefault(min(places, key=lambda place: len(known.get(place, ()))), []).append(task)

    def check(self, data: Sequence[Datum]) -> None:
        """Search each new sequence of a batch; epochs repeat sequences."""
        for datum in data:
            # Only a hash is kept, because the tokens of a whole run are large.
            content = hash(datum.tokens.tobytes())
            if self._anchors and content not in self._checked:
                self._checked.add(content)
                self._search(datum.tokens)
        if self._new and self._report is not None:
            self._report(self._new)
        self._new = {}

    def _search(self, tokens: NDArray[np.int64]) -> None:
        prefixes = _prefix_hashes(tokens)
        near: list[_Task] = []
        for length, tasks in self._anchors.items():
            if length <= len(tokens):
                near += [task for place in _window_hashes(prefixes, length).tolist() for task in tasks.get(place, ())]
        if near:
            text = self._tokenizer.decode(tokens.tolist())
            for task in near:
                if holds_question(text, task.words):
                    self._note(task)

    def _note(self, task: _Task) -> None:
        found = self._found.setdefault(task.benchmark, {})
        if task.id not in found:
            found[task.id] = None
            self._new.setdefault(task.benchmark, []).append(task.id)

    def summarise(self) -> dict[str, dict[str, Any]] | None:
        """How many tasks of each benchmark were trained on, and the first few; None where there are none."""
        return {name: {"n": len(tasks), "first": list(tasks)[:_NAMED]} for name, tasks in self._found.items()} or None


def _prefix_hashes(tokens: NDArray[np.int64]) -> _Hashes:
    """Hash of every prefix: the sum of token times power, so that the hash of a window is a difference of two."""
    terms = (tokens + 1).astype(np.uint64) * _powers(_BASE, len(tokens))
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])


def _window_hashes(prefixes: _Hashes, length: int) -> _Hashes:
    """Hash of every window of a length, divided by its first power, so that equal windows have equal hashes."""
    differences = prefixes[length:] - prefixes[:-length]
    return differences * _powers(_INVERSE, len(differences))


_known: dict[int, _Hashes] = {}


def _powers(base: int, n: int) -> _Hashes:
    """The first `n` powers of a base, cached."""
    found = _known.get(base)
    if found is None or len(found) < n:
        factors = np.full(max(n, 1024), base, np.uint64)
        factors[0] = 1
        found = _known[base] = np.cumprod(factors, dtype=np.uint64)
    return found[:n]
