"""Which tasks of a benchmark stand in the training rows: word for word, re-cased, cut, edited, or with other numbers.

    index = TaskIndex([ProbeTask("t1", "routing", question="Book a flight from Rome to Oslo ...", answer="FLIGHTS")])
    report = index.scan(row_texts(row) for row in rows)
    report.findings[0].task_id, report.findings[0].row, report.findings[0].share, report.findings[0].text

Two passes over hashes of word n-grams find candidates at the speed of NumPy; each candidate is then confirmed on its
words, so that a finding always comes with the text that both have in common. A task is looked for by its question; a
finding says whether the answer stands in the same row, which is what makes it a leak and not only a likeness.

Words are what the words of a script are: where a script has no spaces (Chinese, Japanese, Thai ...) each character is
one. Runs of words that many tasks share are a template of the benchmark, and finding them says nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from itertools import groupby, islice, pairwise
from typing import Any, Literal

from .word_grams import GramTable, hash_words, is_template_size, normalize

type Match = Literal["verbatim", "partial", "masked", "short"]
"""All of its words in order; most of them; all but numbers and names; a short task as a sentence of its own."""

_GRAMS = ((25, 8), (11, 5), (8, 4))
"""Least words of a task, and words in the n-grams that find it: one word in ten may differ, and one n-gram is left."""
_LONG_TASK, _SHORTEST = 25, 8
_WHOLE_RUN = 30
"""So many words in a row are a leak, however long the task is."""
_CHUNK_CHARS = 4_000_000
_MOST_PER_TASK = 5
"""Confirmed findings for each task; a task that stands in a thousand rows is one fact."""
_WORD = re.compile(r"[^\W_]+")
_SENTENCE = re.compile(r"[.?!:;\n\"()\[\]{}<>|\u3002\uff01\uff1f\uff1a\uff1b]+")
_NUMBER, _NAME = "\0number", "\0name"  # what no word is
_MASKS = (_NUMBER, _NAME)


@dataclass(frozen=True, slots=True)
class ProbeTask:
    """A task of a benchmark, as it is looked for."""

    task_id: str
    benchmark: str
    question: str
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A task that stands in a training row."""

    row: int
    """Counted from 0."""
    task_id: str
    benchmark: str
    match: Match
    share: float
    """How much of the task's question stands in the row."""
    answer: bool
    """Whether the expected answer stands in the same row."""
    text: str
    """The longest stretch that both have in common, normalised."""

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {"share": round(self.share, 3)}


@dataclass(frozen=True, slots=True)
class Report:
    """What a scan found, at most a few rows for each task."""

    findings: list[Finding]
    n_rows: int
    n_tasks: int

    @property
    def tasks(self) -> set[tuple[str, str]]:
        """Benchmark and id of every task that was found."""
        return {(finding.benchmark, finding.task_id) for finding in self.findings}

    @property
    def leaks(self) -> list[Finding]:
        """Findings with the answer beside the question."""
        return [finding for finding in self.findings if finding.answer]


def words_of(text: str) -> list[str]:
    """The words of a text, in one case."""
    return [word.lower() for word in _spell(text)]


def _spell(text: str) -> list[str]:
    return _WORD.findall(normalize(text))


type Pairs = frozenset[tuple[str, str]]
"""Words that stand side by side."""


