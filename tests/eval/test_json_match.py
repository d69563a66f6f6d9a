"""JSON values: found in a completion, compared, and checked for their shape."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.errors import MISSING, ConfigError
from evsys_sdk.eval.answers.answer import find_json, strict_loads
from evsys_sdk.eval.answers.compare import ValueComparison, count_pairs, longest_common
from evsys_sdk.eval.verifiers.format_only import JsonShape, faults

from .scoring import reward

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ("[1, 2]", [1, 2]),
        ('"text"', "text"),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('first: ```json\n{"a": 1}\n```\nthen ```json\n{"a": 2}\n```', {"a": 2}),
        ('Sure! {"a": {"b": 1}} as you like', {"a": {"b": 1}}),
        ("a {broken} then [1]", [1]),
        ('{"a": NaN}', MISSING),
        ("nothing here", MISSING),
        ("", MISSING),
        ("[" * 100_000, MISSING),
        ("{" * 100_000, MISSING),
        ('{"a":' * 50_000, MISSING),
    ],
)
def test_json_is_found_wherever_it_stands(text: str, value: Any) -> None:
    found = find_json(text)
    assert found == value
    assert type(found) is type(value)


def test_bottomless_nesting_is_not_json() -> None:
    with pytest.raises(ValueError, match=r"nested|Expecting"):
        strict_loads("[" * 1_000_000 + "]" * 1_000_000)


@pytest.mark.parametrize(
    ("found", "wanted", "options", "same"),
    [
        (1, 1.0, {}, True),
        (True, 1, {}, False),
        (1, True, {}, False),
        ("1", 1, {}, False),
        (None, None, {}, True),
        (None, 0, {}, False),
        ({"a": 1}, {"a": 1}, {}, True),
        ({"a": 1, "b": 2}, {"a": 1}, {}, False),
        ({"a": 1, "b": 2}, {"a": 1}, {"extra_keys": True}, True),
        ({"x": {"a": 1, "b": 2}}, {"x": {"a": 1}}, {"extra_keys": True}, True),
        ({"b": 2}, {"a": 1}, {"extra_keys": True}, False),
        ([1, 2], [2, 1], {}, False),
        ([1, 2], [2, 1], {"ignore_order": True}, True),
        ([1, 1, 2], [1, 2, 2], {"ignore_order": True}, False),
        ([1, 2, 3], [1, 2], {"ignore_order": True}, False),
        ([1, 2, 3], [1, 2], {"extra_keys": True}, False),
        (100.4, 100, {"absolute_tolerance": 0.5}, True),
        (101, 100, {"relative_tolerance": 0.01}, True),
        (102, 100, {"relative_tolerance": 0.01}, False),
        (float("inf"), 100, {"relative_tolerance": 1.0}, False),
        (float("inf"), float("inf"), {}, True),
        ("PARIS", "Paris", {"ignore_case": True}, True),
        ({"A": 1}, {"a": 1}, {"ignore_case": True}, False),
        ([], {}, {}, False),
    ],
)
def test_values_are_compared_as_asked(found: Any, wanted: Any, options: dict[str, Any], same: bool) -> None:
    assert ValueComparison(**options).same(found, wanted) is same


@given(JSON)
def test_every_value_is_the_same_as_itself(value: Any) -> None:
    copy = json.loads(json.dumps(value))
    for options in ({}, {"extra_keys": True}, {"ignore_order": True}, {"relative_tolerance": 0.1}):
        assert ValueComparison(**options).same(copy, value)
    assert find_json(json.dumps(value)) == value or isinstance(value, str)


@given(st.lists(st.integers(0, 6), max_size=5), st.lists(st.integers(0, 6), max_size=5), st.integers(0, 2))
def test_most_pairs_is_the_best_of_all_assignments(found: list[int], wanted: list[int], tolerance: int) -> None:
    def fits(one: int, other: int) -> bool:
        return abs(one - other) <= tolerance

    best = 0
    for size in range(min(len(found), len(wanted)), 0, -1):
        choices = itertools.product(itertools.combinations(wanted, size), itertools.permutations(found, size))
        if any(all(fits(one, other) for one, other in zip(ones, others, strict=True)) for others, ones in choices):
            best = size
            break
    assert count_pairs(found, wanted, fits) == best


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6))
def test_longest_common_is_the_best_of_all_subsequences(found: list[int], wanted: list[int]) -> None:
    def is_inside(part: tuple[int, ...]) -> bool:
        rest = iter(found)
        return all(any(one == other for other in rest) for one in part)

    sizes = range(len(wanted), -1, -1)
    best = next(size for size in sizes if any(is_inside(part) for part in itertools.combinations(wanted, size)))
    assert longest_common(found, wanted, int.__eq__) == best


def test_long_lists_of_equal_items_are_compared() -> None:
    assert ValueComparison(ignore_order=True).same([1] * 1100, [1] * 1100)


@pytest.mark.parametrize(
    ("completion", "expected", "params", "earned"),
    [
        ('{"a": 1}', {"a": 1}, {}, 1.0),
        ('{"a": 1}', '{"a": 1}', {}, 1.0),
        ('Here: ```json\n{"a": 1, "b": 2}\n```', {"a": 1}, {}, 0.0),
        ('Here: ```json\n{"a": 1, "b": 2}\n```', {"a": 1}, {"mode": "subset"}, 1.0),
        ('<answer>{"a": [2, 1]}</answer>', {"a": [1, 2]}, {"ignore_order": True}, 1.0),
        ('<think>{"a": 1}</think>no', {"a": 1}, {}, 0.0),
        ("hello", "hello", {}, 0.0),
        ('"hello"', "hello", {}, 1.0),
        ("[]", [], {}, 1.0),
        ("null", 0, {}, 0.0),
        ('{"a": 1.04}', {"a": 1}, {"relative_tolerance": 0.05}, 1.0),
        ('{"a": 1e400}', {"a": 1}, {"relative_tolerance": 1.0}, 0.0),
        ("not json", {"a": 1}, {}, 0.0),
    ],
)
async def test_json_match(completion: str, expected: Any, params: dict[str, Any], earned: float) -> None:
    assert await reward("json_match", completion, expected, **params) == earned


CITY = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}, "size": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "schema", "wrong"),
    [
        ({"name": "Paris", "size": 2}, CITY, []),
        ({"name": "Paris", "size": 2.0}, CITY, []),
        ({"name": "", "size": -1}, CITY, [".name breaks minLength 1", ".size breaks minimum 0"]),
        ({"size": True}, CITY, [".name is missing", ".size should be of type integer"]),
        ({"name": "x", "other": 1}, CITY, [".other should not be there"]),
        ([CITY], CITY, ["the value should be of type object"]),
        ([1, "x", None], {"items": {"type": ["number", "null"]}}, ["[1] should be of type number or null"]),
        ("b", {"enum": ["a", 1]}, ["the value should be 'a' or 1"]),
        (True, {"const": 1}, ["the value should be 1"]),
        ({"a": "x"}, {"additionalProperties": {"type": "number"}}, [".a should be of type number"]),
        ([1, 2, 3], {"maxItems": 2}, ["the value breaks maxItems 2"]),
        (10**400, {"type": "integer"}, []),
    ],
)
def test_the_faults_of_a_shape_are_named(value: Any, schema: dict[str, Any], wrong: list[str]) -> None:
    assert list(faults(value, JsonShape.model_validate(schema))) == wrong


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"typ": "object"}, "json_schema.typ: unknown key 'typ'. Did you mean 'type'"),
        ({"$ref": "#/x"}, r"json_schema\.\$ref: unknown key"),
        ({"properties": {"a": {"oneOf": []}}}, "properties.a.oneOf: unknown key 'oneOf'"),
        ({"type": "objet"}, "json_schema.type: should be .* Did you mean 'object'"),
        ({"minimum": "1"}, "json_schema.minimum: should be a .*number"),
        ({"required": "name"}, "json_schema.required: should be a list"),
        ({"properties": []}, "json_schema.properties: should be a mapping"),
        ({"items": 3}, "json_schema.items: should be a mapping"),
    ],
)
async def test_a_shape_that_is_not_understood_is_refused_and_never_passes_everything(
    schema: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        await reward("format_only", "{}", None, json_schema=schema)
