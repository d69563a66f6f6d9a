"""The slug that an answer names.

Looked for in this order, after the reasoning in `<think>…</think>` is left out: the last `<answer>…</answer>`, a
`<tool_call>`, a JSON object, a line such as `Tool: SLUG`, and at last the answer itself, if it is one word, one line,
or has exactly one word that looks like a slug. An answer that names several has not chosen, so it names none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ...data.shapes import is_list, is_object
from ..answer import ANSWER_TAG, all_tagged, last_tagged, without_thinking
from ..json_text import find_json
from ..tool_call import calls_in_text, read_call

TOOL_CALL_TAG = "tool_call"

_FIELDS = ("tool_slug", "slug", "tool", "tool_name", "answer", "target")
_CALL_FIELDS = {"function", "arguments", "parameters", "input"}
_LABEL = re.compile(
    r"^\W{0,4}(?:final answer|answer|tool[ _]slug|tool|slug)\b\W{0,4}?[:=](.+)$", re.IGNORECASE | re.MULTILINE
)
_WORD = re.compile(r"[\w./:-]+")
_DECORATION = " \t\r\n`*\"'.,;:!?()[]{}<>“”‘’"  # noqa: RUF001


def extract_predicted_slug(text: str) -> str | None:
    """The slug that a model's answer names; None when it names none, or more than one."""
    answer = without_thinking(text)
    tagged = _tagged(answer)
    if tagged is not None:
        return _in_json(tagged) or _in_words(tagged)
    if f"<{TOOL_CALL_TAG}>" in answer:
        return _only(call.name for call in calls_in_text(answer, tag=TOOL_CALL_TAG))
    return _in_json(answer) or _labelled(answer) or _in_words(answer)


def _tagged(text: str) -> str | None:
    """The last answer tag; one that was cut off before its end counts as well, because a stop sequence may do that."""
    closed = last_tagged(text, ANSWER_TAG)
    if closed is not None:
        return closed
    return next(reversed(all_tagged(text, ANSWER_TAG)), None)


def _in_json(text: str) -> str | None:
    value: Any = find_json(text)
    if is_list(value) and len(value) == 1:
        value = value[0]
    if is_object(value):
        value = next((value[field] for field in _FIELDS if isinstance(value.get(field), str)), _called(value))
    return _in_words(value) if isinstance(value, str) else None


def _called(value: dict[str, Any]) -> str | None:
    """The name in a call; a `name` without arguments may be that of anything."""
    return read_call(value).name if _CALL_FIELDS & set(value) else None


def _labelled(text: str) -> str | None:
    lines = _LABEL.findall(text)
    return _in_words(lines[-1]) if lines else None


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
