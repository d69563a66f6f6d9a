"""Tasks are found in training rows however they got there, and clean text is left alone."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from evsys_sdk.data.contamination import ProbeTask, TaskIndex
from evsys_sdk.data.task_identity import row_texts

from .real_text import chinese_text, library_texts, numpy_texts

type Edit = Callable[[random.Random, str], str]


@pytest.fixture(scope="module")
def clean() -> list[str]:
    return library_texts()


@pytest.fixture(scope="module")
def questions() -> list[str]:
    """Texts of 8 to 100 words that are nothing like each other."""
    rng = random.Random(11)
    distinct = {" ".join(text.lower().split()[:6]): text for text in numpy_texts() if len(text.split()) >= 12}
    chosen = rng.sample(sorted(distinct.values()), 400)
    return [" ".join(text.split()[: rng.randint(8, 100)]) for text in chosen]


def index_of(questions: list[str]) -> TaskIndex:
    return TaskIndex(ProbeTask(str(at), "bench", text, "forty two") for at, text in enumerate(questions))


def recall(questions: list[str], rows: list[str]) -> float:
    """The share of tasks that are found, when row i holds task i in some form."""
    found = {task_id for _, task_id in index_of(questions).scan([text] for text in rows).tasks}
    return len(found) / len(questions)


def replace_words(rng: random.Random, text: str) -> str:
    words = text.split()
    for at in rng.sample(range(len(words)), max(1, len(words) // 10)):
        words[at] = rng.choice(["zebra", "quickly", "seven", "Paris", "beneath", "orange"])
    return " ".join(words)


EDITS: dict[str, Edit] = {
    "verbatim": lambda rng, text: text,
    "another case": lambda rng, text: text.swapcase(),
    "other spaces and signs": lambda rng, text: re.sub(r"\W+", lambda _: rng.choice(["  ", "\n", " - ", ", "]), text),
    "one word in ten replaced": replace_words,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITS)
def test_edited_tasks_are_found(name: str, questions: list[str]) -> None:
    rng = random.Random(5)
    assert recall(questions, [EDITS[name](rng, text) for text in questions]) >= 0.95


@pytest.mark.slow
def test_tasks_inside_longer_rows_are_found(questions: list[str], clean: list[str]) -> None:
    rows = [f"{clean[at]} {text} {clean[-at]}" for at, text in enumerate(questions)]
    assert recall(questions, rows) >= 0.95


@pytest.mark.slow
def test_tasks_with_other_numbers_are_found() -> None:
    rng = random.Random(3)
    texts = [
        text for text in numpy_texts() if 12 <= len(text.split()) <= 80 and 1 <= len(re.findall(r"\d+", text)) <= 4
    ]
    texts = list({" ".join(text.lower().split()[:6]): text for text in texts}.values())[:300]
    rows = [re.sub(r"\d+", lambda _: str(rng.randint(100, 9999)), text) for text in texts]
    assert recall(texts, rows) >= 0.95


def test_tasks_with_other_names_are_found() -> None:
    question = "When did {} sell the old bakery on the corner of the market square to {} and for how much money"
    rows = [question.format("Ana Lopez", "Wei Zhang")]
    [finding] = index_of([question.format("Peter Smith", "John Miller")]).scan([[row] for row in rows]).findings
    assert finding.match in ("masked", "partial")
    assert finding.share > 0.7


def test_short_tasks_are_found_where_they_are_a_sentence_of_their_own(clean: list[str]) -> None:
    rng = random.Random(9)
    words = sorted({word for text in clean[:2000] for word in re.findall(r"[a-z]{4,}", text)})
    short = [" ".join(rng.sample(words, rng.randint(3, 7))) for _ in range(300)]
    assert recall(short, [f"Which tool answers this? {text.upper()}!" for text in short]) >= 0.95


def test_a_short_task_inside_a_sentence_is_told_only_with_its_answer() -> None:
    index = index_of(["book a cheap flight tomorrow"])
    inside = "please help me to book a cheap flight tomorrow evening"
    assert index.scan([[inside, "which one?"]]).findings == []
    assert [finding.match for finding in index.scan([[inside, "forty two"]]).findings] == ["short"]


def test_chinese_tasks_are_found() -> None:
    rng = random.Random(2)
    texts = [chinese_text(rng, rng.randint(10, 60)) for _ in range(200)]
    assert recall(texts, [chinese_text(rng, 40) + "\uff0c" + text + chinese_text(rng, 25) for text in texts]) >= 0.95


def test_clean_text_is_left_alone(questions: list[str], clean: list[str]) -> None:
    assert len(clean) >= 10_000
    flagged = {finding.row for finding in index_of(questions).scan([text] for text in clean).findings}
    assert len(flagged) / len(clean) < 0.001, [clean[row] for row in flagged]


def test_rows_made_from_the_template_of_the_benchmark_are_not_copies_of_its_tasks() -> None:
    template = "Please add the two numbers that follow and answer with the sum alone: {} and {}"
    tasks = [template.format(a, a + 7) for a in range(1000, 1060)]
    rows = [template.format(a, a * 3) for a in range(2000, 2500)]
    assert index_of(tasks).scan([row] for row in rows).findings == []


def test_a_finding_says_whether_the_answer_stands_beside_the_question() -> None:
    question = "What is the airspeed velocity of an unladen swallow over the northern sea in spring?"
    index = index_of([question])
    with_it, without = index.scan([[question, "Forty-two."], [question, "No idea."]]).findings
    assert (with_it.row, with_it.answer) == (0, True)
    assert (without.row, without.answer) == (1, False)
    assert with_it.text.startswith("what is the airspeed velocity")


def test_a_task_that_stands_in_many_rows_is_told_a_few_times() -> None:
    question = "Which of the seven harbours of the island is closed to ships during the winter months?"
    report = index_of([question]).scan([question] for _ in range(1000))
    assert report.n_rows == 1000
    assert 1 <= len(report.findings) <= 5


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "world"}]},
        {"task_id": "x", "instruction": "hello", "verifier": {"kind": "in_process", "expected": "world"}},
        {"inputs": {"q": "hello"}, "expected": ["world"]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}], "target_assistant": "world"},
    ],
)
def test_every_shape_of_row_gives_its_texts(row: dict[str, object]) -> None:
    assert {"hello", "world"} <= set(row_texts(row))


@pytest.mark.parametrize("rows", [[], [[]], [[""]], [["\ud800 half a pair"]], [["\0\0"]], [["a " * 100_000]]])
def test_odd_rows_are_no_trouble(rows: list[list[str]], questions: list[str]) -> None:
    assert index_of(questions).scan(rows).findings == []


@pytest.mark.parametrize("tasks", [[], [ProbeTask("a", "b", "")], [ProbeTask("a", "b", "one")]])
def test_odd_tasks_are_no_trouble(tasks: list[ProbeTask]) -> None:
    assert TaskIndex(tasks).scan([["one two three four five six seven eight nine"]]).findings == []
