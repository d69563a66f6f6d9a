"""Reading and writing JSONL: what is accepted, what is refused, and that the line is named."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evsys_sdk.data import iter_jsonl
from evsys_sdk.data.jsonl import read_json, read_jsonl, write_jsonl
from evsys_sdk.errors import DataError


def written(tmp_path: Path, content: bytes, name: str = "rows.jsonl") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        list(read_jsonl(path))
    return str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b'{"a":1}\n{"a":2}\n',
        b'{"a":1}\n{"a":2}',
        b'{"a":1}\r\n{"a":2}\r\n',
        b'\xef\xbb\xbf{"a":1}\n{"a":2}\n',
        b'\n  \n{"a":1}\n\t\n\n{"a":2}\n\n',
        b'\xef\xbb\xbf\n{"a":1}\n{"a":2}\n',
    ],
)
def test_the_harmless_variants_of_jsonl_are_read(tmp_path: Path, content: bytes) -> None:
    assert list(read_jsonl(written(tmp_path, content))) == [{"a": 1}, {"a": 2}]


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    assert list(read_jsonl(written(tmp_path, b""))) == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"a": NaN}', "NaN is not JSON. Write null or a finite number"),
        (b'{"a": [1, Infinity]}', "Infinity is not JSON"),
        (b'{"a": -Infinity}', "-Infinity is not JSON"),
        (b'{"a": 1', "stops in the middle of a value"),
        (b'{"a": "x', "a line break is written \\n"),
        (b'{"a": 1} {"b": 2}', "exactly one JSON object on each line"),
        (b"{'a': 1}", "at character 2"),
        (b'{"a": "\\ud800"}', "half of a surrogate pair"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "x\x00y"}', "Escape control characters"),
        (b'{"a": ' + b"9" * 5000 + b"}", "more than 4300 digits"),
        (b'{"a": ' + b"[" * 5000, "nested deeper than 200 levels"),
        (b"[1, 2]", "this is a list ([1, 2]). For a file that is one JSON list, use source_kind: json"),
        (b"[", "For one big JSON list, use source_kind: json"),
        (b"null", "this is null"),
        (b"true", "this is true or false"),
        (b'"text"', "this is text"),
        (b"3", "this is a number"),
    ],
)
def test_a_bad_line_is_refused_with_file_line_and_remedy(tmp_path: Path, line: bytes, says: str) -> None:
    path = written(tmp_path, b'{"a": 1}\n\n' + line + b"\n")
    message = refusal(path)
    assert message.startswith(f"{path}:3: ")
    assert says in message


def test_utf_16_is_recognised(tmp_path: Path) -> None:
    assert "the file is UTF-16. Save it as UTF-8" in refusal(written(tmp_path, '{"a": 1}'.encode("utf-16")))
    assert "binary or UTF-16" in refusal(written(tmp_path, '{"a": 1}'.encode("utf-16-le")))


def test_rows_before_a_bad_line_are_delivered_first(tmp_path: Path) -> None:
    rows = read_jsonl(written(tmp_path, b'{"a": 1}\n{"a":'))
    assert next(rows) == {"a": 1}
    with pytest.raises(DataError, match=r":2: "):
        next(rows)


def test_a_huge_line_is_read(tmp_path: Path) -> None:
    text = "x" * 20_000_000
    assert next(read_jsonl(written(tmp_path, json.dumps({"a": text}).encode())))["a"] == text


def test_a_wide_excerpt_is_not_shown_for_a_huge_bad_line(tmp_path: Path) -> None:
    assert len(refusal(written(tmp_path, b'{"a": "' + b"x" * 1_000_000))) < 600


def test_a_missing_file_names_the_nearest_one(tmp_path: Path) -> None:
    written(tmp_path, b"", "train.jsonl")
    assert "no such file. Did you mean 'train.jsonl'?" in refusal(tmp_path / "trian.jsonl")
    assert "does not exist either" in refusal(tmp_path / "nowhere" / "train.jsonl")


@pytest.mark.parametrize("name", ["", "a\x00b", "x" * 5000, "\ud800.jsonl"])
def test_a_path_that_cannot_be_is_a_data_error(tmp_path: Path, name: str) -> None:
    refusal(tmp_path / name)


def test_compressed_files_are_read_and_damage_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    rows = [{"number": number} for number in range(2000)]
    write_jsonl(path, rows)
    assert list(read_jsonl(path)) == rows
    assert gzip.decompress(path.read_bytes()).count(b"\n") == 2000
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert "damaged or cut off" in refusal(path)
    path.write_bytes(b"not gzip")
    assert "damaged or cut off" in refusal(path)


def test_equal_rows_are_equal_bytes(tmp_path: Path) -> None:
    for name in ("one.jsonl.gz", "two.jsonl.gz"):
        write_jsonl(tmp_path / name, [{"a": 1}])
    assert (tmp_path / "one.jsonl.gz").read_bytes() == (tmp_path / "two.jsonl.gz").read_bytes()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, b"x", "\ud800", object()])
def test_what_json_cannot_hold_is_not_written_and_the_old_file_stays(tmp_path: Path, value: Any) -> None:
    path = written(tmp_path, b'{"old": 1}\n')
    with pytest.raises(DataError, match="row 2: cannot be written as JSON"):
        write_jsonl(path, [{"a": 1}, {"a": value}])
    assert path.read_bytes() == b'{"old": 1}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_a_source_of_rows_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    def failing() -> Iterator[dict[str, Any]]:
        yield {"a": 1}
        raise KeyboardInterrupt

    path = written(tmp_path, b'{"old": 1}\n')
    with pytest.raises(KeyboardInterrupt):
        write_jsonl(path, failing())
    assert path.read_bytes() == b'{"old": 1}\n'


def test_a_row_that_is_no_dict_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 1: a row must be a dict, not list"):
        write_jsonl(tmp_path / "rows.jsonl", [[1]])  # type: ignore[list-item]


def test_a_json_file_that_is_really_jsonl_reports_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="use source_kind: jsonl"):
        read_json(written(tmp_path, b'{"a": 1}\n{"a": 2}\n'))


def test_an_error_in_a_json_file_shows_the_place(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="NaN is not JSON"):
        read_json(written(tmp_path, b'[\n  {"a": 1},\n  {"a": NaN}\n]'))


@given(st.binary(max_size=200))
@pytest.mark.parametrize("name", ["fuzz.jsonl", "fuzz.jsonl.gz"])
def test_random_bytes_are_rows_or_a_data_error(tmp_path: Path, name: str, content: bytes) -> None:
    assert_rows_or_data_error(written(tmp_path, content, name))


GOOD = b"".join(
    json.dumps(row).encode() + b"\n"
    for row in (
        {"messages": [{"role": "user", "content": "hé"}], "metadata": {"x": [1.5e10, -3, None, True]}},
        {"task_id": "t", "instruction": "do", "verifier": {"kind": "in_process", "fn_name": "f", "params": {}}},
        {"inputs": {"q": "?"}, "expected": [{"a": "b"}], "metadata": {}},
    )
)
MUTATIONS = st.lists(
    st.tuples(st.integers(0, len(GOOD) - 1), st.sampled_from(["set", "cut", "put"]), st.binary(max_size=3))
)


@settings(max_examples=300)
@given(MUTATIONS)
def test_a_damaged_file_gives_rows_or_a_data_error(tmp_path: Path, mutations: list[tuple[int, str, bytes]]) -> None:
    content = bytearray(GOOD)
    for place, kind, new in mutations:
        end = {"set": place + len(new), "cut": place + 1 + len(new) * 5, "put": place}[kind]
        content[place:end] = b"" if kind == "cut" else new
    assert_rows_or_data_error(written(tmp_path, bytes(content)))


def assert_rows_or_data_error(path: Path) -> None:
    failure = ""
    rows: list[Any] = []
    try:
        rows = list(iter_jsonl(path))
    except DataError as error:
        failure = str(error)
    assert all(hasattr(row, "metadata") for row in rows)
    assert not failure or str(path) in failure
