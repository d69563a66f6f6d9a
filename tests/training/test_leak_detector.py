"""Tasks among what a model is trained on: found wherever they stand, and only where all of their words do."""

from __future__ import annotations

import random

import pytest

from evsys_sdk.backends.datum import Datum
from evsys_sdk.data.contamination import ProbeTask, TaskIndex
from evsys_sdk.training.leak_detector import LeakDetector


class Words:
    """A tokenizer with a number for every word."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [self.known.setdefault(word, len(self.known)) for word in text.split()]

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        words = {number: word for word, number in self.known.items()}
        return " ".join(words[number] for number in ids)


class Letters:
    """A tokenizer with a number for every letter."""

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, ids))


def datum(tokens: list[int]) -> Datum:
    return Datum.supervised(tokens, [1.0] * len(tokens))


TASKS = {"t-1": "which train goes to the north on monday", "t-2": "which train goes to the south on friday morning"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<user> which train goes to the north on monday <assistant> seven", ["t-1"]),
        ("some words before which train goes to the north on monday", ["t-1"]),
        ("which train goes to the north on sunday or monday", []),
        ("which train goes to the west on monday", []),
        ("train to goes the north on monday which", []),
        ("which train goes to the north on monday which train goes to the south on friday morning", ["t-1", "t-2"]),
    ],
)
def test_a_task_is_found_by_its_words_in_their_order(text: str, found: list[str]) -> None:
    words = Words()
    detector = LeakDetector({"test/trains": TASKS}, words)
    detector.check([datum(words.encode(f"{text} <end>"))])
    assert detector.summarise() == ({"test/trains": {"n": len(found), "first": found}} if found else None)


def test_a_task_that_another_text_only_begins_with_is_not_meant() -> None:
    detector = LeakDetector({"test/tools": {"t-1": "find taxi 60", "t-2": "find mail 7"}}, Letters())
    rows = ("<u>find taxi 602<a>", "<u>find mail 7<a>", "unfind taxi 60")
    detector.check([datum(Letters().encode(row)) for row in rows])
    assert detector.summarise() == {"test/tools": {"n": 1, "first": ["t-2"]}}


def test_a_short_task_is_a_whole_message_or_line_as_in_the_scan_before_the_run() -> None:
    tasks = {"test/tools": {"t-1": "find mail 7", "t-2": "find taxi 60"}}
    rows = ("<|im_start|>user\nhello, find mail 7<|im_end|>", "user: Find taxi 60\nassistant: TAXI")
    detector = LeakDetector(tasks, Letters())
    detector.check([datum(Letters().encode(row)) for row in rows])
    assert detector.summarise() == {"test/tools": {"n": 1, "first": ["t-2"]}}
    index = TaskIndex(ProbeTask(id, "tools", text) for id, text in tasks["test/tools"].items())
    scanned = index.scan([["hello, find mail 7", "MAIL"], ["Find taxi 60", "TAXI"]])
    assert [copy.task_id for copy in scanned.copies] == ["t-2"]


def test_what_is_too_short_to_tell_is_not_looked_for() -> None:
    words = Words()
    detector = LeakDetector({"test/short": {"t": "what is 2 + 2"}}, words)
    detector.check([datum(words.encode("what is 2 + 2 it is 4"))])
    assert detector.summarise() is None


def test_none_of_many_planted_tasks_is_missed_and_no_other_is_named() -> None:
    rng = random.Random(5)
    words = [str(number) for number in range(50)]
    tasks = {f"t{at}": " ".join(rng.choices(words, k=rng.randrange(8, 60))) for at in range(300)}
    tokenizer = Words()
    detector = LeakDetector({"test/many": tasks}, tokenizer)
    planted = rng.sample(sorted(tasks), 100)
    rows = [
        " ".join([*rng.choices(words, k=rng.randrange(100)), tasks[name], *rng.choices(words, k=9)]) for name in planted
    ]
    rows += [" ".join(rng.choices(words, k=200)) for _ in range(300)]
    data = [datum(tokenizer.encode(row)) for row in rows]
    for _ in range(2):
        detector.check(data)
    summary = detector.summarise()
    assert summary is not None
    assert summary["test/many"]["n"] == 100
    assert {*summary["test/many"]["first"]} <= {*planted}


def test_sequences_of_any_length_are_looked_at() -> None:
    tokenizer = Words()
    detector = LeakDetector({"test/trains": TASKS}, tokenizer)
    noise = tokenizer.encode(" ".join(map(str, range(5000))))
    detector.check([datum([1, 2]), datum([*noise, *tokenizer.encode(TASKS["t-2"]), 7])])
    assert detector.summarise() == {"test/trains": {"n": 1, "first": ["t-2"]}}


def test_a_task_is_reported_once_before_anything_is_learned_from_it_and_not_again_after_a_resume() -> None:
    tokenizer, reports = Words(), list[dict[str, list[str]]]()
    rows = [datum(tokenizer.encode(f"<user> {text} <assistant> seven")) for text in TASKS.values()]
    detector = LeakDetector({"test/trains": TASKS}, tokenizer, report=reports.append)
    detector.check(rows[:1])
    assert reports == [{"test/trains": ["t-1"]}]
    detector.check(rows)
    detector.check(rows)
    assert reports == [{"test/trains": ["t-1"]}, {"test/trains": ["t-2"]}]
    again = LeakDetector({"test/trains": TASKS}, tokenizer, known={"test/trains": ["t-1"]}, report=reports.append)
    again.check(rows[:1])
    assert len(reports) == 2
    assert again.summarise() == {"test/trains": {"n": 1, "first": ["t-1"]}}
