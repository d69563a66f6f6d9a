"""Templates: what is a placeholder, what stays, and how values appear."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.data.fields import reader, require, with_field, without_field
from evsys_sdk.data.template import compile_template, fields_of
from evsys_sdk.errors import MISSING, DataError

ROW = {"query": "hi", "n": 3, "user": {"name": "Ann", "tags": ["a", "b"]}, "ключ": "да", "a_1": "x"}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("Query: {query}", "Query: hi"),
        ("{query}{n}{query}", "hi3hi"),
        ("{user.name}", "Ann"),
        ("{user.tags.0}/{user.tags.-1}", "a/b"),
        ("{ключ} {a_1}", "да x"),
        ("no placeholder", "no placeholder"),
        ("", ""),
        ("{}", "{}"),
        ("{ query }", "{ query }"),
        ("{0} {1x} {a-b} {query!r} {n:03d}", "{0} {1x} {a-b} {query!r} {n:03d}"),
        ('{"q": "{query}", "o": {"n": {n}}}', '{"q": "hi", "o": {"n": 3}}'),
        ("{{query}}", "{query}"),
        ("{{{query}}}", "{{query}}"),
        ("{{ }} {{", "{{ }} {{"),
        (r"\frac{1}{2} 100% %s %(query)s", r"\frac{1}{2} 100% %s %(query)s"),
        ("{user.tags}", '["a","b"]'),
        ("{user}", '{"name":"Ann","tags":["a","b"]}'),
        ("line\n{query}\r\n", "line\nhi\r\n"),
    ],
)
def test_only_a_name_in_braces_is_a_placeholder(template: str, text: str) -> None:
    assert compile_template(template)(ROW) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1.5, "1.5"), (0, "0"), (True, "True"), ("", ""), ([], "[]"), ("{n}", "{n}")]
)
def test_values_appear_as_they_are(value: Any, text: str) -> None:
    assert compile_template("{x}")({"x": value}) == text
    assert compile_template("{x}{x}")({"x": value}) == text * 2


def test_null_is_never_written_into_text() -> None:
    for template in ("{x}", "{x} and {x}"):
        with pytest.raises(DataError, match="the field 'x' is null"):
            compile_template(template)({"x": None})


def test_a_missing_field_names_it_the_likely_one_and_what_there_is() -> None:
    with pytest.raises(
        DataError, match=r"no field 'qery'; did you mean 'query'\? It has: query, metadata, metadata.topic"
    ):
        compile_template("{qery}")({"query": "x", "metadata": {"topic": "y"}})


def test_the_fields_a_template_needs_are_known_beforehand() -> None:
    assert fields_of("{b.c} {{x}} {a} {} {b.c}") == ["b.c", "a", "b.c"]


@given(st.text(st.characters(exclude_characters="{")))
def test_text_without_braces_is_never_changed(text: str) -> None:
    assert compile_template(text)({}) == text


@given(st.text(), st.text(st.characters(exclude_characters="{}")))
def test_a_value_arrives_unchanged_between_any_text(value: str, around: str) -> None:
    assert compile_template(f"{around}{{x}}{around}")({"x": value}) == f"{around}{value}{around}"


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("query", "hi"),
        ("user.name", "Ann"),
        ("user.tags.1", "b"),
        ("user.tags.-2", "a"),
        ("user.tags.2", MISSING),
        ("user.tags.x", MISSING),
        ("query.x", MISSING),
        ("nothing", MISSING),
        ("deep", 1),
        ("inner.most", 2),
        ("dotted.key", "itself"),
        ("metadata.deep", 1),
    ],
)
def test_a_field_is_looked_for_in_the_row_and_then_in_its_metadata(path: str, found: Any) -> None:
    row = {**ROW, "dotted.key": "itself", "dotted": {"key": "below"}, "metadata": {"deep": 1, "inner": {"most": 2}}}
    assert reader(path)(row) is found or reader(path)(row) == found


def test_the_row_wins_over_its_metadata_even_with_null() -> None:
    assert reader("x")({"x": None, "metadata": {"x": 1}}) is None
    assert require("x")({"x": None}) is None


def test_metadata_that_is_no_object_is_looked_past() -> None:
    assert reader("x")({"metadata": "text"}) is MISSING


def test_setting_and_removing_a_field_leaves_the_row_that_came_in_alone() -> None:
    row: dict[str, Any] = {"a": {"b": 1, "c": 2}, "x.y": 3}
    assert with_field(row, "a.b", 9) == {"a": {"b": 9, "c": 2}, "x.y": 3}
    assert with_field(row, "n.e.w", 9)["n"] == {"e": {"w": 9}}
    assert with_field(row, "x.y", 9)["x.y"] == 9
    assert without_field(row, "a.b") == {"a": {"c": 2}, "x.y": 3}
    assert without_field(row, "x.y") == {"a": {"b": 1, "c": 2}}
    assert without_field(row, "a.z") is row
    assert row == {"a": {"b": 1, "c": 2}, "x.y": 3}
    with pytest.raises(DataError, match="'a' is not an object"):
        with_field({"a": 1}, "a.b", 2)
