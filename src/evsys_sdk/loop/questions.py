"""Group questions and answers by kind: `does ann7 pay it?` and `does bob pay it?` are one kind of question."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..data.task_identity import task_key

_WORD = re.compile(r"\w+")
_KNOWN_SHARE = 0.5
"""A question is new if less than this share of its word pairs was seen in training."""
_USUAL_SHARE = 0.02
"""Words in more than this share of questions define the kind of a question; others are names."""
_SETTLED_COUNT, _SETTLED_SHARE = 5, 0.8
"""Fewest equal good answers, and their share, that settle the answer to a kind of question."""

_STILL_GOOD = 0.3
"""A settled answer is still good if at least this share of its feedback is good ..."""
_FEWEST_FAILED = 3
"""... or if it failed less often than this."""

type Trace = dict[str, Any]


def question_of(trace: Trace) -> str:
    """The first user message as normalised words."""
    prompt = next((message["content"] for message in trace["messages"] if message["role"] == "user"), "")
    return " ".join(_WORD.findall(task_key(prompt)))


def answer_of(trace: Trace) -> str:
    """The last message as normalised words."""
    return " ".join(_WORD.findall(task_key(trace["messages"][-1]["content"])))


def pairs_of(question: str) -> list[tuple[str, str]]:
    """The word bigrams of a question, with all numbers as the same word."""
    words = ["0" if word.isdigit() else word for word in question.split()]
    # Empty words mark the start and the end.
    return list(zip(["", *words], [*words, ""], strict=True))


def is_new(question: str, known_pairs: set[tuple[str, str]]) -> bool:
    """Whether few of a question's word pairs were seen."""
    pairs = pairs_of(question)
    return sum(pair in known_pairs for pair in pairs) < _KNOWN_SHARE * len(pairs)


@dataclass(frozen=True, slots=True)
class TraceQuestion:
    """Question, kind, answer and reward of a trace."""

    question: str
    kind: str
    answer: str
    reward: float | None

    @property
    def failed(self) -> bool:
        return self.reward is not None and self.reward < 0.5


def sort_by_kind(*groups: Sequence[Trace]) -> list[list[TraceQuestion]]:
    """The questions of each group of traces with their kinds; common words are counted over all groups."""
    questions = [[question_of(trace) for trace in group] for group in groups]
    counted = Counter(word for texts in questions for text in texts for word in set(text.split()))
    fewest = _USUAL_SHARE * sum(map(len, questions))
    # Numbers are never common words, because questions of a kind differ by them.
    common = {word for word, count in counted.items() if count > fewest and not word.isdigit()}

    def kind(question: str) -> str:
        return " ".join([word if word in common else "_" for word in question.split()])

    return [
        [
            TraceQuestion(text, kind(text), answer_of(trace), trace["reward"])
            for text, trace in zip(texts, group, strict=True)
        ]
        for texts, group in zip(questions, groups, strict=True)
    ]


def find_settled_answers(questions: Iterable[TraceQuestion]) -> dict[str, str]:
    """Kind of question -> its settled answer, for kinds with one."""
    answers: dict[str, Counter[str]] = {}
    for question in questions:
        if question.reward is not None and not question.failed:
            answers.setdefault(question.kind, Counter())[question.answer] += 1
    settled: dict[str, str] = {}
    for kind, counts in answers.items():
        answer, count = counts.most_common(1)[0]
        if count >= _SETTLED_COUNT and count >= _SETTLED_SHARE * counts.total():
            settled[kind] = answer
    return settled


@dataclass(frozen=True, slots=True)
class Standing:
    """Feedback on the settled answer to a kind of question in new traces."""

    kind: str
    answer: str
    liked: int
    """Times that it had good feedback ..."""
    failed: int
    """... and bad."""
    others: int
    """Times that another answer had good feedback."""

    @property
    def is_over(self) -> bool:
        """Whether the settled answer fails now."""
        return self.failed >= _FEWEST_FAILED and self.liked < _STILL_GOOD * (self.liked + self.failed)


def follow_settled(new: Iterable[TraceQuestion], trained_questions: Iterable[TraceQuestion]) -> list[Standing]:
    """The feedback on each settled answer in new traces."""
    settled, counts = find_settled_answers(trained_questions), Counter[tuple[str, str]]()
    for question in new:
        if question.kind in settled and question.reward is not None:
            if question.answer == settled[question.kind]:
                counts[question.kind, "failed" if question.failed else "liked"] += 1
            elif not question.failed:
                counts[question.kind, "others"] += 1
    return [
        Standing(kind, answer, counts[kind, "liked"], counts[kind, "failed"], counts[kind, "others"])
        for kind, answer in settled.items()
    ]
