"""What was asked and answered, by kind: `does ann7 pay it?` and `does bob pay it?` are one kind of question."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..data.task_identity import task_key

_WORD = re.compile(r"\w+")
_KNOWN_SHARE = 0.5
"""A question is new when less than this share of its pairs of words was seen in training."""
_USUAL_SHARE = 0.02
"""A word is part of a kind of question when it is in more questions than this share; others are names and the like."""
_SETTLED_COUNT, _SETTLED_SHARE = 5, 0.8
"""So many good answers, and so many of them alike, settle what a kind of question is answered with."""

_STILL_GOOD = 0.3
"""A settled answer is still good when at least this share of people like it ..."""
_FEWEST_FAILED = 3
"""... or when it failed less often than this."""

type Trace = dict[str, Any]


def question_of(trace: Trace) -> str:
    """The first thing that the user said, in plain words."""
    said = next((one["content"] for one in trace["messages"] if one["role"] == "user"), "")
    return " ".join(_WORD.findall(task_key(said)))


def answer_of(trace: Trace) -> str:
    """The last thing that was said, in plain words."""
    return " ".join(_WORD.findall(task_key(trace["messages"][-1]["content"])))


def pairs_of(question: str) -> list[tuple[str, str]]:
    """Neighbouring words, numbers as one word: order 7 and order 8 are the same kind of question."""
    words = ["0" if word.isdigit() else word for word in question.split()]
    # The empty word at both ends makes the first and the last word count as such.
    return list(zip(["", *words], [*words, ""], strict=True))


def is_new(question: str, seen: set[tuple[str, str]]) -> bool:
    """Whether a question is unlike those whose pairs of words were seen."""
    pairs = pairs_of(question)
    return sum(pair in seen for pair in pairs) < _KNOWN_SHARE * len(pairs)


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """One trace, as far as judging it needs."""

    question: str
    kind: str
    answer: str
    reward: float | None

    @property
    def failed(self) -> bool:
        return self.reward is not None and self.reward < 0.5


def sort_by_kind(*groups: Sequence[Trace]) -> list[list[AskedQuestion]]:
    """The traces of each group with the kinds of their questions; usual words are counted over all groups."""
    questions = [[question_of(one) for one in group] for group in groups]
    counted = Counter(word for asked in questions for one in asked for word in set(one.split()))
    fewest = _USUAL_SHARE * sum(map(len, questions))
    # Numbers are never usual: they are what such questions differ by.
    usual = {word for word, count in counted.items() if count > fewest and not word.isdigit()}

    def kind(question: str) -> str:
        return " ".join([word if word in usual else "_" for word in question.split()])

    return [
        [
            AskedQuestion(asked, kind(asked), answer_of(one), one["reward"])
            for asked, one in zip(texts, group, strict=True)
        ]
        for texts, group in zip(questions, groups, strict=True)
    ]


def find_settled_answers(known: Iterable[AskedQuestion], least_reward: float) -> dict[str, str]:
    """Kind of question -> the one answer that was good; kinds that are answered in many ways are not in it."""
    answers: dict[str, Counter[str]] = {}
    for one in known:
        if one.reward is not None and one.reward >= least_reward:
            answers.setdefault(one.kind, Counter())[one.answer] += 1
    found: dict[str, str] = {}
    for kind, counts in answers.items():
        answer, count = counts.most_common(1)[0]
        if count >= _SETTLED_COUNT and count >= _SETTLED_SHARE * counts.total():
            found[kind] = answer
    return found


@dataclass(frozen=True, slots=True)
class Standing:
    """How the settled answer to a kind of question does among new traces."""

    kind: str
    answer: str
    liked: int
    """Times that it was found good ..."""
    failed: int
    """... and bad."""
    others: int
    """Times that another answer was found good."""

    @property
    def is_over(self) -> bool:
        """Whether the world has changed: what was right fails now."""
        return self.failed >= _FEWEST_FAILED and self.liked < _STILL_GOOD * (self.liked + self.failed)


def follow_settled(new: Iterable[AskedQuestion], known: Iterable[AskedQuestion]) -> list[Standing]:
    """What became of each settled answer."""
    settled, counts = find_settled_answers(known, 0.5), Counter[tuple[str, str]]()
    for one in new:
        if one.kind in settled and one.reward is not None:
            if one.answer == settled[one.kind]:
                counts[one.kind, "failed" if one.failed else "liked"] += 1
            elif not one.failed:
                counts[one.kind, "others"] += 1
    return [
        Standing(kind, answer, counts[kind, "liked"], counts[kind, "failed"], counts[kind, "others"])
        for kind, answer in settled.items()
    ]
