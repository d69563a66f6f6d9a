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
from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field, field_validator

from ...config.base import Strict
from ...errors import MISSING
from ...protocols import VerificationResult
from ..answer import ANSWER_TAG, extract_answer
from ..bounded_regex import checked_pattern, match_within
from ..json_shape import check_schema, faults
from ..json_text import find_json
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
        return None if value is None else checked_pattern(value)

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
