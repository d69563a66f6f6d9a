"""What strict YAML refuses: each refusal names the line, says what is wrong and what to do."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from evsys_sdk.config.yaml_text import MAX_BYTES, read_yaml, read_yaml_file
from evsys_sdk.errors import ConfigError, Problem


def refusals(text: str | bytes) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        read_yaml(text, file="config.yaml")
    assert max(len(str(problem)) for problem in caught.value.problems) < 1_000
    assert all(problem.file == "config.yaml" for problem in caught.value.problems)
    return caught.value.problems


SYNTAX = [
    # text, line, column, part of the message, part of the hint
    ("a:\n\tb: 1\n", 2, 1, "indented with a tab", "spaces"),
    ("a:\n  b: 1\n\tc: 2\n", 3, 1, "indented with a tab", "spaces"),
    ("a:\n  b: 1\n  \tc: 2\n", 3, 3, "indented with a tab", "spaces"),
    ("a: |\n\tx\n", 2, 1, "indented with a tab", "spaces"),
    ('a: "x\nb: 1\n', 1, 4, "the quote opened here is not closed", "Add"),
    ("a: 1\nb: 'x\n", 2, 4, "the quote opened here is not closed", "Add"),
    ('a: "x\n---\ny"\n', 1, 4, "the quote opened here is not closed", "Add"),
    ('a: "x\nb: "y"\n', 2, 5, "this does not belong to the mapping above it", "Give"),
    ("a: 'it's'\n", 1, 8, "this does not belong to the mapping above it", "Give"),
    ('a: "x" y\n', 1, 8, "this does not belong to the mapping above it", "quotes"),
    ("a: [1, 2\nb: 3\n", 1, 4, "the bracket opened here is not closed, or a '", "Add"),
    ("a: {x: 1\n", 1, 4, "the bracket opened here is not closed, or a '", "Add"),
    ("a: [1 2}\n", 1, 4, "the bracket opened here is not closed, or a '", "','"),
    ("{a: 1 b: 2}\n", 1, 1, "the bracket opened here is not closed, or a '", "','"),
    ("a: ]\n", 1, 4, "this is not valid YAML: while parsing a block", "Check"),
    ("a: [1,,2]\n", 1, 7, "this is not valid YAML: while parsing a flow", "Check"),
    ("a: b: c\n", 1, 5, "cannot contain ': '", "quotes"),
    ("a: see http://x: y\n", 1, 16, "cannot contain ': '", "quotes"),
    ('a: "x": y\n', 1, 7, "cannot contain ': '", "quotes"),
    ("a: x\n  b: 1\n", 2, 4, "a key cannot start here", "indentation"),
    ("a:\n  b: 1\n    c: 2\n", 3, 6, "a key cannot start here", "indentation"),
    ("k" * 2_000 + ": 1\n", 1, 2001, "a key cannot start here: an unquoted value ca", "Put"),
    ("a: 1\nb:2\nc: 3\n", 2, 1, "this line has no ': '", "Write"),
    ("a: 1\nhttp://x\n", 2, 1, "has no ': '", "key: value"),
    ("a: 1\nb\n", 2, 1, "has no ': '", "key: value"),
    ("a:\n    b: 1\n  c: 2\n", 3, 3, "this does not belong to the mapping above it", "same indentation"),
    ("  a: 1\nb: 2\n", 2, 1, "does not belong to the lines above", "same indentation"),
    ("a:\n  - x\n  y: 1\n", 3, 3, "this line is between the items of a list and", "'- '"),
    ("a: 1\n- b\n", 2, 1, "this does not belong to the mapping above it", "Give"),
    ("a:\n  - b\n - c\n", 3, 2, "this does not belong to the mapping above it", "Give"),
    ("a: - b\n", 1, 4, "this is not valid YAML: block sequence entrie", "Check"),
    ("a: ? b\n", 1, 4, "this is not valid YAML: mapping keys are not", "Check"),
    (": 1\n", 1, 1, "this does not belong to the mapping above it", "Give"),
    ("a: @x y\n", 1, 4, "an unquoted value cannot begin with this char", "Put"),
    ("a: `x`\n", 1, 4, "an unquoted value cannot begin with this char", "Put"),
    ("a: 50\nb: %d items\n", 2, 4, "an unquoted value cannot begin with this char", "Put"),
    ("a: *.jsonl\n", 1, 4, "an unquoted '*', '&' or '!' has a meaning in", "Put"),
    ("a: & b\n", 1, 4, "an unquoted '*', '&' or '!' has a meaning in", "quotes"),
    ("a: &x &y b\n", 1, 7, "this does not belong to the mapping above it", "quotes"),
    ("a: !h!x y\n", 1, 4, "an unquoted '*', '&' or '!' has a meaning in", "quotes"),
    ("a: !<x\n", 1, 4, "an unquoted '*', '&' or '!' has a meaning in", "quotes"),
    ("a: > 5\n", 1, 6, "this is not valid YAML: while scanning a bloc", "Check"),
    ("a: |0\n x\n", 1, 5, "this is not valid YAML: while scanning a bloc", "Check"),
    ("%YAML 2.0\n---\na: 1\n", 1, 1, "this is not valid YAML: found incompatible YA", "Check"),
    ("%YAML 1.2\na: 1\n", 2, 1, "this line does not belong to the lines abo", "Give"),
    ("a: 😀 é\nb: @x\n", 2, 4, "an unquoted value cannot begin with this char", "Put"),
    ("a: 1\r\nb: 'x\r\n", 2, 4, "the quote opened here is not closed", "Add"),
]


@pytest.mark.parametrize(("text", "line", "column", "message", "hint"), SYNTAX)
def test_a_syntax_error_is_a_sentence_with_a_place_and_a_remedy(
    text: str, line: int, column: int, message: str, hint: str
) -> None:
    (problem,) = refusals(text)
    assert (problem.line, problem.column) == (line, column)
    assert message in problem.message
    assert hint in problem.hint


@pytest.mark.parametrize("escape", ["\\d", "\\ud83d\\ude00", "\\UFFFFFFFF", "\\xZZ", "\\u12"])
def test_an_impossible_escape_is_refused_on_its_line(escape: str) -> None:
    (problem,) = refusals(f'a: 1\nb: "x{escape}"\n')
    assert problem.line == 2


def test_an_unknown_escape_is_named_with_the_remedy() -> None:
    (problem,) = refusals('path: "C:\\data"\n')
    assert "not an escape" in problem.message
    assert "single quotes" in problem.hint


MEANING = [
    # text, line, column, part of the message, part of the hint
    ("a: 1\nb: 2\na: 3\n", 3, 1, "key 'a' is given twice: on line 1 and on line 3", "rename"),
    ('a: 1\n"a": 3\n', 2, 1, "given twice", "rename"),
    ("x:\n  y: {k: 1, k: 1}\n", 2, 13, "key 'k' is given twice: on line 2 and on line 2", "rename"),
    ("a: &k x\nb: {x: 1, *k : 2}\n", 1, 4, "key 'x' is given twice", "rename"),
    ("1: x\n", 1, 1, "a key must be text, and this one is a number", "Put"),
    ("0x10: x\n", 1, 1, "this one is a number", "Put"),
    ("1.5: x\n", 1, 1, "this one is a number", "Put"),
    ("a: {true: x}\n", 1, 5, "this one is a boolean", "Put"),
    ("~: x\n", 1, 1, "this one is null", "Put"),
    ("?\n: x\n", 1, 2, "this one is null", "quotes"),
    ("? [a]\n: x\n", 1, 3, "this one is a list", "quotes"),
    ("a: {{ x }}\n", 1, 5, "a key must be text, and this one is a list or", "Put"),
    ("a: &l [1]\nb: {*l : 1}\n", 1, 4, "a key must be text, and this one is a list or", "Put"),
    ("a: !foo x\n", 1, 4, "tag '!foo' is not supported", "quotes"),
    ("a: !foo {x: 1}\n", 1, 4, "tag '!foo' is not supported", "quotes"),
    (
        "a: !!python/object/apply:os.system [ls]\n",
        1,
        4,
        "tag '!!python/object/apply:os.system' is not",
        "Remove the tag",
    ),
    ("a: !!python/name:os.system ''\n", 1, 4, "tag '!!python/name:os.system' is not supported", "Remove the tag"),
    ("a: !!binary aGk=\n", 1, 4, "tag '!!binary' is not supported", "Remove the tag"),
    ("a: !!timestamp 2024-01-01\n", 1, 4, "tag '!!timestamp' is not supported", "Remove the tag"),
    ("a: !!set {x, y}\n", 1, 4, "tag '!!set' is not supported", "Remove the tag"),
    ("!<tag:example.com,2024:x> a: 1\n", 1, 1, "tag 'tag:example.com,2024:x' is not supported", "Remove the tag"),
    ("a: !!str [x]\n", 1, 4, "tag '!!str' does not fit a list", "Remove the tag"),
    ("a: !!seq {x: 1}\n", 1, 4, "tag '!!seq' does not fit a mapping", "Remove the tag"),
    ("a: !!map x\n", 1, 4, "tag '!!map' does not fit a single value", "Remove the tag"),
    ("a: !!int x\n", 1, 4, "tag '!!int' does not fit", "Remove the tag"),
    ("a: !!int 1.5\n", 1, 4, "tag '!!int' does not fit", "Remove the tag"),
    ("a: !!bool yes\n", 1, 4, "tag '!!bool' does not fit", "Remove the tag"),
    ("a: 012\n", 1, 4, "leading zero", "quotes"),
    ("a: -00\n", 1, 4, "leading zero", "quotes"),
    ("a: 1e999\n", 1, 4, "too large for a float", "quotes"),
    ("a: !!float " + "9" * 400 + "\n", 1, 4, "too large for a float", "quotes"),
    ("a: 1e-999\n", 1, 4, "too small for a float", "quotes"),
    ("a: " + "9" * 5_000 + "\n", 1, 4, "has 5000 digits", "quotes"),
    ("a: 0x" + "f" * 5_000 + "\n", 1, 4, "digits", "quotes"),
    ("a: &x 1\nb: {<<: *x}\n", 1, 4, "'<<' can only merge mappings", "anchor of a mapping"),
    ("a:\n  <<: [{x: 1}, [y]]\n", 2, 7, "'<<' can only merge mappings", "anchor of a mapping"),
    ("<<:\n", 1, 4, "'<<' can only merge mappings", "anchor of a mapping"),
    ("a: &a {}\nb:\n  <<: *a\n  <<: *a\n", 4, 3, "'<<' is given twice: on line 3 and on line 4", "Remove"),
    ("base: &base 1\nb: *bsae\n", 2, 4, "this alias has no anchor above it", "Define"),
    ("a: *x\nb: &x 1\n", 1, 4, "this alias has no anchor above it", "Define"),
    ("a: &x 1\nb: &x 2\n", 2, 4, "this anchor is defined twice", "Rename"),
    ("a: &x [1, *x]\n", 1, 4, "is inside the value it refers to", "itself"),
    ("a: &x\n  <<: *x\n", 1, 4, "is inside the value it refers to", "itself"),
    ("a: 1\n---\nb: 2\n", 2, 1, "a second document starts here", "'---'"),
    ("a: 1\n...\n---\nb: 2\n", 3, 1, "a second document starts here", "'---'"),
    ("a:\n- b\n - c\n", 2, 3, "continues over the '- '", "Align"),
    ("a: b\n  - c\n", 1, 4, "continues over the '- '", "Align"),
]


@pytest.mark.parametrize(("text", "line", "column", "message", "hint"), MEANING)
def test_what_could_be_misread_is_refused_with_a_place_and_a_remedy(
    text: str, line: int, column: int, message: str, hint: str
) -> None:
    (problem,) = refusals(text)
    assert message in problem.message
    assert hint in problem.hint
    assert (problem.line, problem.column) == (line, column)


def test_all_problems_of_meaning_come_at_once() -> None:
    problems = refusals("a: 1\na: 2\n3: x\nb: !foo y\nc: 012\n")
    assert [problem.line for problem in problems] == [2, 3, 4, 5]


def test_problems_inside_an_anchor_are_reported_once() -> None:
    assert len(refusals("a: &a {x: 1, x: 2}\nb: [*a, *a]\nc: {<<: *a}\n")) == 1


def test_reading_gives_up_after_a_hundred_problems() -> None:
    assert len(refusals("a: 1\n" * 5_000)) == 100


@pytest.mark.parametrize("text", ["", " ", "\n\n", "# only a comment\n", "---\n", "---\n...\n", b"", b"\xef\xbb\xbf"])
def test_an_empty_text_is_refused(text: str | bytes) -> None:
    (problem,) = refusals(text)
    assert problem.message == "the YAML text is empty"


@pytest.mark.parametrize(
    ("source", "place", "message", "hint"),
    [
        (b"a: 1\nb: \xe9t\xe9\n", (2, 4), "not UTF-8: byte 0xe9 at offset 8", "Save the file as UTF-8"),
        ("é: 1\n".encode() + b"\xff", (2, 1), "byte 0xff at offset 6", "UTF-8"),
        (b"a: \xed\xa0\x80", (1, 4), "byte 0xed at offset 3", "UTF-8"),
        ("a: 1".encode("utf-16"), (1, 1), "not UTF-8", "UTF-8"),
        ("a: 1".encode("utf-16-le"), (1, 2), "U+0000", "UTF-8"),
        ("a: 1\nb: x\x00", (2, 5), "U+0000", "UTF-8"),
        ("a: 1\r\nb: \x1b[0m", (2, 4), "character U+001B", "escape inside double quotes"),
        ("a: \ud800", (1, 4), "U+D800", "Remove"),
        ("a: x\ufeff", (1, 5), "U+FEFF", "Remove"),
        ("a: x\u2028b: y", (1, 5), "U+2028", "escape"),
        ("a: x\x85", (1, 5), "U+0085", "escape"),
    ],
)
def test_text_that_yaml_cannot_hold_is_refused_where_it_stands(
    source: str | bytes, place: tuple[int | None, int | None], message: str, hint: str
) -> None:
    (problem,) = refusals(source)
    assert (problem.line, problem.column) == place
    assert message in problem.message
    assert hint in problem.hint


def refused_file(path: Path) -> Problem:
    with pytest.raises(ConfigError) as caught:
        read_yaml_file(path)
    (problem,) = caught.value.problems
    assert problem.file == str(path)
    return problem


def test_a_missing_file_suggests_the_one_that_was_probably_meant(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    problem = refused_file(tmp_path / "confg.yml")
    assert problem.message == "there is no such file"
    assert str(tmp_path / "config.yaml") in problem.hint
    assert "does not exist either" in refused_file(tmp_path / "no" / "config.yaml").hint


def test_a_directory_a_loop_and_a_file_used_as_a_folder_are_refused(tmp_path: Path) -> None:
    assert "directory" in refused_file(tmp_path).message
    (tmp_path / "loop").symlink_to("loop")
    assert "cannot be read" in refused_file(tmp_path / "loop").message
    (tmp_path / "file").touch()
    assert "cannot be read" in refused_file(tmp_path / "file" / "config.yaml").message
    assert "cannot be read" in refused_file(tmp_path / ("x" * 500)).message


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_an_impossible_path_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="not a usable path"):
        read_yaml_file(Path(name))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_sockets_and_devices_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for path in (tmp_path / "pipe", tmp_path / "socket", Path(os.devnull)):
            assert "not a regular file" in refused_file(path).message


def test_an_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("a: 1", encoding="utf-8")

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    problem = refused_file(file)
    assert "permission denied" in problem.message
    assert "chmod u+r config.yaml" in problem.hint


def test_a_file_over_the_limit_is_refused_without_being_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.yaml"
    with file.open("wb") as opened:
        opened.truncate(100_000_000)
    monkeypatch.delattr(Path, "open")
    problem = refused_file(file)
    assert problem.message == "this file has 100.0 MB; at most 5 MB are read"
    assert "data file" in problem.hint


def test_the_limit_itself_is_allowed_and_can_be_changed(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(b"a: ".ljust(MAX_BYTES - 1, b"x") + b"\n")
    assert len(read_yaml_file(file).data["a"]) == MAX_BYTES - 4
    with pytest.raises(ConfigError, match=r"at most 0\.001 MB"):
        read_yaml_file(file, max_bytes=1_000)


def bomb(levels: int, width: int) -> str:
    lines = ["l0: &l0 [x]"]
    lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join(lines)


def merge_bomb(levels: int) -> str:
    lines = ["l0: &l0 {x: 1}"]
    lines += [f"l{i}: &l{i} {{a{i}: *l{i - 1}, <<: *l{i - 1}}}" for i in range(1, levels)]
    return "\n".join(lines)


def alias_ladder(levels: int) -> str:
    return "\n".join(["l0: &l0 [x]", *(f"l{i}: &l{i} [*l{i - 1}]" for i in range(1, levels))])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (bomb(10, 10), "more than 1,000,000 values"),
        (bomb(95, 9), "more than 1,000,000 values"),
        (bomb(3, 5_000), "more than 1,000,000 values"),
        (merge_bomb(60), "more than 1,000,000 values"),
        (alias_ladder(5_000), "more than 100 levels"),
        ("[" * 100_000, "more than 100 levels"),
        ("{" * 100_000, "more than 100 levels"),
        ("[{a: " * 50_000, "more than 100 levels"),
        ("- " * 100_000 + "x", "more than 100 levels"),
        ("? " * 100_000 + "x", "more than 100 levels"),
        ("a: " + "[" * 100 + "]" * 100, "more than 100 levels"),
        ("".join(f"{'  ' * i}k:\n" for i in range(300)), "more than 100 levels"),
        ("".join(f"%TAG !t{i}! x\n" for i in range(200_000)) + "---\na: 1\n", "'%TAG' lines are not supported"),
        ('"' * 100_001, "belong"),
        ("a: " + "*" * 100_000, "has a meaning in YAML"),
        ("a: " + "!" * 100_000, "tag"),
        ("a: 0." + "9" * 100_000 + "e400", "too large"),
        ("a: @" + "x" * 1_000_000, "cannot begin with this"),
        ("a: 'x' " + "y" * 1_000_000, "does not belong to the mapping"),
        ("? " + "k" * 100_000 + "\n: 1\n? " + "k" * 100_000 + "\n: 2", "is given twice"),
        ("a: *" + "x" * 100_000, "has no anchor"),
        ("a: &" + "x" * 100_000 + " 1\nb: &" + "x" * 100_000 + " 1", "defined twice"),
        ("a: [" + "".join(f"&a{i} 1, " for i in range(20_000)) + "*b, " * 99 + "*b]", "has no anchor"),
        ("a: !" + "x" * 100_000 + " 1", "is not supported"),
        ("a: {<<: " + "x" * 100_000 + "}", "can only merge mappings"),
    ],
    ids=lambda value: value[:20],
)
def test_a_hostile_text_is_refused_before_it_costs_anything(text: str, message: str) -> None:
    assert message in refusals(text)[-1].message


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "x" * 1_000_000,
        'a: "' + "\\x41" * 200_000 + '"',
        "a: 1" + "\n" * 1_000_000,
        "#\n" * 500_000 + "a: 1",
        "a: |\n" + " \n" * 300_000 + "  x\n",
        "a: x" + "\n" * 300_000 + "  y",
        "a: [" + "1," * 20_000 + "]",
        "a: " + "[" * 99 + "]" * 99,
        bomb(6, 9),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_a_large_or_long_text_is_read(text: str) -> None:
    assert next(iter(read_yaml(text).data)) in ("a", "l0")
