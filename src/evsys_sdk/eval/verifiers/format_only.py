r"""`format_only`: the completion has the right form, whatever it says. A first reward for a model that must learn one.

In a task:

    {fn_name: format_only}                                              one <answer>…</answer>
    {fn_name: format_only, params: {tags: [think, answer], nothing_else: true}}
    {fn_name: format_only, params: {json_schema: {type: object, required: [city]}}}
    {fn_name: format_only, params: {pattern: "\\d{4}-\\d{2}-\\d{2}"}}
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from pydantic import Field, field_validator

from ...config.base import Strict
from ...data.shapes import is_list, is_object
from ...errors import MISSING, show, suggest
from ...protocols import VerificationResult
from ..answers.answer import ANSWER_TAG, extract_answer, find_json
from ..answers.bounded_regex import check_pattern, match_within
from ..answers.compare import ValueComparison, is_number
from ..verifier import BaseVerifier


class FormatOnlyParams(Strict):
    """What the form is; everything that is given must hold."""

    tags: list[str] | None = Field(default=None, min_length=1)
    """Tags that occur once each, in this order, with something inside; `answer` if nothing else is asked for."""
    nothing_else: bool = False
    """Whether there may be nothing but white space around the tags."""
    pattern: str | None = Field(default=None, min_length=1)
    """Regular expression that the whole completion matches; . matches line ends too."""
    json_schema: dict[str, Any] | None = None
    """Shape of the JSON in the answer: type, properties, required, items, enum and bounds of JSON Schema."""
    timeout_s: float = Field(default=2.0, gt=0, le=60)
    """Longest time for the regular expression."""

    @field_validator("pattern")
    @classmethod
    def _is_a_pattern(cls, value: str | None) -> str | None:
        return None if value is None else check_pattern(value)

    @field_validator("json_schema")
    @classmethod
    def _is_a_schema(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None:
            check_schema(value)
        return value

    @property
    def wanted_tags(self) -> list[str]:
        """The tags to look for."""
        if self.tags is None:
            return [] if self.pattern is not None or self.json_schema is not None else [ANSWER_TAG]
        return self.tags


class FormatOnly(BaseVerifier[FormatOnlyParams]):
    """1 if the completion has the right form: tags, a pattern, or JSON of a given shape."""

    name: ClassVar[str] = "format_only"
    Config = FormatOnlyParams

    async def verify(self, *, completion: str) -> VerificationResult:
        """Check the form; the info lists what is wrong with it."""
        wrong = list(_tag_faults(completion, self.cfg.wanted_tags, nothing_else=self.cfg.nothing_else))
        if self.cfg.pattern is not None:
            found = await match_within(
                self.cfg.timeout_s, self.cfg.pattern, completion.strip(), how="fullmatch", flags=re.DOTALL
            )
            wrong += [] if found else ["it does not match the pattern"]
        if self.cfg.json_schema is not None:
            value = find_json(extract_answer(completion))
            shape = self.cfg.json_schema
            # A few are enough: a long list may be wrong in every item.
            wrong += ["there is no JSON in it"] if value is MISSING else itertools.islice(faults(value, shape), 20)
        return VerificationResult(float(not wrong), {"wrong": wrong})


def _tag_faults(text: str, tags: list[str], *, nothing_else: bool) -> Iterator[str]:
    rest, outside = text, ""
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if (opened := text.count(opening)) != 1 or text.count(closing) != 1:
            yield f"{opening} occurs {opened} times and {closing} {text.count(closing)} times; each should occur once"
            return
        before, _, rest = rest.partition(opening)
        inside, closed, rest = rest.partition(closing)
        outside += before
        if not closed:
            yield f"{opening}…{closing} is not where it should be"
            return
        if not inside.strip():
            yield f"there is nothing in {opening}{closing}"
    if tags and nothing_else and (outside + rest).strip():
        yield "there is something outside the tags"


# The shape of a JSON value, described by the part of JSON Schema that tells structure apart.
#
# A keyword that is not understood is refused when the description is read, because ignoring it would let anything
# pass.

type Schema = dict[str, Any]

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": is_object,
    "array": is_list,
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": lambda value: is_number(value),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
_BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, bound: not is_number(value) or value >= bound,
    "maximum": lambda value, bound: not is_number(value) or value <= bound,
    "minLength": lambda value, bound: not isinstance(value, str) or len(value) >= bound,
    "maxLength": lambda value, bound: not isinstance(value, str) or len(value) <= bound,
    "minItems": lambda value, bound: not is_list(value) or len(value) >= bound,
    "maxItems": lambda value, bound: not is_list(value) or len(value) <= bound,
}
_WORDS = {"title", "description"}
_KNOWN = {"type", "enum", "const", "properties", "required", "additionalProperties", "items", *_BOUNDS, *_WORDS}


def check_schema(schema: Any, path: str = "") -> None:
    """Refuse a description that uses what is not understood here, or that is none."""
    if not is_object(schema):
        raise ValueError(f"{path or 'the schema'} should be an object, not {show(schema)}. Correct it.")
    for key in schema:
        if key not in _KNOWN:
            hint = suggest(key, _KNOWN) or f"Known are: {', '.join(sorted(_KNOWN))}."
            raise ValueError(f"the keyword '{key}' at '{path or '.'}' is not understood. {hint}")
    for name in _as_list(schema.get("type", [])):
        if name not in _TYPES:
            raise ValueError(f"{show(name)} at '{path or '.'}' is not a type. Use one of: {', '.join(_TYPES)}.")
    for key in _BOUNDS:
        if not is_number(schema.get(key, 0)):
            raise ValueError(f"'{key}' at '{path or '.'}' should be a number, not {show(schema[key])}. Correct it.")
    for key in ("enum", "required"):
        if not is_list(schema.get(key, [])):
            raise ValueError(f"'{key}' at '{path or '.'}' should be a list, not {show(schema[key])}. Correct it.")
    for name, inner in _object(schema, "properties").items():
        check_schema(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema and not (key == "additionalProperties" and isinstance(schema[key], bool)):
            check_schema(schema[key], f"{path}.{key}")


def faults(value: Any, schema: Schema, path: str = "") -> Iterator[str]:
    """What is wrong with a value, with the place of each fault."""
    place = path or "the value"
    types = _as_list(schema.get("type", []))
    if types and not any(_TYPES[name](value) for name in types):
        yield f"{place} should be of type {' or '.join(types)}"
        return
    choices = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]
    if choices and not any(ValueComparison().same(value, choice) for choice in choices):
        yield f"{place} should be {' or '.join(show(choice) for choice in choices)}"
    for key, holds in _BOUNDS.items():
        if key in schema and not holds(value, schema[key]):
            yield f"{place} breaks {key} {schema[key]}"
    if is_object(value):
        yield from _object_faults(value, schema, path)
    elif is_list(value) and "items" in schema:
        for index, item in enumerate(value):
            yield from faults(item, schema["items"], f"{path}[{index}]")


def _object_faults(value: dict[str, Any], schema: Schema, path: str) -> Iterator[str]:
    properties = _object(schema, "properties")
    yield from (f"{path}.{key} is missing" for key in schema.get("required", ()) if key not in value)
    others = schema.get("additionalProperties", True)
    for key, inner in value.items():
        if key in properties:
            yield from faults(inner, properties[key], f"{path}.{key}")
        elif others is False:
            yield f"{path}.{key} should not be there"
        elif is_object(others):
            yield from faults(inner, others, f"{path}.{key}")


def _object(schema: Schema, key: str) -> dict[str, Any]:
    found = schema.get(key, {})
    if not is_object(found):
        raise ValueError(f"'{key}' should be an object, not {show(found)}. Correct it.")
    return found


def _as_list(value: Any) -> list[Any]:
    return value if is_list(value) else [value]
