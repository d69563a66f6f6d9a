"""Extract the answer of a completion: after the reasoning, in a tag, a box or a code block; also JSON in it.

Every search runs in linear time without backtracking, because completions of a model in training can be long and odd.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from pydantic import Field

from ...config.base import Strict
from ...errors import MISSING, EvalError

ANSWER_TAG = "answer"
THINKING = ("think", "thinking")
_THINKING = [(re.compile(f"<{tag}>", re.IGNORECASE), re.compile(f"</{tag}>", re.IGNORECASE)) for tag in THINKING]
_FENCE = re.compile(
    r"(?:(?P<line>^[ \t]*)|(?<=[\s:]))(?P<mark>`{3,}|~{3,})[ \t]*(?P<language>[\w+-]*)(?(line)[^\n]*|[ \t]*)$",
    re.MULTILINE,
)
"""A fence has its own line; models also open one after other words, followed only by the language."""


class AnswerParams(Strict):
    """Which part of a completion counts; shared by the verifiers that compare texts."""

    answer_tag: str | None = Field(default=ANSWER_TAG, min_length=1)
    """Compare only the content of the last <answer>…</answer>, if any; null compares the whole completion."""
    require_answer_tag: bool = False
    """Whether a completion without the tag scores 0."""
    ignore_thinking: bool = True
    """Whether reasoning in <think>…</think> is removed first, so that a guess in it scores nothing."""

    def answer_in(self, completion: str) -> str | None:
        """The part that counts, stripped; None when a required tag is missing."""
        text = without_thinking(completion) if self.ignore_thinking else completion
        tagged = None if self.answer_tag is None else last_tagged(text, self.answer_tag)
        if tagged is None and self.require_answer_tag:
            return None
        return (text if tagged is None else tagged).strip()

    def read_expected(self, expected: Any) -> list[str]:
        """The correct answers, extracted by the same rules as those of a completion."""
        free = self.model_copy(update={"require_answer_tag": False})
        return [free.answer_in(text) or "" for text in texts_of_expected(expected)]


def extract_answer(text: str) -> str:
    """The content of the last `<answer>…</answer>`, else the whole text."""
    tagged = last_tagged(text, ANSWER_TAG)
    return (text if tagged is None else tagged).strip()


def last_tagged(text: str, tag: str) -> str | None:
    """The content of the last `<tag>…</tag>`; None without one."""
    end = text.rfind(f"</{tag}>")  # the last answer is the final one
    start = text.rfind(f"<{tag}>", 0, end) if end >= 0 else -1
    return None if start < 0 else text[start + len(tag) + 2 : end]


def all_tagged(text: str, tag: str) -> list[str]:
    """The content of each `<tag>…</tag>`, in order; an unclosed tag reaches to the end."""
    parts = text.split(f"<{tag}>")[1:]
    return [part.partition(f"</{tag}>")[0] for part in parts]


def without_thinking(text: str) -> str:
    """The text after the reasoning; empty if the reasoning is cut off."""
    for opening, closing in _THINKING:
        text = opening.split(closing.split(text)[-1], 1)[0]
    return text


def last_boxed(text: str) -> str | None:
    r"""The content of the last LaTeX `\boxed{…}`, with nested braces."""
    start = max(text.rfind(r"\boxed{"), text.rfind(r"\fbox{"))
    if start < 0:
        return None
    begin = depth = 0
    for at in range(text.index("{", start), len(text)):
        if text[at] == "{":
            depth += 1
            begin = begin or at + 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                return text[begin:at]
    return None


def code_blocks(text: str, *languages: str) -> list[str]:
    """The fenced blocks of a text, optionally of these languages; an unclosed block reaches to the end."""
    blocks = ((opened["language"].lower(), text[opened.end() + 1 : end]) for opened, end in _find_blocks(text))
    return [inside for language, inside in blocks if not languages or language in languages]


def without_code_blocks(text: str) -> str:
    """The text without the content of its fenced blocks."""
    for opened, end in reversed(list(_find_blocks(text))):
        text = text[: opened.end()] + text[end:]
    return text


def _find_blocks(text: str) -> Iterator[tuple[re.Match[str], int]]:
    """The opening fence and the end of each fenced block."""
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        # At least as many marks, alone on their line, close a block; fewer belong to its content.
        elif fence["mark"].startswith(opened["mark"]) and fence["line"] is not None and not fence["language"]:
            yield opened, fence.start()
            opened = None
    if opened is not None:
        yield opened, len(text)


def texts_of_expected(expected: Any) -> list[str]:
    """The correct answers as texts; a list means any of them."""
    answers: list[Any] = expected if isinstance(expected, list) else [expected]  # pyright: ignore[reportUnknownVariableType]
    if not answers or None in answers:
        raise EvalError("the task has no expected answer. Add 'expected' to its verifier.")
    return [
        answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
        for answer in answers
    ]


_OPENING = re.compile(r"[{\[]")
_MOST_ATTEMPTS = 50
"""Brackets tried as the start of a value, which bounds the time on a text of brackets."""


def strict_loads(text: str) -> Any:
    """Parse JSON; `ValueError` for anything else, including `NaN`, repeated keys and excessive nesting."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def find_json(text: str) -> Any:
    """The JSON value of a text: all of it, else the last code block that parses, else the first object or list.

    `MISSING` when there is none.
    """
    for candidate in (text, *reversed(code_blocks(text))):
        try:
            return strict_loads(candidate)
        except ValueError:
            continue
    return _first_embedded(text)


def _first_embedded(text: str) -> Any:
    for attempt, opening in enumerate(_OPENING.finditer(text)):
        if attempt == _MOST_ATTEMPTS:
            break
        try:
            return _DECODER.raw_decode(text, opening.start())[0]
        except (ValueError, RecursionError):
            continue
    return MISSING


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; refuse repeated keys, which parsers resolve differently."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key is repeated")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_without_repeated_keys)
