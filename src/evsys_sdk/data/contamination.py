"""Find tasks of a benchmark in training rows: copies and near matches.

    index = TaskIndex([ProbeTask("t1", "routing", question="Book a flight from Rome to Oslo ...", answer="FLIGHTS")])
    report = index.scan(row_texts(row) for row in rows)
    report.copies, report.near_matches

A copy contains all words of the question in order, after the normalisation of `task_key`: case, markup, look-alike
letters, invisible characters, JSON escapes and punctuation do not matter, nor does a split over several messages. A
short question must be a whole message or line, because few words also occur in other sentences. A near match shares
most of the question's word trigrams that are not part of the benchmark's prompt template.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from .task_identity import visible_text

type Words = tuple[str, ...]
type Match = Literal["copy", "near"]

_LONG = 8
"""Minimum number of words for the search of a question inside longer texts."""
_NEAR = 0.6
"""Minimum share of a question's own trigrams in a row for a near match."""
_FEWEST_TRIGRAMS = 5
"""Minimum number of own trigrams for near matches; fewer match by chance."""
_TEMPLATE = 0.1
"""Trigrams in more than this share of the tasks belong to the prompt template."""
_MOST_PER_TASK = 5
"""Maximum number of findings per task and kind of match."""
# In scripts without spaces, each character counts as a word.
_WORD = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]|[^\W_\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]+")
_BOUNDARY = re.compile(r"<[^<>\n]{1,40}(?:>|$)|\[/?INST\]|\t")
"""Marks between the messages of a chat template; the last mark of a training text may be truncated."""
_QUOTES = re.compile(r"""\\*["']\s*[,:\]}]\s*(?:\\*["'])?|[\[{]\s*\\*["']""")
"""Marks between strings of JSON and Python."""
_ONE_WORD_LINE = re.compile(r"^[ \t]*(\S+)[ \t]*\n(?=[ \t]*\S+[ \t]*$)", re.M)
_NO_TAGS = str.maketrans("<>", "  ")
_SPEAKER = re.compile(
    r"\s*(?:(?:user|human|system|question|prompt|instruction|input|task|q)\b[:\s]|\d+[.)]\s)\s*", re.I
)
"""Name of the speaker, or a list number."""
_HEX = "([0-9a-fA-F]{%s})"
_ESCAPE = re.compile(rf"\\(?:u{_HEX % 4}|u\{{{_HEX % '1,5'}\}}|U000{_HEX % 5}|x{_HEX % 2}|([\"\\])|[nrt/])")
"""Escapes of JSON, Python and JavaScript."""
_ESCAPED_TIMES = 3
"""Maximum number of nested escapes."""


