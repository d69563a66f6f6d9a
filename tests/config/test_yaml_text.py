"""Reading YAML text: what each spelling means, and where each value stands."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.config.yaml_text import Document, read_yaml, read_yaml_file

SCALARS: list[tuple[str, Any]] = [
    *((text, None) for text in ("", "~", "null", "Null", "NULL")),
    *((text, True) for text in ("true", "True", "TRUE")),
    *((text, False) for text in ("false", "False", "FALSE")),
    *((text, text) for text in ("yes", "no", "on", "off", "Yes", "ON", "y", "n", "nULL", "tRUE", "none", "None")),
    *(("0", 0), ("7", 7), ("-7", -7), ("+7", 7), ("0x10", 16), ("0xfF", 255), ("0o17", 15), ("-0", 0)),
    ("123456789012345678901234567890", 123456789012345678901234567890),
    *(
        (text, text)
        for text in ("1_000", "0b101", "-0x10", "0o8", "0x", "1:30", "12:30:45", "1,000", "1 000", "+", "-x")
    ),
    *(("1e-5", 1e-5), ("1E5", 1e5), ("1.0e-5", 1e-5), (".5", 0.5), ("5.", 5.0), ("-1e3", -1e3), ("+1.5", 1.5)),
    *(("0.0", 0.0), ("0e5", 0.0), ("1e+5", 1e5), ("012.5", 12.5)),
    *((text, math.inf) for text in (".inf", ".Inf", ".INF", "+.inf")),
    *((text, text) for text in ("inf", "nan", "-.nan", ".", "..", "1e", "e5", "1.2.3", ".e5", "1e5.0")),
    ("-.inf", -math.inf),
    *((text, text) for text in ("2024-01-01", "2024-01-01T00:00:00Z", "=", "v1.0", "7b", "a b", "http://x:80/y")),
    *(
        ("'1'", "1"),
        ('"true"', "true"),
        ("'~'", "~"),
        ('""', ""),
        ("'<<'", "<<"),
        ('"\\u263a"', "☺"),
        ('"\\x00"', "\0"),
    ),
    *(
        ("!!str 1", "1"),
        ("!!str", ""),
        ("!!int 1", 1),
        ('!!int "0x10"', 16),
        ("!!float 1", 1.0),
        ("!!float .inf", math.inf),
    ),
    *(("!!bool 'true'", True), ("!!null ''", None), ("!!seq [1]", [1]), ("!!map {a: 1}", {"a": 1})),
    *(("[]", []), ("{}", {}), ("[a, {b: c}]", ["a", {"b": "c"}]), ("{a: }", {"a": None}), ("[a: 1]", [{"a": 1}])),
]


@pytest.mark.parametrize(("text", "value"), SCALARS)
def test_a_value_is_read_by_the_yaml_1_2_core_rules(text: str, value: Any) -> None:
    parsed = read_yaml(f"key: {text}\n").data["key"]
    assert (type(parsed), parsed) == (type(value), value)


@pytest.mark.parametrize("text", [".nan", ".NaN", ".NAN"])
def test_nan_is_a_float(text: str) -> None:
    assert math.isnan(read_yaml(f"key: {text}").data["key"])


def test_block_text_keeps_or_folds_its_lines() -> None:
    text = "a: |\n  one\n   two\n\nb: >-\n  one\n  two\nc: |+\n  x\n\nd: one\n  two\n"
    assert read_yaml(text).data == {"a": "one\n two\n", "b": "one two", "c": "x\n\n", "d": "one two"}


def test_the_top_level_may_be_anything() -> None:
    assert [read_yaml(text).data for text in ("- 1\n- 2", "text", "12", "null", "!!null")] == [
        [1, 2],
        "text",
        12,
        None,
        None,
    ]


def test_line_endings_a_byte_order_mark_and_document_markers_are_accepted() -> None:
    assert read_yaml(b"\xef\xbb\xbf%YAML 1.2\r\n---\r\na: 1\r\nb: |\r\n  x\r\n  y\r\n...\r\n").data == {
        "a": 1,
        "b": "x\ny\n",
    }
    assert read_yaml("\ufeffa: 1").data == {"a": 1}


def test_keys_keep_their_order_and_may_be_any_text() -> None:
    text = "zebra: 1\n'1': 2\nyes: 3\n2024-01-01: 4\n\"\": 5\n!!str 7: 6\nein Schlüssel: 7\n"
    assert list(read_yaml(text).data.items()) == [
        *(("zebra", 1), ("1", 2), ("yes", 3), ("2024-01-01", 4), ("", 5), ("7", 6), ("ein Schlüssel", 7)),
    ]


def test_aliases_give_equal_but_independent_values() -> None:
    data = read_yaml("a: &x {n: [1]}\nb: *x\nc: [*x, &k key]\nd: {*k : 1}\n").data
    assert data == {"a": {"n": [1]}, "b": {"n": [1]}, "c": [{"n": [1]}, "key"], "d": {"key": 1}}
    data["b"]["n"].append(2)
    assert data["a"]["n"] == data["c"][0]["n"] == [1]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<<: *a\n  y: 3", {"x": 1, "y": 3}),
        ("y: 3\n  <<: *a", {"x": 1, "y": 3}),
        ("<<: [*a, *b]", {"x": 1, "y": 2, "z": 9}),
        ("<<: [*b, *a]", {"x": 8, "y": 2, "z": 9}),
        ("<<: {x: 0}", {"x": 0}),
        ("<<: []", {}),
        ("!!merge <<: *a", {"x": 1, "y": 2}),
        ("'<<': *a", {"<<": {"x": 1, "y": 2}}),
        ("n: {<<: *c, x: 5}", {"n": {"x": 5, "y": 2, "w": 0}}),
    ],
)
def test_merge_keys_fill_in_what_the_mapping_does_not_say(text: str, value: dict[str, Any]) -> None:
    base = "a: &a {x: 1, y: 2}\nb: &b {x: 8, z: 9}\nc: &c {<<: *a, w: 0}\n"
    assert read_yaml(f"{base}m:\n  {text}\n").data["m"] == value


POSITIONS = """\
# a comment
name: x
run: &run
  data:
    - kind: a
    -   kind: b
      # comment
  "quoted": {lr: 1e-5, list: [1, 2]}
