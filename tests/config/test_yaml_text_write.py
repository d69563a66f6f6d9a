"""Writing YAML text: it reads back as the same data here and elsewhere, and people can read it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest
import yaml

from evsys_sdk.config.yaml_text import read_yaml
from evsys_sdk.config.yaml_write import write_yaml
from evsys_sdk.errors import ConfigError

NASTY = [
    *(
        "",
        " ",
        "  lead",
        "trail ",
        "\t",
        "\ttab first",
        "a\tb",
        ":",
        "a:",
        "a: b",
        "a :b",
        "a #b",
        "a#b",
        "#",
        "- x",
        "-",
        "--",
    ),
    *(
        "---",
        "...",
        "--- x",
        "? x",
        "?",
        "!x",
        "!!str x",
        "&x",
        "*x",
        "|",
        ">",
        "|-",
        "@x",
        "`x`",
        "%x",
        "%TAG",
        "[",
        "]",
    ),
    *(
        "[a]",
        "{",
        "}",
        "{a: 1}",
        ",",
        "a, b",
        "<<",
        "=",
        "~",
        "'",
        '"',
        "''",
        "it's",
        'say "x"',
        "C:\\data\\new",
        "\\",
        "\\n",
    ),
    *(
        "1e-5",
        "1",
        "-1",
        "+1",
        "012",
        "1_000",
        "0x10",
        "0o17",
        "0b1",
        "1.5",
        ".5",
        "5.",
        ".inf",
        "-.inf",
        ".nan",
        "12:30:45",
    ),
    *("2024-01-01", "2024-01-01 10:00:00", "yes", "No", "ON", "off", "y", "N", "true", "False", "NULL", "null", "None"),
    *(
        "one\ntwo",
        "one\ntwo\n",
        "one\n\n\n",
        "\none",
        "\n",
        "\n\n",
        " one\ntwo",
        "\tone\ntwo",
        "one \ntwo",
        "one\n two\n",
    ),
    *(
        "one\n\ttwo",
        "one\n\n two",
        "one\n  ",
        "one\r\ntwo",
        "one\rtwo",
        "# x\n# y",
        "- a\n- b",
        "a: b\nc: d\n",
        "---\n...\n",
    ),
    *(
        "one\n---\ntwo",
        "a\x85b",
        "\\\x85",
        "a\u2028b\n",
        "a\u2029",
        "\ufeff",
        "a\ufeffb",
        "\x00",
        "\x07\x1b[0m",
        "\x7f\x80\x9f",
        "\xa0",
    ),
    *(
        "\ufffe\uffff",
        "\ufffd",
        "\U0001fffe",
        "😀",
        "👩\u200d👩\u200d👧",
        "é",
        "日本語",
        "\u202e",
        "x" * 5_000,
        "a b " * 500,
    ),
    *(
        "./data/x.jsonl",
        "../x",
        "/abs/path",
        "~/home",
        "${VAR}",
        "{{ x }}",
        "$x",
        "http://host:80/p?q=1#f",
        "org/model-7B",
    ),
]


def test_any_text_comes_back_as_value_key_item_and_top_level_here_and_elsewhere() -> None:
    for text in NASTY:
        for value in (text, [text], {text: text}, {"a": {text: [text, {text: text}], "b": text}}, [[text, text]]):
            assert read_yaml(write_yaml(value)).data == value
        assert yaml.safe_load(write_yaml({text: [text]})) == {text: [text]}


def test_writing_is_readable() -> None:
    data = {
        "name": "a first try",
        "lr": 1e-5,
        "tags": ["x", "7b", '"quoted" first'],
        "runs": [{"seed": 1, "params": {}}, {"seed": 2, "params": {"layers": [1, 2]}}],
        "grid": [[1, 2], []],
        "prompt": "Answer.\n\n  Be brief: yes or no?\n",
        "on": None,
    }
    assert write_yaml(data) == (
        "name: a first try\nlr: 1.0e-05\n"
        "tags:\n  - x\n  - 7b\n  - '\"quoted\" first'\n"
        "runs:\n  - seed: 1\n    params: {}\n  - seed: 2\n    params:\n      layers:\n        - 1\n        - 2\n"
        "grid:\n  - - 1\n    - 2\n  - []\n"
        "prompt: |\n  Answer.\n\n    Be brief: yes or no?\n"
        '"on": null\n'
    )


def test_repeated_values_are_written_out_without_aliases() -> None:
    shared = {"x": [1]}
    assert "&" not in write_yaml([shared, shared])
    assert read_yaml(write_yaml([shared, shared])).data == [shared, shared]


def test_a_key_too_long_for_the_ordinary_form_comes_back() -> None:
    data = {"k" * 3_000: {"a b" * 700: [1, {"q'\"" * 900: "x"}]}, "after": 1}
    assert read_yaml(write_yaml(data)).data == data


class Colour(StrEnum):
    RED = "red"


def test_subclasses_and_tuples_are_written_as_the_plain_types() -> None:
    import numpy

    data = {Colour.RED: Colour.RED, "t": (1, (2,)), "n": numpy.float64(0.5)}
    assert read_yaml(write_yaml(data)).data == {"red": "red", "t": [1, [2]], "n": 0.5}


def contains_itself() -> list[Any]:
    data: list[Any] = []
    data.append(data)
    return data


@pytest.mark.parametrize(
    ("value", "path", "message"),
    [
        ({"a": [1, {"b": {1, 2}}]}, "a[1].b", "a value of type set cannot be written"),
        ({"a": b"x"}, "a", "type bytes"),
        ({"a": {1: 2}}, "a.1", "a key must be text"),
        ({"a": {None: 2}}, "a.None", "a key must be text"),
        ({"a": "\ud800"}, "a", "surrogate"),
        ({"a": "x\n\ud800"}, "a", "surrogate"),
        ({"a": 10**2_000}, "a", "too long"),
        (contains_itself(), "[0]" * 100, "contain themselves"),
    ],
)
def test_what_yaml_cannot_hold_is_refused_with_its_path(value: Any, path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        write_yaml(value)
    assert caught.value.problems[0].path == path


def nested(levels: int) -> Any:
    value: Any = []
    for level in range(levels - 1):
        value = [value] if level % 2 else {"k": value}
    return value


def test_the_deepest_data_that_can_be_written_can_be_read() -> None:
    assert read_yaml(write_yaml(nested(100))).data == nested(100)
    with pytest.raises(ConfigError, match="more than 100 levels"):
        write_yaml(nested(101))
