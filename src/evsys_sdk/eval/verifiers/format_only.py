r"""`format_only`: the completion has the right format, regardless of its content.

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
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from ...config.base import Strict
from ...data.shapes import is_list, is_object
from ...errors import MISSING, show
from ...protocols import VerificationResult
from ..answers.answer import ANSWER_TAG, THINKING, extract_answer, find_json, without_thinking
from ..answers.bounded_regex import check_pattern, match_within
from ..answers.compare import ValueComparison, is_number
from ..verifier import BaseVerifier

type JsonType = Literal["object", "array", "string", "integer", "number", "boolean", "null"]

_TYPES: dict[JsonType, Callable[[Any], bool]] = {
    "object": is_object,
    "array": is_list,
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": is_number,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}


class JsonShape(Strict):
    """The subset of JSON Schema that describes structure. Other keywords are refused, not silently ignored."""

    type: JsonType | list[JsonType] = []
    """Type of the value, or a list of allowed types."""
    enum: list[Any] = []
    """Allowed values."""
    const: Any = None
    """The only allowed value."""
    properties: dict[str, JsonShape] = {}
    """Shapes of an object's values, by key."""
    required: list[str] = []
    """Required keys of an object."""
    additionalProperties: bool | JsonShape = True
    """Whether an object may have other keys, or the shape of their values."""
    items: JsonShape | None = None
    """Shape of each item of a list."""
    minimum: int | float | None = None
    """Minimum of a number."""
    maximum: int | float | None = None
    """Maximum of a number."""
    minLength: int | None = None
    """Minimum number of characters of a text."""
    maxLength: int | None = None
    """Maximum number of characters of a text."""
    minItems: int | None = None
    """Minimum number of items of a list."""
    maxItems: int | None = None
    """Maximum number of items of a list."""
    title: str = ""
    """Ignored."""
    description: str = ""
    """Ignored."""


class FormatOnlyParams(Strict):
    """The required format; all given conditions must hold."""

    tags: list[str] | None = Field(default=None, min_length=1)
    """Tags that must occur exactly once each, in this order, with content; by default `answer`, if there is no
    `pattern` and no `json_schema`. Reasoning is ignored unless a thinking tag is listed or `nothing_else` is set."""
    nothing_else: bool = False
    """Whether only white space may surround the tags."""
    pattern: str | None = Field(default=None, min_length=1)
    """Regular expression that the whole completion must match; . also matches line ends."""
    json_schema: JsonShape | None = None
    """Shape of the JSON in the answer: type, properties, required, items, enum and bounds of JSON Schema."""
    timeout_s: float = Field(default=2.0, gt=0, le=60)
    """Time limit of the regular expression in seconds."""

    @field_validator("pattern")
    @classmethod
    def _is_a_pattern(cls, value: str | None) -> str | None:
        return None if value is None else check_pattern(value)

    @property
    def required_tags(self) -> list[str]:
        """The required tags, with the default."""
        if self.tags is None:
            return [] if self.pattern is not None or self.json_schema is not None else [ANSWER_TAG]
        return self.tags


class FormatOnly(BaseVerifier[FormatOnlyParams]):
    """1 if the completion has the right format: tags, a pattern, or JSON of a given shape."""

    name: ClassVar[str] = "format_only"
    Config = FormatOnlyParams

    async def verify(self, *, completion: str) -> VerificationResult:
        """Check the format; `info` lists the violations."""
        tags, nothing_else = self.cfg.required_tags, self.cfg.nothing_else
        shows_thinking = nothing_else or not set(tags).isdisjoint(THINKING)
        text = completion if shows_thinking else without_thinking(completion)
        violations = list(_tag_faults(text, tags, nothing_else=nothing_else))
        if self.cfg.pattern is not None:
            groups = await match_within(
                self.cfg.timeout_s, self.cfg.pattern, completion.strip(), how="fullmatch", flags=re.DOTALL
            )
            violations += [] if groups else ["it does not match the pattern"]
        if self.cfg.json_schema is not None:
            value = find_json(extract_answer(completion))
            shape = self.cfg.json_schema
            # Limited, because every item of a long list may be wrong.
            violations += ["there is no JSON in it"] if value is MISSING else itertools.islice(faults(value, shape), 20)
        return VerificationResult(float(not violations), {"wrong": violations})


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


def faults(value: Any, shape: JsonShape, path: str = "") -> Iterator[str]:
    """Yield the violations of a shape, each with its path in the value."""
    place = path or "the value"
    types: list[JsonType] = [shape.type] if isinstance(shape.type, str) else shape.type
    if types and not any(_TYPES[name](value) for name in types):
        yield f"{place} should be of type {' or '.join(types)}"
        return
    choices = [*shape.enum, *([shape.const] if "const" in shape.model_fields_set else ())]
    if choices and not any(ValueComparison().same(value, choice) for choice in choices):
        yield f"{place} should be {' or '.join(show(choice) for choice in choices)}"
    size = value if is_number(value) else len(value) if isinstance(value, str) or is_list(value) else None
    kind = "imum" if is_number(value) else "Length" if isinstance(value, str) else "Items"
    low, high = getattr(shape, f"min{kind}"), getattr(shape, f"max{kind}")
    if size is not None and low is not None and size < low:
        yield f"{place} breaks min{kind} {low}"
    if size is not None and high is not None and size > high:
        yield f"{place} breaks max{kind} {high}"
    if is_object(value):
        yield from _object_faults(value, shape, path)
    elif is_list(value) and shape.items is not None:
        for index, item in enumerate(value):
            yield from faults(item, shape.items, f"{path}[{index}]")


def _object_faults(value: dict[str, Any], shape: JsonShape, path: str) -> Iterator[str]:
    yield from (f"{path}.{key} is missing" for key in shape.required if key not in value)
    for key, inner in value.items():
        expected = shape.properties.get(key, shape.additionalProperties)
        if expected is False:
            yield f"{path}.{key} should not be there"
        elif isinstance(expected, JsonShape):
            yield from faults(inner, expected, f"{path}.{key}")
