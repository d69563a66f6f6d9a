"""Slugs: which one an answer names, and which ones count as the same.

    extract_predicted_slug("I would use <answer>GMAIL_SEND_EMAIL</answer>")         "GMAIL_SEND_EMAIL"
    matcher = AliasMatcher({"GMAIL_SEND_EMAIL": ["GMAIL_SEND_MAIL"]}, secondary={"GMAIL_SEND_EMAIL": ["OUTLOOK_SEND"]})
    matcher.match("gmail_send_mail", "GMAIL_SEND_EMAIL")                              "alias"

A slug is looked for, after the reasoning in `<think>…</think>` is left out, in the last `<answer>…</answer>`, a
`<tool_call>`, a JSON object, a line such as `Tool: SLUG`, and at last in the answer itself, if it is one word, one
line, or has exactly one word that looks like a slug. An answer that names several has not chosen, so it names none.

A file of aliases is a mapping from a target to what counts for it, one way. Where both ways are meant:
`{"symmetric": true, "aliases": {...}}`. Aliases are pairs somebody has verified, so nothing follows from two of them.
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
"""The matches that count as right."""
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
    """How a predicted slug matches a target: exactly, by a verified alias, by a looser one, or not."""

    def __init__(self, aliases: Mapping[str, Any] | None = None, secondary: Mapping[str, Any] | None = None) -> None:
        self.aliases = _read_aliases(aliases or {}, "aliases")
        """By the normalised target, the other slugs that count for it."""
        self.secondary = None if secondary is None else _read_aliases(secondary, "secondary")
        """None where there is no second set, which is not the same as an empty one."""

    @classmethod
    def load(cls, aliases: str | Path, secondary: str | Path | None = None) -> Self:
        """From one or two JSON files."""
        matcher = cls()
        matcher.aliases = _read_aliases(read_json(aliases), str(aliases))
        matcher.secondary = None if secondary is None else _read_aliases(read_json(secondary), str(secondary))
        return matcher

    def match(self, predicted: str | None, target: str) -> Match:
        """`exact`, `alias` (verified), `secondary` (looser) or `none`; no prediction matches nothing."""
        if predicted is None:
            return "none"
        said, wanted = normalise(predicted), normalise(target)
        if said == wanted:
            return "exact"
        if said in self.aliases.get(wanted, ()):
            return "alias"
        return "secondary" if said in (self.secondary or {}).get(wanted, ()) else "none"


def normalise(slug: str) -> str:
    """What is compared: neither case nor the amount of white space matters."""
    return " ".join(slug.split()).casefold()


def _read_aliases(value: Any, where: str) -> dict[str, set[str]]:
    """From the JSON form: a mapping of lists, or the same with `symmetric` next to it."""
    symmetric = is_object(value) and set(value) == _SYMMETRIC and isinstance(value["symmetric"], bool)
    listed: Any = value["aliases"] if symmetric else value
    if not is_object(listed):
        raise DataError(f'{where}: aliases must be an object such as {{"SLUG": ["OTHER_SLUG"]}}, not {show(listed)}.')
    found: dict[str, set[str]] = {}
    for target, aliases in listed.items():
        _check_slug(target, f"{where}: the slug")
        if not is_list(aliases):
            raise DataError(f"{where}: the aliases of '{target}' must be a list, not {show(aliases)}. Write [...].")
        for alias in aliases:
            _check_slug(alias, f"{where}: an alias of '{target}'")
            one, other = normalise(target), normalise(alias)
            if one != other:
                found.setdefault(one, set()).add(other)
            if one != other and symmetric and value["symmetric"]:
                found.setdefault(other, set()).add(one)
    return found


def _check_slug(slug: Any, what: str) -> None:
    if not isinstance(slug, str) or not slug.strip():
        raise DataError(f"{what} must be non-empty text, not {show(slug)}.")


def extract_predicted_slug(text: str) -> str | None:
    """The slug that a model's answer names; None when it names none, or more than one."""
    answer = without_thinking(text)
    tagged = last_tagged(answer, ANSWER_TAG)
    if tagged is None:  # cut off before its end, which a stop sequence may do
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
        # A `name` without arguments may be that of anything.
        called = read_call(value).name if _CALL_FIELDS & set(value) else None
        value = next((value[field] for field in _FIELDS if isinstance(value.get(field), str)), called)
    return _in_words(value) if isinstance(value, str) else None


def _in_words(text: str) -> str | None:
    bare = text.strip(_DECORATION)
    if not bare or not any(letter.isspace() for letter in bare):
        return bare or None
    words = (word.strip(_DECORATION + "/-_") for word in _WORD.findall(bare))
    slugs = [word for word in words if "_" in word]
    return _only(slugs) if slugs else (bare if "\n" not in bare else None)


def _only(names: Iterable[str]) -> str | None:
    """The one name that is there, however often and in whatever case."""
    found = {name.casefold(): name for name in names if name}
    return next(iter(found.values())) if len(found) == 1 else None