class _RowWords:
    """The words of a training row, worked out once for all tasks that it is compared with."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self._spelled = _spell(" ".join(texts))
        self.words = [word.lower() for word in self._spelled]

    @cached_property
    def pairs(self) -> Pairs:
        return frozenset(pairwise(self.words))

    @cached_property
    def masked(self) -> list[str]:
        """Without its numbers and names."""
        return [*map(_mask, self._spelled)]

    @cached_property
    def masked_pairs(self) -> Pairs:
        return frozenset(pairwise(self.masked))

    def holds(self, answer: Sequence[str], *, besides: Sequence[str]) -> bool:
        """Whether the words of an answer stand together in it, more often than the question itself has them."""
        text, needle = f" {' '.join(self.words)} ", f" {' '.join(answer)} "  # spaces around: 4 is not in 42
        return bool(answer) and text.count(needle) > f" {' '.join(besides)} ".count(needle)


class TaskIndex:
    """Tasks by the hashes of their n-grams."""

    def __init__(self, tasks: Iterable[ProbeTask]) -> None:
        self.tasks = list(tasks)
        self._words = [words_of(task.question) for task in self.tasks]
        self._sought: dict[tuple[int, bool], _Sought] = {}
        self._template = _template_pairs(self._words)
        texts = [normalize(task.question) for task in self.tasks]
        members: dict[tuple[int, bool], list[int]] = {}
        for at, words in enumerate(self._words):
            if len(words) >= 2:  # a single word says nothing about where it comes from
                members.setdefault(_gram_size(len(words)), []).append(at)
        self._tables = [
            table
            for (n, whole), of_size in members.items()
            for masked in ((False,) if whole else (False, True))
            if len(table := GramTable(n, masked, of_size, texts, whole=whole))
        ]

    def scan(self, rows: Iterable[Sequence[str]], *, threads: int = 2) -> Report:
        """Look for every task in rows of texts; memory holds a few chunks of rows."""
        counter = _Count()
        found: dict[int, dict[int, Finding]] = {}
        with ThreadPoolExecutor(threads) as pool:
            chunks = _chunks(counter.watch(rows))
            # Twice as many as threads: while the first are confirmed here, the pool has others to look through.
            while ahead := list(islice(chunks, 2 * threads)):  # NumPy lets go of the interpreter, so threads help
                for chunk, pairs in zip(ahead, pool.map(self._candidates, ahead), strict=True):
                    self._confirm(chunk, pairs, found)
        findings = [finding for by_row in found.values() for finding in by_row.values()]
        findings.sort(key=lambda one: (not one.answer, -one.share, one.row))
        return Report(findings, counter.seen, len(self.tasks))

    def _candidates(self, chunk: _Chunk) -> list[tuple[int, int]]:
        """Pairs of row (within the chunk) and task that share an n-gram, or a whole short task."""
        pairs = set[tuple[int, int]]()
        if self._tables:
            words = hash_words([" ".join(texts) for texts in chunk.rows])
            for table in self._tables:
                pairs.update(table.lookup(words))
        return sorted(pairs)

    def _confirm(self, chunk: _Chunk, pairs: list[tuple[int, int]], found: dict[int, dict[int, Finding]]) -> None:
        for at, of_row in groupby(pairs, key=lambda pair: pair[0]):
            row = _RowWords(chunk.rows[at])
            for _, task in of_row:
                of_task = found.setdefault(task, {})
                if len(of_task) < _MOST_PER_TASK and chunk.first + at not in of_task:
                    finding = self._compare(chunk.first + at, row, task)
                    if finding is not None:
                        of_task[finding.row] = finding

    def _compare(self, at: int, row: _RowWords, task_at: int) -> Finding | None:
        """What a row and a task have in common, word by word; nothing where it is too little to mean anything."""
        task, words = self.tasks[task_at], self._words[task_at]
        if len(words) < _SHORTEST:
            has_answer = row.holds(words_of(task.answer), besides=words)
            if not _is_sentence(words, row.texts) and not (has_answer and len(words) >= 4):
                return None  # a few words inside a sentence are found everywhere
            return Finding(at, task.task_id, task.benchmark, "short", 1.0, has_answer, " ".join(words))
        if (common := _overlap(self._seek(task_at), row.words, row.pairs)) is not None:
            kind: Match = "verbatim" if len(common[1]) == len(words) else "partial"
        elif (common := _overlap(self._seek(task_at, masked=True), row.masked, row.masked_pairs)) is not None:
            kind = "masked"
        else:
            return None
        share, longest = common
        has_answer = row.holds(words_of(task.answer), besides=words)
        shown = " ".join({_NUMBER: "#", _NAME: "@"}.get(word, word) for word in longest)[:300]
        return Finding(at, task.task_id, task.benchmark, kind, share, has_answer, shown)

    def _seek(self, at: int, *, masked: bool = False) -> _Sought:
        """A task, prepared for being compared with rows."""
        if (at, masked) not in self._sought:
            words = [_mask(word) for word in _spell(self.tasks[at].question)] if masked else self._words[at]
            self._sought[at, masked] = _Sought(words, self._mark_telling(words))
        return self._sought[at, masked]

    def _mark_telling(self, task: Sequence[str]) -> list[bool]:
        """Which words of a task tell it from others: none of the template of its benchmark, and none that is masked."""
        telling = [word not in _MASKS for word in task]
        for at, pair in enumerate(pairwise(task)):
            if pair in self._template:
                telling[at] = telling[at + 1] = False
        return telling


class _Sought:
    """The words of a task, and which of them tell it from others."""

    def __init__(self, words: list[str], telling: list[bool]) -> None:
        self.words, self.telling, self.total = words, telling, sum(telling)
        self._pairs = frozenset(pairwise(words))
        self._telling_pairs = frozenset(pair for at, pair in enumerate(pairwise(words)) if any(telling[at : at + 2]))
        self._repeated = len(words) - 1 - len(self._pairs)

    def may_be_in(self, row: Pairs) -> bool:
        """Whether so much of it can be in a row that it is enough: quicker to tell than how much it is.

        A run of words is a run of pairs that the row has too, wherever it has them: neither the longest run nor the
        share can be more than what these cover.
        """
        longest = len(self._pairs & row) + self._repeated + 1
        covered = 2 * (len(self._telling_pairs & row) + self._repeated)
        share = covered / self.total if self.total else 0.0
        return longest >= len(self.words) or _enough(share, longest, len(self.words))


def _overlap(task: _Sought, row: Sequence[str], pairs: Pairs) -> tuple[float, list[str]] | None:
    """The share of a task's telling words that stand in the row in runs, and the longest run, if that is enough.

    A task of nearly nothing but the template of its benchmark is only ever found as a whole.
    """
    if not task.may_be_in(pairs):
        return None
    words, total = task.words, task.total
    # Without `autojunk`, which takes words that are frequent in a long text for noise and matches none of them.
    blocks = SequenceMatcher(None, words, _window(words, row), autojunk=False).get_matching_blocks()
    longest = max(blocks, key=lambda run: run.size)
    common = words[longest.a : longest.a + longest.size]
    if len(common) == len(words) and not set(words) & set(_MASKS):
        share = 1.0
    elif total < max(3, len(words) / 4):
        share = 0.0
    else:
        least = 3 if len(words) >= _LONG_TASK else 2  # a run of one word is chance
        share = sum(sum(task.telling[run.a : run.a + run.size]) for run in blocks if run.size >= least) / total
    return (share, common) if _enough(share, len(common), len(words)) else None


def _template_pairs(questions: Sequence[Sequence[str]]) -> frozenset[tuple[str, str]]:
    """Neighbouring words that so many tasks have that finding them says nothing."""
    counts = Counter(pair for words in questions for pair in set(pairwise(words)))
    return frozenset(pair for pair, tasks in counts.items() if tasks >= is_template_size(len(questions)))


@dataclass(slots=True)
class _Count:
    seen: int = 0

    def watch[T](self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            self.seen += 1
            yield item


@dataclass(frozen=True, slots=True)
class _Chunk:
    first: int
    rows: list[Sequence[str]]


def _chunks(rows: Iterable[Sequence[str]]) -> Iterator[_Chunk]:
    first, gathered, size = 0, list[Sequence[str]](), 0
    for texts in rows:
        gathered.append(texts)
        size += sum(map(len, texts))
        if size >= _CHUNK_CHARS:
            yield _Chunk(first, gathered)
            first, gathered, size = first + len(gathered), [], 0
    if gathered:
        yield _Chunk(first, gathered)


def _gram_size(length: int) -> tuple[int, bool]:
    """How many words the n-grams of a task have, and whether that is all of it: a short one is one n-gram."""
    return next(((n, False) for least, n in _GRAMS if length >= least), (length, True))


def _is_sentence(words: Sequence[str], texts: Sequence[str]) -> bool:
    """Whether a short task is one of the texts of a row, or a sentence in one."""
    return any(words_of(part) == words for text in texts for part in (text, *_SENTENCE.split(text)))


def _enough(share: float, longest: int, length: int) -> bool:
    """Whether so much of a task in a row cannot be chance: most of a short one, half of a long one, or a long run."""
    return longest >= _WHOLE_RUN or share >= (0.5 if length >= _LONG_TASK else 0.7)


def _window(task: Sequence[str], row: Sequence[str]) -> Sequence[str]:
    """The part of a row in which most of the task stands: words scattered over a long text are not a copy of it."""
    span = len(task) + len(task) // 2 + 10
    if len(row) <= span:
        return row
    pairs = set(pairwise(task))
    # The `span` words with the most pairs of the task in them, found with two ends that only move forward.
    places = [at for at, pair in enumerate(pairwise(row)) if pair in pairs]
    best, most, low = 0, 0, 0
    for high, place in enumerate(places):
        while place - places[low] > span:
            low += 1
        if high - low + 1 > most:
            best, most = places[low], high - low + 1
    return row[max(0, best - 5) : best + span]


def _mask(word: str) -> str:
    """What stays of a word when numbers and names do not count."""
    if not word.isalpha() and any(map(str.isdigit, word)):
        return _NUMBER
    # Of these letters alone `normalize` keeps the case.
    return _NAME if "A" <= word[0] <= "Z" else word.lower()
