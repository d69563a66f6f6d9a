"""Which tasks of a benchmark occur in training rows: exact copies, and near matches.

    index = TaskIndex([ProbeTask("t1", "routing", question="Book a flight from Rome to Oslo ...", answer="FLIGHTS")])
    report = index.scan(row_texts(row) for row in rows)
    report.exact, report.near

An exact copy has all words of the question in order, after the normalisation of `task_key`: case, markup, look-alike
letters, invisible characters, JSON escapes and punctuation do not matter, nor does a split over several messages. A
question of few words must be a whole message or line, because such words also occur in other sentences. A near match
shares most of the word trigrams that are not a template of the benchmark; it is a remark, with the shared text.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .task_identity import task_key

type Match = Literal["exact", "near"]
type Words = tuple[str, ...]

_LONG = 8
"""Words of a question from which on it is searched for inside of longer texts."""
_NEAR = 0.6
"""Share of a question's own trigrams in a row that makes a near match."""
_FEWEST_GRAMS = 5
"""A near match needs so many trigrams of its own: fewer are shared by chance."""
_TEMPLATE = 0.1
"""Trigrams in more than this share of the tasks are a prompt template."""
_MOST_PER_TASK = 5
"""Findings for each task and kind of match."""
# Where a script has no spaces, each character counts as a word.
_WORD = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]|[^\W_\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]+")
_BOUNDARY = re.compile(r"<[^<>\n]{1,40}(?:>|$)")
"""Marks that a chat template puts between messages; training cuts the last one short."""
_SPEAKER = re.compile(r"\s*(?:user|human|system|question|prompt|instruction|input|task|q)\b[:\s]\s*", re.I)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|([nrt\"\\/]))")


@dataclass(frozen=True, slots=True)
class ProbeTask:
    """A task of a benchmark, as it is searched for."""

    task_id: str
    benchmark: str
    question: str
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A task that occurs in a training row."""

    row: int
    """Counted from 0."""
    task_id: str
    benchmark: str
    match: Match
    share: float
    """Of the question's words, or of its trigrams for a near match."""
    answer: bool
    """Whether the expected answer occurs in the same row."""
    text: str
    """What both have in common, normalised."""

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {"share": round(self.share, 3)}


@dataclass(frozen=True, slots=True)
class Report:
    """What a scan found, at most a few rows for each task."""

    findings: list[Finding]
    n_rows: int
    n_tasks: int

    @property
    def exact(self) -> list[Finding]:
        """Exact copies: facts."""
        return [finding for finding in self.findings if finding.match == "exact"]

    @property
    def near(self) -> list[Finding]:
        """Near matches: remarks."""
        return [finding for finding in self.findings if finding.match == "near"]


def words_of(text: str) -> Words:
    """The normalised words of a text."""
    if "\\" in text:
        text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else " ", text)
    return tuple(_WORD.findall(task_key(text)))


def holds_question(text: str, question: Words) -> bool:
    """Whether a text, such as a conversation as a model is trained on it, holds a question (see `TaskIndex`)."""
    if len(question) < _LONG:
        return question in _list_parts(text)
    words = words_of(text)
    return any(words[at : at + len(question)] == question for at in range(len(words) - len(question) + 1))


def _list_parts(text: str) -> set[Words]:
    """The messages and lines of a text, each also without the name of who speaks."""
    messages = _BOUNDARY.split(text)
    parts = [text, *messages, *(line for message in messages for line in message.splitlines())]
    return {words_of(part) for whole in parts for part in (whole, _SPEAKER.sub("", whole, count=1))}


class TaskIndex:
    """Searches rows for tasks."""

    def __init__(self, tasks: Iterable[ProbeTask]) -> None:
        self.tasks = list(tasks)
        self._words = [words_of(task.question) for task in self.tasks]
        self._answers = [words_of(task.answer) for task in self.tasks]
        self._short: dict[Words, list[int]] = defaultdict(list)
        self._begins: dict[Words, list[int]] = defaultdict(list)
        self._grams: dict[Words, list[int]] = defaultdict(list)
        self._n_grams: list[int] = []
        common = Counter(gram for words in self._words for gram in set(_trigrams(words)))
        for at, words in enumerate(self._words):
            if len(words) >= _LONG:
                self._begins[words[:_LONG]].append(at)
            elif words:
                self._short[words].append(at)
            own = {gram for gram in _trigrams(words) if common[gram] <= max(1, _TEMPLATE * len(self.tasks))}
            self._n_grams.append(len(own))
            for gram in own if len(own) >= _FEWEST_GRAMS else ():
                self._grams[gram].append(at)

    def scan(self, rows: Iterable[Sequence[str]]) -> Report:
        """Search rows, each given as its texts."""
        findings, told, n_rows = list[Finding](), Counter[tuple[int, Match]](), 0
        for row, texts in enumerate(rows):
            n_rows += 1
            words = words_of(" ".join(texts))
            exact = self._find_exact(texts, words)
            shares = dict.fromkeys(exact, 1.0) | {
                at: share for at, share in self._find_near(words).items() if at not in exact
            }
            for at, share in shares.items():
                match: Match = "exact" if at in exact else "near"
                told[at, match] += 1
                if told[at, match] <= _MOST_PER_TASK:
                    findings.append(self._tell(row, at, match, share, words))
        return Report(findings, n_rows, len(self.tasks))

    def _find_exact(self, texts: Sequence[str], words: Words) -> set[int]:
        found: set[int] = set()
        for start in range(len(words) - _LONG + 1) if self._begins else ():
            for at in self._begins.get(words[start : start + _LONG], ()):
                if words[start : start + len(self._words[at])] == self._words[at]:
                    found.add(at)
        if self._short:
            # A message, a line, or a question that was split over the messages before the answer.
            parts = {words_of(" ".join(texts[:-1])), words}.union(*map(_list_parts, texts))
            found.update(at for part in parts for at in self._short.get(part, ()))
        return found

    def _find_near(self, words: Words) -> dict[int, float]:
        seen = Counter(at for gram in set(_trigrams(words)) for at in self._grams.get(gram, ()))
        shares = {at: count / self._n_grams[at] for at, count in seen.items()}
        return {at: share for at, share in shares.items() if share >= _NEAR}

    def _tell(self, row: int, at: int, match: Match, share: float, words: Words) -> Finding:
        task, answer = self.tasks[at], self._answers[at]
        shared = [gram for gram in _trigrams(self._words[at]) if match == "exact" or gram in set(_trigrams(words))]
        text = " ".join(self._words[at]) if match == "exact" else " … ".join(" ".join(gram) for gram in shared[:3])
        size = len(answer)
        beside = bool(size) and any(words[i : i + size] == answer for i in range(len(words) - size + 1))
        return Finding(row, task.task_id, task.benchmark, match, share, beside, text)


def _trigrams(words: Words) -> list[Words]:
    return [words[at : at + 3] for at in range(len(words) - 2)]