again: *run
merged:
  <<: *run
  own: 1
emoji: {"😀😀": 1, after: 2}
"""


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ((), (2, 1)),
        (("name",), (2, 1)),
        (("run", "data"), (4, 3)),
        (("run", "data", 0), (5, 7)),
        (("run", "data", 1), (6, 9)),
        (("run", "data", 1, "kind"), (6, 9)),
        (("run", "quoted", "lr"), (8, 14)),
        (("run", "quoted", "list", 1), (8, 34)),
        (("run", "missing", "deeper"), (3, 1)),
        (("run", "data", 2), (4, 3)),
        (("run", "data", "kind"), (4, 3)),
        (("run", "data", -1), (4, 3)),
        (("name", "x"), (2, 1)),
        (("name", 0), (2, 1)),
        ((0,), (2, 1)),
        (("missing",), (2, 1)),
        (("again",), (9, 1)),
        (("again", "data", 0, "kind"), (5, 7)),
        (("merged", "data"), (4, 3)),
        (("merged", "own"), (12, 3)),
        (("emoji", "after"), (13, 18)),
    ],
)
def test_position_is_where_the_value_or_its_key_was_written(
    path: tuple[str | int, ...], place: tuple[int, int]
) -> None:
    assert read_yaml(POSITIONS).position(path) == place


def test_a_document_carries_its_file_and_hides_its_nodes(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("a: 1\n", encoding="utf-8")
    document = read_yaml_file(file)
    assert document.file == str(file)
    assert document == Document({"a": 1}, str(file), document._root)  # pyright: ignore[reportPrivateUsage]
    assert repr(document) == f"Document(data={{'a': 1}}, file={str(file)!r})"
    assert read_yaml("a: 1").file is None
