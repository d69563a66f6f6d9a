"""Which slugs count as the same: verified aliases, and a looser second set that is reported but never counts as right.

    matcher = AliasMatcher({"GMAIL_SEND_EMAIL": ["GMAIL_SEND_MAIL"]}, secondary={"GMAIL_SEND_EMAIL": ["OUTLOOK_SEND"]})
    matcher.match("gmail_send_mail", "GMAIL_SEND_EMAIL")        "alias"

A file is such a mapping from a target to what counts for it, one way. Where both ways are meant:
`{"symmetric": true, "aliases": {...}}`. Aliases are pairs somebody has verified, so nothing follows from two of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from ...data.jsonl import read_json
from ...data.shapes import is_list, is_object
from ...errors import DataError, show

type Match = Literal["exact", "alias", "secondary", "none"]

_SPACES = re.compile(r"\s+")
_WRAPPED = {"symmetric", "aliases"}


def normalise(slug: str) -> str:
    """What is compared: neither case nor the amount of white space matters."""
    return _SPACES.sub(" ", slug.strip()).casefold()


@dataclass(frozen=True, slots=True)
class AliasMap:
    """For each target, the other slugs that count for it; all of them normalised."""

    accepted: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])

    @classmethod
    def of(cls, value: Any, *, where: str = "aliases") -> Self:
        """From the JSON form: a mapping of lists, or the same with `symmetric` beside it."""
        symmetric, pairs = _unwrapped(value, where)
        found: dict[str, set[str]] = {}
        for target, alias in pairs:
            found.setdefault(target, set()).add(alias)
            if symmetric:
                found.setdefault(alias, set()).add(target)
        return cls({target: frozenset(aliases) for target, aliases in found.items()})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """From a JSON file."""
        return cls.of(read_json(path), where=str(path))

    def accepts(self, predicted: str, target: str) -> bool:
        """Whether a slug counts for a target; both normalised."""
        return predicted in self.accepted.get(target, ())


type Aliases = AliasMap | dict[str, Any]


class AliasMatcher:
    """How a predicted slug matches a target."""

    def __init__(self, aliases: Aliases | None = None, secondary: Aliases | None = None) -> None:
        self.aliases = _alias_map(aliases, "aliases") or AliasMap()
        self.secondary = _alias_map(secondary, "secondary")
        """None where there is no second set, which is not the same as an empty one."""

    @classmethod
    def load(cls, aliases: str | Path, secondary: str | Path | None = None) -> Self:
        """From one or two JSON files."""
        return cls(AliasMap.load(aliases), None if secondary is None else AliasMap.load(secondary))

    def match(self, predicted: str | None, target: str) -> Match:
        """`exact`, `alias` (verified), `secondary` (looser) or `none`; no prediction matches nothing."""
        if predicted is None:
            return "none"
        said, wanted = normalise(predicted), normalise(target)
        if said == wanted:
            return "exact"
        if self.aliases.accepts(said, wanted):
            return "alias"
        return "secondary" if self.secondary is not None and self.secondary.accepts(said, wanted) else "none"


def _alias_map(value: Aliases | None, where: str) -> AliasMap | None:
    return value if value is None or isinstance(value, AliasMap) else AliasMap.of(value, where=where)


def _unwrapped(value: Any, where: str) -> tuple[bool, Iterator[tuple[str, str]]]:
    if is_object(value) and set(value) == _WRAPPED and isinstance(value["symmetric"], bool):
        return value["symmetric"], _pairs(value["aliases"], where)
    return False, _pairs(value, where)


def _pairs(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if not is_object(value):
        raise DataError(f'{where}: aliases must be an object such as {{"SLUG": ["OTHER_SLUG"]}}, not {show(value)}.')
    for target, aliases in value.items():
        _check_slug(target, f"{where}: the slug")
        if not is_list(aliases):
            raise DataError(f"{where}: the aliases of '{target}' must be a list, not {show(aliases)}. Write [...].")
        for alias in aliases:
            _check_slug(alias, f"{where}: an alias of '{target}'")
            if normalise(alias) != normalise(target):
                yield normalise(target), normalise(alias)


def _check_slug(slug: Any, what: str) -> None:
    if not isinstance(slug, str) or not slug.strip():
        raise DataError(f"{what} must be non-empty text, not {show(slug)}.")