@dataclass(frozen=True, slots=True)
class ProbeTask:
    """A task to search for."""

    task_id: str
    benchmark: str
    question: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A task that occurs in a training row."""

    row: int
    """Index of the row, from 0."""
    task_id: str
    benchmark: str
    match: Match
    text: str
    """The normalised question, or for near matches the first shared trigrams."""


@dataclass(frozen=True, slots=True)
class ContaminationReport:
    """The result of a scan, with at most `_MOST_PER_TASK` findings per task and kind of match."""

    findings: list[Finding]
    n_rows: int
    n_tasks: int
    source: str = ""
    """Source of the rows."""

    @property
    def copies(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.match == "copy"]

    @property
    def near_matches(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.match == "near"]

    def flag(self) -> str | None:
        """A message about copies of tasks; None if there are none."""
        advice = "Remove these rows, or evaluate on other tasks; `evsys contamination` lists them"
        found = self._describe(self.copies, "also occur in the training data")
        return found and f"{found}. {advice}"

    def remark(self) -> str | None:
        """A message about near matches; None if there are none."""
        return self._describe(self.near_matches, "resemble training rows")

    def _describe(self, found: Sequence[Finding], what: str) -> str | None:
        if not found:
            return None
        return (
            f"{count_tasks(found)} of {self.n_tasks} evaluation tasks {what} ({self.source}), for instance task "
            f"'{found[0].task_id}' of '{found[0].benchmark}' in row {found[0].row + 1}: \"{found[0].text[:80]}\""
        )


def count_tasks(findings: Iterable[Finding]) -> int:
    """Number of distinct tasks in findings."""
    return len({(one.benchmark, one.task_id) for one in findings})


def words_of(text: str) -> Words:
    """The normalised words of a text."""
    for _ in range(_ESCAPED_TIMES if "\\" in text else 0):
        text = _ESCAPE.sub(_unescape, text)
    if "%" in text:
        text = unquote(text)
    return tuple(_WORD.findall(visible_text(text).casefold()))


def _unescape(found: re.Match[str]) -> str:
    *codes, literal = found.groups()
    code = next(filter(None, codes), None)
    return chr(int(code, 16)) if code else literal or " "


def _list_parts(text: str) -> set[Words]:
    """The words of all messages, lines and JSON strings of a text, each also without the name of its speaker."""
    # Other texts also list labels of one or two words.
    fewest = 0 if text.lstrip().startswith(("{", "[")) else 3
    strings = (string for string in _QUOTES.split(text) if len(string.split()) >= fewest)
    messages = [text, *_BOUNDARY.split(text), *strings]
    joined = [_ONE_WORD_LINE.sub(r"\1 ", message) for message in messages]
    parts = [*messages, *(line for message in (*messages, *joined) for line in message.splitlines())]
    return {words_of(part) for whole in parts for part in (whole, _SPEAKER.sub("", whole, count=1))}


class TaskIndex:
    """An index of tasks to search for in rows."""

    def __init__(self, tasks: Iterable[ProbeTask]) -> None:
        self.tasks = list(tasks)
        self._words = [words_of(task.question) for task in self.tasks]
        self._has_short = any(len(words) < _LONG for words in self._words)
        self._begins: dict[Words, list[int]] = defaultdict(list)
        for at, words in enumerate(self._words):
            self._begins[words[:_LONG]].append(at)
        common = Counter(trigram for words in self._words for trigram in _trigrams(words))
        most = max(1, _TEMPLATE * len(self.tasks))
        self._own = [{one for one in _trigrams(words) if common[one] <= most} for words in self._words]
        self._by_trigram: dict[Words, list[int]] = defaultdict(list)
        for at, own in enumerate(self._own):
            for trigram in own if len(own) >= _FEWEST_TRIGRAMS else ():
                self._by_trigram[trigram].append(at)

    def scan(self, rows: Iterable[Sequence[str]], source: str = "") -> ContaminationReport:
        """Search rows for tasks; each row is a sequence of its texts."""
        findings, seen, n_rows = list[Finding](), Counter[tuple[int, Match]](), 0
        for row, texts in enumerate(rows):
            n_rows += 1
            words = words_of(" ".join(texts))
            copies = self._find(texts, words)
            near = self._find_near(words)
            for at in [*sorted(copies), *sorted(near.keys() - copies)]:
                match: Match = "copy" if at in copies else "near"
                text = " ".join(self._words[at]) if at in copies else near[at]
                seen[at, match] += 1
                if seen[at, match] <= _MOST_PER_TASK:
                    findings.append(Finding(row, self.tasks[at].task_id, self.tasks[at].benchmark, match, text))
        return ContaminationReport(findings, n_rows, len(self.tasks), source)

    def find(self, texts: Sequence[str]) -> list[ProbeTask]:
        """The tasks that are copied in one row."""
        return [self.tasks[at] for at in sorted(self._find(texts, words_of(" ".join(texts))))]

    def _find(self, texts: Sequence[str], words: Words) -> set[int]:
        found: set[int] = set()
        joined = " ".join(texts)
        # A model also learns HTML comments and attributes, although they are not visible text.
        for seen in (words, words_of(joined.translate(_NO_TAGS))) if "<" in joined else (words,):
            windows = list(zip(*(seen[at:] for at in range(_LONG)), strict=False))
            for start, window in enumerate(windows) if not self._begins.keys().isdisjoint(windows) else ():
                for at in self._begins.get(window, ()):
                    if seen[start : start + len(self._words[at])] == self._words[at]:
                        found.add(at)
        if self._has_short:
            # A message, a line, or a question split over the messages before the answer.
            parts = {words_of(" ".join(texts[:-1])), words}.union(*map(_list_parts, texts))
            found |= {at for part in parts if part for at in self._begins.get(part, ()) if self._words[at] == part}
        return found

    def _find_near(self, words: Words) -> dict[int, str]:
        """Task index -> first shared trigrams, for tasks that a row resembles."""
        shared: dict[int, list[Words]] = defaultdict(list)
        trigrams = _trigrams(words)
        for trigram in trigrams if not self._by_trigram.keys().isdisjoint(trigrams) else ():
            for at in self._by_trigram.get(trigram, ()):
                shared[at].append(trigram)
        near = {at: found for at, found in shared.items() if len(found) >= _NEAR * len(self._own[at])}
        return {at: " … ".join(" ".join(trigram) for trigram in found[:3]) for at, found in near.items()}


def _trigrams(words: Words) -> list[Words]:
    """The distinct trigrams, in order."""
    return list(dict.fromkeys(zip(words, words[1:], words[2:], strict=False)))
