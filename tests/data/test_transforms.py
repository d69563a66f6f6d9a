"""What holds for every built-in transform, and the small ones that move fields and rows about."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from evsys_sdk.builtins import BUILTINS
from evsys_sdk.config import TransformSpec
from evsys_sdk.data import apply_transforms, build_transforms
from evsys_sdk.errors import ConfigError, DataError
from evsys_sdk.protocols import Transform
from evsys_sdk.registry import REGISTRIES, get_transform, schema_for

Row = dict[str, Any]
NAMES = sorted(BUILTINS["transform"])

USER, ASSISTANT = {"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>hm</think>a"}
CHATS: list[Row] = [
    {"messages": [USER, ASSISTANT], "n": 1, "metadata": {"topic": "x"}},
    {"messages": [{"role": "system", "content": "s"}, USER, ASSISTANT, USER, ASSISTANT], "n": 2, "metadata": {}},
    {"messages": [USER, ASSISTANT], "n": 1, "metadata": {"topic": "x"}},
]
TURNS = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
PARAMS: dict[str, Row] = {
    "rename_fields": {"fields": {"n": "number"}},
    "drop_fields": {"fields": ["metadata.topic"]},
    "map_values": {"field": "metadata.topic", "values": {"t": "u"}},
    "filter": {"conditions": [{"field": "n", "value": 1}]},
    "sample": {"n": 2},
    "add_system_prompt": {"prompt": "p", "existing": "replace"},
}


def run(rows: list[Row], kind: str, **params: Any) -> list[Row]:
    return list(apply_transforms(rows, build_transforms([TransformSpec(kind=kind, params=params)])))


def refusal(rows: list[Row], kind: str, **params: Any) -> str:
    with pytest.raises((DataError, ConfigError)) as caught:
        run(rows, kind, **params)
    return str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_built_in_describes_itself_and_its_params(name: str) -> None:
    cls = get_transform(name)
    assert cls.name == name
    assert cls.__module__.startswith("evsys_sdk.data.transforms.")
    entry = next(entry for entry in REGISTRIES["transform"].entries() if entry.name == name)
    assert entry.summary.endswith(".")
    for field, schema in schema_for("transform", name).get("properties", {}).items():
        assert schema.get("description"), f"{name}.{field} has no description"
    assert isinstance(cls(**PARAMS.get(name, {})), Transform)


@pytest.mark.parametrize("name", NAMES)
def test_a_built_in_changes_no_row_it_was_given_and_repeats_itself(name: str) -> None:
    rows: list[Row] = [{**row, "conversations": TURNS} for row in CHATS] if name == "sharegpt_to_chat" else CHATS
    before = copy.deepcopy(rows)
    first = run(rows, name, **PARAMS.get(name, {}))
    assert rows == before
    assert run(rows, name, **PARAMS.get(name, {})) == first
    assert first


def test_rename_fields_moves_and_swaps() -> None:
    row = {"a": 1, "b": 2, "meta": {"topic": "t", "id": 7}}
    assert run([row], "rename_fields", fields={"a": "b", "b": "a"}) == [{"meta": row["meta"], "b": 1, "a": 2}]
    moved = run([row], "rename_fields", fields={"meta.topic": "topic", "a": "meta.a"})
    assert moved == [{"b": 2, "meta": {"id": 7, "a": 1}, "topic": "t"}]


def test_rename_fields_never_overwrites() -> None:
    assert "row 1: the row has a field 'b' already" in refusal([{"a": 1, "b": 2}], "rename_fields", fields={"a": "b"})
    assert "no field 'x'" in refusal([{"a": 1}], "rename_fields", fields={"x": "y"})
    assert run([{"a": 1}], "rename_fields", fields={"x": "y"}, missing="skip") == [{"a": 1}]


def test_drop_fields_removes_what_is_there() -> None:
    row = {"a": 1, "b": {"c": 2, "d": 3}}
    assert run([row], "drop_fields", fields=["a", "b.c", "z"]) == [{"b": {"d": 3}}]
    assert "no field 'z'" in refusal([row], "drop_fields", fields=["z"], missing="error")


def test_map_values_replaces_the_values_it_names() -> None:
    rows = [{"team": "Billing"}, {"team": "N/A"}, {"team": "other"}, {"team": 1}, {}]
    result = run(rows, "map_values", field="team", values={"Billing": "billing", "N/A": None, "1": "one"})
    assert result == [{"team": "billing"}, {"team": None}, {"team": "other"}, {"team": 1}, {}]


ITEM = {"n": 3, "s": "Hello", "l": [1, 2], "t": True, "o": {"k": None}, "metadata": {"lang": "en"}}


@pytest.mark.parametrize(
    ("field", "operator", "value", "stays"),
    [
        ("n", "eq", 3, True),
        ("n", "eq", 3.0, True),
        ("n", "eq", "3", False),
        ("t", "eq", 1, False),
        ("t", "in", [1, "True"], False),
        ("t", "eq", True, True),
        ("n", "ne", 4, True),
        ("n", "lt", 4, True),
        ("n", "le", 3, True),
        ("n", "gt", 3, False),
        ("n", "ge", 3, True),
        ("s", "ge", "Goodbye", True),
        ("n", "in", [1, 3], True),
        ("n", "not_in", [1, 3], False),
        ("s", "contains", "ell", True),
        ("l", "contains", 2, True),
        ("o", "contains", "k", True),
        ("s", "not_contains", "x", True),
        ("s", "starts_with", "He", True),
        ("s", "ends_with", "He", False),
        ("s", "matches", "^h.l+o$", False),
        ("s", "matches", "(?i)^h.l+o$", True),
        ("s", "min_length", 5, True),
        ("l", "max_length", 1, False),
        ("o.k", "exists", None, True),
        ("o.k", "eq", None, True),
        ("o.z", "exists", None, False),
        ("o.z", "missing", None, True),
        ("lang", "eq", "en", True),
        ("l.-1", "eq", 2, True),
    ],
)
def test_filter_tests_fields(field: str, operator: str, value: Any, stays: bool) -> None:
    condition = {"field": field, "operator": operator, "value": value}
    assert run([ITEM], "filter", conditions=[condition]) == ([ITEM] if stays else [])


def test_filter_joins_conditions_by_all_or_any_and_stops_early() -> None:
    yes, no = {"field": "n", "value": 3}, {"field": "n", "value": 4}
    assert run([ITEM], "filter", conditions=[yes, no]) == []
    assert run([ITEM], "filter", conditions=[yes, no], match="any") == [ITEM]
    guarded = [{"field": "score", "operator": "exists"}, {"field": "score", "operator": "gt", "value": 1}]
    assert run([ITEM], "filter", conditions=guarded) == []


def test_filter_says_when_a_row_lacks_the_field_or_has_the_wrong_kind_of_value() -> None:
    later = [ITEM, {"s": "x"}]
    condition = {"field": "n", "operator": "gt", "value": 1}
    assert "transform 'filter', row 2: the row has no field 'n'" in refusal(later, "filter", conditions=[condition])
    assert run(later, "filter", conditions=[condition], missing="false") == [ITEM]
    wrong = {"field": "s", "operator": "gt", "value": 1}
    assert "the field 's' is 'Hello', which cannot be tested with 'gt' 1" in refusal(
        [ITEM], "filter", conditions=[wrong]
    )


@pytest.mark.parametrize(
    ("operator", "value", "says"),
    [
        ("in", "abc", "needs a list"),
        ("matches", "(", "is not a regular expression"),
        ("starts_with", 3, "needs text"),
        ("min_length", "3", "needs a number"),
        ("lt", None, "needs a number or text"),
        ("lt", True, "needs a number or text"),
        ("exists", 3, "takes no value"),
    ],
)
def test_filter_refuses_conditions_that_make_no_sense(operator: str, value: Any, says: str) -> None:
    message = refusal([], "filter", conditions=[{"field": "a", "operator": operator, "value": value}])
    assert "transforms[0].params.conditions[0]" in message
    assert says in message


def test_dedupe_by_whole_row_ignores_the_order_of_keys_but_not_types() -> None:
    rows: list[Row] = [
        {"a": 1, "b": {"x": 1, "y": 2}},
        {"b": {"y": 2, "x": 1}, "a": 1},
        {"a": "1", "b": 2},
        {"a": 1, "b": 2},
    ]
    assert run(rows, "dedupe") == [rows[0], rows[2], rows[3]]


def test_dedupe_by_key_finds_it_in_the_row_its_metadata_or_deeper() -> None:
    rows: list[Row] = [
        {"q": "a", "n": 1},
        {"metadata": {"q": "a"}, "n": 2},
        {"q": "b", "n": 3},
        {"q": 1},
        {"q": "1"},
        {"q": None},
    ]
    assert run(rows, "dedupe", key="q") == [rows[0], rows[2], rows[3], rows[4], rows[5]]
    deep: list[Row] = [{"u": {"id": 1}}, {"u": {"id": 1}, "x": 1}, {"u": {"id": 2}}]
    assert run(deep, "dedupe", key="u.id") == [deep[0], deep[2]]
    assert run([{"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1, "b": 2}], "dedupe", key=["a", "b"]) == [
        {"a": 1, "b": 2},
        {"a": 1, "b": 3},
    ]


def test_dedupe_does_not_take_rows_without_the_key_for_equal() -> None:
    assert "2 of 3 rows have no `q`: rows 2, 3" in refusal([{"q": 1}, {"x": 1}, {"x": 2}], "dedupe", key="q")


def test_dedupe_can_look_past_case_whitespace_width_and_punctuation() -> None:
    rows: list[Row] = [
        {"q": "Hello  world!"},
        {"q": "hello world!\n"},
        {"q": "hello, world"},
        {"q": "\uff48ello world!"},
        {"q": "STRASSE"},
        {"q": "straße"},
    ]
    assert run(rows, "dedupe", key="q") == rows
    assert run(rows, "dedupe", key="q", mode="normalized") == [rows[0], rows[2], rows[4]]
    assert run(rows, "dedupe", key="q", mode="normalized", ignore_punctuation=True) == [rows[0], rows[4]]
    nested: list[Row] = [{"m": [{"c": "Hi"}]}, {"m": [{"c": "hi "}]}]
    assert run(nested, "dedupe", mode="normalized") == nested[:1]


def test_dedupe_takes_text_that_no_file_can_hold() -> None:
    rows = [{"q": "\ud800"}, {"q": "\ud800"}, {"q": "\ud801"}]
    assert run(rows, "dedupe", key="q") == [rows[0], rows[2]]


NUMBERS: list[Row] = [{"n": number} for number in range(1000)]


def numbers(rows: list[Row]) -> list[int]:
    return [row["n"] for row in rows]


def test_shuffle_is_a_permutation_that_the_seed_decides() -> None:
    first, again, other = run(NUMBERS, "shuffle"), run(NUMBERS, "shuffle"), run(NUMBERS, "shuffle", seed=1)
    assert first == again
    assert first != other
    assert first != NUMBERS
    assert sorted(numbers(first)) == sorted(numbers(other)) == numbers(NUMBERS)


@pytest.mark.parametrize(
    "sizes", [({"n": 10}, {"n": 100}), ({"fraction": 0.1}, {"fraction": 0.5}), ({"n": 1}, {"n": 1000})]
)
def test_samples_keep_the_order_and_nest(sizes: tuple[Row, Row]) -> None:
    small, large = (numbers(run(NUMBERS, "sample", seed=7, **size)) for size in sizes)
    assert small == sorted(small)
    assert large == sorted(large)
    assert set(small) <= set(large)
    assert numbers(run(NUMBERS, "sample", seed=8, **sizes[0])) != small


def test_a_sample_of_a_number_is_exact_and_even() -> None:
    times = Counter(number for seed in range(200) for number in numbers(run(NUMBERS[:20], "sample", n=5, seed=seed)))
    assert sum(times.values()) == 1000
    assert len(times) == 20
    assert max(abs(count - 50) for count in times.values()) < 30


def test_a_sample_that_is_larger_than_the_rows_is_refused_unless_allowed() -> None:
    assert "a sample of 9 needs as many rows, but there are only 3" in refusal(NUMBERS[:3], "sample", n=9)
    assert run(NUMBERS[:3], "sample", n=9, allow_fewer=True) == NUMBERS[:3]


def test_the_parts_of_a_split_are_disjoint_complete_and_of_the_asked_size() -> None:
    parts = {
        part: numbers(run(NUMBERS, "split", part=part, train=0.6, val=0.3, test=0.1))
        for part in ("train", "val", "test")
    }
    assert sorted(number for part in parts.values() for number in part) == numbers(NUMBERS)
    assert 540 < len(parts["train"]) < 660
    assert 240 < len(parts["val"]) < 360
    assert 60 < len(parts["test"]) < 140


def test_a_row_stays_in_its_part_whatever_the_others_are() -> None:
    whole = numbers(run(NUMBERS, "split"))
    half = numbers(run(list(reversed(NUMBERS[:500])), "split"))
    assert sorted(half) == [number for number in whole if number < 500]


def test_rows_with_one_key_are_in_one_part_and_a_salt_makes_another_split() -> None:
    rows = [{"user": number % 50, "n": number} for number in range(1000)]
    train = {row["user"] for row in run(rows, "split", key="user")}
    test = {row["user"] for row in run(rows, "split", key="user", part="test")}
    assert train
    assert test
    assert not train & test
    assert {row["user"] for row in run(rows, "split", key="user", salt="two")} != train


def test_shares_of_zero_leave_nothing_out() -> None:
    assert run(NUMBERS, "split", train=1, val=0, test=0) == NUMBERS
    train, val = (run(NUMBERS, "split", part=part, train=0.7, val=0.3, test=0) for part in ("train", "val"))
    assert len(train) + len(val) == 1000


def test_shares_that_do_not_add_up_are_refused() -> None:
    assert "must add up to 1, but they add up to 1.2" in refusal([], "split", train=0.9, val=0.2)
    assert "'test', has a share of 0" in refusal([], "split", part="test", train=0.9, val=0.1, test=0)


def test_a_split_and_a_fingerprint_are_the_same_in_every_process() -> None:
    code = (
        "from evsys_sdk.data.digest import digest, unit_interval;"
        "print(digest('a').hex(), digest({'b': 1, 'a': [None, 'é']}).hex(), unit_interval(digest('a', b'salt')))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={**env, "PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert outputs.pop().split()[0] == b"27c35e6e9373877f29e562464e46497e"
