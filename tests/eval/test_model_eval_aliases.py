"""Which slugs count as the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.errors import DataError
from evsys_sdk.eval import AliasMatcher

SLUG = st.text(alphabet="abcXYZ_0", min_size=1, max_size=6)
MAPS = st.dictionaries(SLUG, st.lists(SLUG, max_size=3), max_size=5)


@given(MAPS, MAPS, SLUG)
def test_a_slug_always_matches_itself_exactly(aliases: Any, secondary: Any, slug: str) -> None:
    assert AliasMatcher(aliases, secondary).match(slug, slug) == "exact"


@given(MAPS, SLUG, SLUG)
def test_case_and_white_space_never_matter(aliases: Any, predicted: str, target: str) -> None:
    matcher = AliasMatcher(aliases)
    assert matcher.match(f"  {predicted.swapcase()}\n", f"\t{target.upper()} ") == matcher.match(predicted, target)


@given(MAPS, SLUG, SLUG)
def test_symmetric_aliases_hold_both_ways(aliases: Any, one: str, other: str) -> None:
    matcher = AliasMatcher({"symmetric": True, "aliases": aliases})
    assert matcher.match(one, other) == matcher.match(other, one)


@given(MAPS, MAPS, SLUG, SLUG)
def test_secondary_aliases_change_nothing_that_matches_without_them(
    aliases: Any, secondary: Any, one: str, other: str
) -> None:
    strict, loose = AliasMatcher(aliases).match(one, other), AliasMatcher(aliases, secondary).match(one, other)
    assert loose == strict or (strict, loose) == ("none", "secondary")


def test_aliases_go_one_way_and_do_not_chain_unless_declared() -> None:
    matcher = AliasMatcher({"a": ["b"], "b": ["c"]})
    assert matcher.match("b", "a") == "alias"
    assert matcher.match("a", "b") == "none"
    assert matcher.match("c", "a") == "none"


def test_a_verified_alias_goes_before_a_secondary_one() -> None:
    matcher = AliasMatcher({"a": ["b"]}, secondary={"a": ["b", "c"]})
    assert [matcher.match(slug, "a") for slug in ("b", "c", "d", None)] == ["alias", "secondary", "none", "none"]


def test_inner_white_space_counts_as_one_blank_but_is_not_an_underscore() -> None:
    matcher = AliasMatcher()
    assert matcher.match("send   email", "Send email") == "exact"
    assert matcher.match("send email", "send_email") == "none"


def test_from_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"A": ["B"]}', encoding="utf-8")
    (tmp_path / "s.json").write_text('{"symmetric": true, "aliases": {"A": ["C"]}}', encoding="utf-8")
    matcher = AliasMatcher.load(tmp_path / "a.json", tmp_path / "s.json")
    assert [matcher.match("B", "A"), matcher.match("A", "C"), matcher.match("A", "B")] == ["alias", "secondary", "none"]
    assert AliasMatcher.load(tmp_path / "a.json").secondary is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["A"], "aliases must be an object"),
        ({"A": "B"}, "the aliases of 'A' must be a list, not 'B'"),
        ({"A": [1]}, "an alias of 'A' must be non-empty text, not 1"),
        ({"A": [" "]}, "an alias of 'A' must be non-empty text"),
        ({" ": ["A"]}, "the slug must be non-empty text"),
        ({"symmetric": True, "aliases": ["A"]}, "aliases must be an object"),
        ({"symmetric": True, "alias": {}}, "the aliases of 'symmetric' must be a list, not True"),
    ],
)
def test_a_file_that_is_no_alias_map_is_refused_with_its_name(value: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "aliases.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(DataError, match=r"aliases\.json") as caught:
        AliasMatcher.load(path)
    assert message in str(caught.value)
