"""Copies of tasks are found in training rows whatever their form, and clean rows are left alone."""

from __future__ import annotations

import html
import json
import random
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from evsys_sdk.data.contamination import ProbeTask, TaskIndex, words_of
from evsys_sdk.data.task_identity import row_texts

from .real_text import chinese_text, library_texts, numpy_texts


@pytest.fixture(scope="module")
def questions() -> list[str]:
    """Texts of 8 to 60 words that are nothing like each other."""
    rng = random.Random(11)
    distinct = {" ".join(text.lower().split()[:6]): text for text in numpy_texts() if len(text.split()) >= 12}
    plain = [text for text in sorted(distinct.values()) if "\\" not in text]
    cut = [" ".join(text.split()[: rng.randint(12, 60)]) for text in rng.sample(plain, 150)]
    return [text for text in cut if len(words_of(text)) >= 8][:100]


def index_of(questions: list[str]) -> TaskIndex:
    return TaskIndex(ProbeTask(str(at), "bench", text) for at, text in enumerate(questions))


def recall(questions: list[str], copy: Callable[[str], list[str]]) -> float:
    report = index_of(questions).scan(copy(text) for text in questions)
    return len({one.task_id for one in report.copies}) / len(questions)


def split(text: str) -> list[str]:
    words = text.split()
    return [" ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :]), "forty two"]


def part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def content(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": [*parts]}]}


def call(arguments: str) -> dict[str, Any]:
    called = {"id": "1", "type": "function", "function": {"name": "ask", "arguments": arguments}}
    return {"messages": [{"role": "assistant", "content": "", "tool_calls": [called]}]}


COPIES: dict[str, Callable[[str], list[str]]] = {
    "verbatim": lambda text: [text, "forty two"],
    "another case": lambda text: [text.swapcase()],
    "zero-width characters": lambda text: ["\u200b".join(text)],
    "look-alike letters": lambda text: [text.replace("a", "\u0430").replace("o", "\u043e").replace("e", "\u0435")],
    "markup": lambda text: [" ".join(f"<b>{word}</b>" for word in html.escape(text).split())],
    "JSON": lambda text: [json.dumps({"question": text, "answer": "forty two"})],
    "split over messages": split,
    "JSON in JSON": lambda text: [json.dumps(json.dumps({"question": text}))],
    "entities, escaped twice": lambda text: [html.escape("".join(f"&#{ord(one)};" for one in text))],
    "unicode escapes": lambda text: ["".join(f"\\u{ord(one):04x}" for one in text)],
    "hexadecimal escapes": lambda text: ["".join(f"\\U{ord(one):08x}\\u{{200b}}" for one in text)],
    "percent encoding": lambda text: [quote(text)],
    "full-width letters": lambda text: ["".join(chr(ord(one) + 0xFEE0) if "!" <= one <= "~" else one for one in text)],
    "ligatures": lambda text: [text.replace("ffi", "\ufb03").replace("fi", "\ufb01").replace("fl", "\ufb02")],
    "soft hyphens": lambda text: ["\u00ad".join(text)],
    "bidi marks": lambda text: ["\u202d" + "\u200f".join(text) + "\u202c"],
    "control characters": lambda text: ["\x00".join(text)],
    "small capitals": lambda text: [
        text.translate(str.maketrans("aeiotrn", "\u1d00\u1d07\u026a\u1d0f\u1d1b\u0280\u0274"))
    ],
    "combining accents": lambda text: ["\u0336".join(text.replace("e", "e\u0301"))],
    "one word per line": lambda text: ["Question:\n" + "\n".join(text.split()) + "\nThe answer is forty two."],
    "lines of JSON": lambda text: [json.dumps({"id": 1, "instruction": text, "n": [2]}, indent=1) + " is a row"],
    "a key of JSON": lambda text: ["rows = " + json.dumps({text: "forty two"})],
    "Markdown links": lambda text: [re.sub(r"(?<!\S)(\w+)(?!\S)", r"[\1](https://x.org/y)", text)],
    "line breaks": lambda text: [text.replace(" ", "<wbr> ").replace(" ", "<!-- -->\n")],
    "a list": lambda text: [f"1. {text}\n2. Another one"],
    "an instruction": lambda text: [f"[INST] {text} [/INST] forty two"],
    "a tool result": lambda text: row_texts({"messages": [{"role": "tool", "content": json.dumps([{"found": text}])}]}),
    "a tool call": lambda text: row_texts(call(json.dumps({"question": text}))),
    "a thinking part": lambda text: row_texts(content({"type": "thinking", "thinking": text}, part("forty two"))),
    "parts of a message": lambda text: row_texts(content(*map(part, text.split()))),
    "inside of a longer row": lambda text: [f"Please note: {text} -- and that is all."],
}
LONG_ONLY = ("JSON in JSON", "inside of a longer row")


@pytest.mark.parametrize("form", COPIES)
def test_copies_are_found(form: str, questions: list[str]) -> None:
    assert recall(questions, COPIES[form]) == 1.0


@pytest.mark.parametrize("form", [form for form in COPIES if form not in LONG_ONLY])
def test_short_tasks_are_found_where_they_are_a_message_or_were_split(form: str) -> None:
    short = [f"start {tool} {number}" for tool in ("mail", "calendar") for number in range(20)]
    assert recall(short, lambda text: [*COPIES[form](text)][:2] if "split" in form else COPIES[form](text)) == 1.0


@pytest.mark.parametrize("form", ["<!-- {} -->forty two", '<p title="{}">forty two</p>'])
def test_what_markup_hides_is_found_too(form: str, questions: list[str]) -> None:
    plain = [text for text in questions if "<" not in text]
    assert recall(plain, lambda text: [form.format(text)]) == 1.0


def test_chinese_tasks_are_found_inside_of_a_longer_text() -> None:
    rng = random.Random(3)
    tasks = [chinese_text(rng, rng.randint(10, 60)) for _ in range(100)]
    assert recall(tasks, lambda text: [chinese_text(rng, 40) + text + chinese_text(rng, 25)]) == 1.0


def test_clean_text_is_no_copy(questions: list[str]) -> None:
    assert index_of(questions).scan([text] for text in library_texts()[:3000]).copies == []


def test_short_label_tasks_and_other_values_of_a_generator_are_no_copies() -> None:
    things = ["budget", "holiday", "project", "garden", "travel", "music"]
    tasks = [f"please mail the {one} plan to Ann today" for one in things[:3]]
    tasks += [f"which queue answers this ticket: order {number} arrived broken" for number in range(50)]
    rows = [[f"please mail the {one} plan to Ann today", "MAIL"] for one in things[3:]]
    rows += [
        [f"which queue answers this ticket: order {number} arrived broken", "returns"] for number in range(50, 350)
    ]
    report = index_of(tasks).scan(rows)
    assert (report.copies, report.n_rows, report.n_tasks) == ([], 303, 53)


def test_short_tasks_among_the_labels_of_a_prompt_are_no_copies() -> None:
    row = 'Choose one of ["mail", "open mail", "calendar"] and say {\'tool\': \'mail\'}.'
    assert index_of(["mail", "open mail"]).scan([[row, "calendar"]]).copies == []


def test_a_near_match_is_listed_with_the_text_in_common_and_prompt_templates_are_not(questions: list[str]) -> None:
    words = questions[0].split()
    words[len(words) // 2] = "zebra"
    template = "You are a helpful assistant of the support team. Answer this question: "
    index = index_of([template + text for text in questions])
    [finding] = index.scan([[template + " ".join(words)]]).near_matches
    assert (finding.task_id, finding.match) == ("0", "near")
    assert finding.text
    assert "helpful assistant" not in finding.text
    assert index.scan([[template + "Where does the river begin, and who owns the bridge?"]]).findings == []


def test_a_task_in_many_rows_is_listed_a_few_times(questions: list[str]) -> None:
    assert len(index_of(questions[:1]).scan([[questions[0]]] * 50).copies) == 5


@pytest.mark.parametrize("rows", [[], [[]], [[""]], [["  "]]])
def test_empty_rows_and_tasks_are_no_trouble(rows: list[list[str]]) -> None:
    assert TaskIndex([ProbeTask("a", "b", ""), ProbeTask("c", "d", "x y")]).scan(rows).findings == []


def test_every_shape_of_row_gives_its_texts() -> None:
    row = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a b"}]}], "metadata": {"note": "n"}}
    assert "a b" in row_texts(row)
