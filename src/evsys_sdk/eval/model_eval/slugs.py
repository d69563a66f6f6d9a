"""Slugs: extract one from an answer and match it with a target.

    extract_predicted_slug("I would use <answer>GMAIL_SEND_EMAIL</answer>")         "GMAIL_SEND_EMAIL"
    matcher = AliasMatcher({"GMAIL_SEND_EMAIL": ["GMAIL_SEND_MAIL"]}, secondary={"GMAIL_SEND_EMAIL": ["OUTLOOK_SEND"]})
    matcher.match("gmail_send_mail", "GMAIL_SEND_EMAIL")                              "alias"

Extraction drops the reasoning in `<think>…</think>` and tries the last `<answer>…</answer>`, a `<tool_call>`, a JSON
object, a line such as `Tool: SLUG`, and finally the answer itself, if it is one word, one line, or has exactly one word
that looks like a slug. An answer with several slugs has no prediction.

An alias file maps a target to slugs that count for it, in one direction; for both directions write
`{"symmetric": true, "aliases": {...}}`. Aliases are verified pairs, so they are not transitive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from ...data.jsonl import read_json
from ...data.shapes import is_list, is_object
from ...errors import DataError, show
from ..answers.answer import ANSWER_TAG, all_tagged, find_json, last_tagged, without_thinking
from ..answers.tool_call import calls_in_text, read_call

type Match = Literal["exact", "alias", "secondary", "none"]

MATCHES: tuple[Match, ...] = ("exact", "alias", "secondary", "none")
PASSES = frozenset({"exact", "alias"})
"""The matches that count as correct."""
TOOL_CALL_TAG = "tool_call"

_FIELDS = ("tool_slug", "slug", "tool", "tool_name", "answer", "target")
_CALL_FIELDS = {"function", "arguments", "parameters", "input"}
_LABEL = re.compile(
    r"^\W{0,4}(?:final answer|answer|tool[ _]slug|tool|slug)\b\W{0,4}?[:=](.+)$", re.IGNORECASE | re.MULTILINE
)
_WORD = re.compile(r"[\w./:-]+")
_DECORATION = " \t\r\n`*\"'.,;:!?()[]{}<>“”‘’"  # noqa: RUF001
_SYMMETRIC = {"symmetric", "aliases"}


class AliasMatcher:
    """Matches a predicted slug with a target: exactly, by a verified alias, by a looser one, or not."""

    def __init__(self, aliases: Mapping[str, Any] | None = None, secondary: Mapping[str, Any] | None = None) -> None:
        self.aliases = _read_aliases(aliases or {}, "aliases")
        """Normalised target -> the other slugs that count for it."""
        self.secondary = None if secondary is None else _read_aliases(secondary, "secondary")
        """None without a second set, which differs from an empty one."""

    @classmethod
    def load(cls, aliases: str | Path, secondary: str | Path | None = None) -> Self:
        """Load one or two JSON files."""
        matcher = cls()
        matcher.aliases = _read_aliases(read_json(aliases), str(aliases))
        matcher.secondary = None if secondary is None else _read_aliases(read_json(secondary), str(secondary))
        return matcher

    def match(self, predicted: str | None, target: str) -> Match:
        """`exact`, `alias` (verified), `secondary` (looser) or `none`; a missing prediction matches nothing."""
        if predicted is None:
            return "none"
        slug, expected = normalise(predicted), normalise(target)
        if slug == expected:
            return "exact"
        if slug in self.aliases.get(expected, ()):
            return "alias"
        return "secondary" if slug in (self.secondary or {}).get(expected, ()) else "none"


def normalise(slug: str) -> str:
    """Fold case and white space for comparison."""
    return " ".join(slug.split()).casefold()


def _read_aliases(value: Any, where: str) -> dict[str, set[str]]:
    """Read the JSON form: a mapping to lists, optionally wrapped with `symmetric`."""
    symmetric = is_object(value) and set(value) == _SYMMETRIC and isinstance(value["symmetric"], bool)
    listed: Any = value["aliases"] if symmetric else value
    if not is_object(listed):
        raise DataError(f'{where}: aliases must be an object such as {{"SLUG": ["OTHER_SLUG"]}}, not {show(listed)}.')
    by_target: dict[str, set[str]] = {}
    for target, aliases in listed.items():
        _check_slug(target, f"{where}: the slug")
        if not is_list(aliases):
            raise DataError(f"{where}: the aliases of '{target}' must be a list, not {show(aliases)}. Write [...].")
        for alias in aliases:
            _check_slug(alias, f"{where}: an alias of '{target}'")
            key, other = normalise(target), normalise(alias)
            if key != other:
                by_target.setdefault(key, set()).add(other)
            if key != other and symmetric and value["symmetric"]:
                by_target.setdefault(other, set()).add(key)
    return by_target


def _check_slug(slug: Any, what: str) -> None:
    if not isinstance(slug, str) or not slug.strip():
        raise DataError(f"{what} must be non-empty text, not {show(slug)}.")


def extract_predicted_slug(text: str) -> str | None:
    """The slug that an answer names; None for no slug or several."""
    answer = without_thinking(text)
    tagged = last_tagged(answer, ANSWER_TAG)
    if tagged is None:  # a stop sequence may have cut off the closing tag
        tagged = next(reversed(all_tagged(answer, ANSWER_TAG)), None)
    if tagged is not None:
        return _in_json(tagged) or _in_words(tagged)
    if f"<{TOOL_CALL_TAG}>" in answer:
        return _only(call.name for call in calls_in_text(answer, tag=TOOL_CALL_TAG))
    labelled = _LABEL.findall(answer)
    return _in_json(answer) or (_in_words(labelled[-1]) if labelled else None) or _in_words(answer)


def _in_json(text: str) -> str | None:
    value: Any = find_json(text)
    if is_list(value) and len(value) == 1:
        value = value[0]
    if is_object(value):
        # A `name` without arguments may name anything.
        call_name = read_call(value).name if _CALL_FIELDS & set(value) else None
        value = next((value[field] for field in _FIELDS if isinstance(value.get(field), str)), call_name)
    return _in_words(value) if isinstance(value, str) else None


def _in_words(text: str) -> str | None:
    bare = text.strip(_DECORATION)
    if not bare or not any(letter.isspace() for letter in bare):
        return bare or None
    words = (word.strip(_DECORATION + "/-_") for word in _WORD.findall(bare))
    slugs = [word for word in words if "_" in word]
    return _only(slugs) if slugs else (bare if "\n" not in bare else None)


def _only(names: Iterable[str]) -> str | None:
    """The single distinct name, ignoring case."""
    distinct = {name.casefold(): name for name in names if name}
    return next(iter(distinct.values())) if len(distinct) == 1 else None
