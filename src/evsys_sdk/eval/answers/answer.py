"""The part of a completion that is the answer: what follows the reasoning, stands in a tag, a box or a code block.

Also the JSON in it: alone, in a code block, or somewhere between words. Everything here is a search for fixed words,
never a pattern that could backtrack: completions are as long and as strange as a model under training makes them.
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
"""A fence has a line to itself; models also open one behind other words, with nothing but the language after it."""


class AnswerParams(Strict):
    """Which part of a completion counts; shared by the verifiers that compare texts."""

    answer_tag: str | None = Field(default=ANSWER_TAG, min_length=1)
    """Only what stands in the last <answer>…</answer> counts, where there is one; null to always take everything."""
    require_answer_tag: bool = False
    """Whether a completion without that tag earns 0."""
    ignore_thinking: bool = True
    """Whether reasoning in <think>…</think> is left out first, so that a guess in it earns nothing."""

    def answer_in(self, completion: str) -> str | None:
        """The part that counts, without white space around it; None when a required tag is missing."""
        text = without_thinking(completion) if self.ignore_thinking else completion
        tagged = None if self.answer_tag is None else last_tagged(text, self.answer_tag)
        if tagged is None and self.require_answer_tag:
            return None
        return (text if tagged is None else tagged).strip()

    def read_expected(self, expected: Any) -> list[str]:
        """The answers that are right, with everything left out of them that is left out of a completion."""
        free = self.model_copy(update={"require_answer_tag": False})
        return [free.answer_in(text) or "" for text in texts_of_expected(expected)]


def extract_answer(text: str, tag: str = ANSWER_TAG) -> str:
    """What stands inside the last `<answer>…</answer>`, or the whole text."""
    found = last_tagged(text, tag)
    return (text if found is None else found).strip()


def last_tagged(text: str, tag: str) -> str | None:
    """What stands inside the last `<tag>…</tag>`."""
    end = text.rfind(f"</{tag}>")  # from the end: what comes last is what was decided
    start = text.rfind(f"<{tag}>", 0, end) if end >= 0 else -1
    return None if start < 0 else text[start + len(tag) + 2 : end]


def all_tagged(text: str, tag: str) -> list[str]:
    """What stands inside each `<tag>…</tag>`, in order; one that is never closed reaches to the end."""
    parts = text.split(f"<{tag}>")[1:]
    return [part.partition(f"</{tag}>")[0] for part in parts]


def without_thinking(text: str) -> str:
    """What follows the reasoning; of reasoning that was cut off, nothing."""
    for opening, closing in _THINKING:
        text = opening.split(closing.split(text)[-1], 1)[0]
    return text


def last_boxed(text: str) -> str | None:
    r"""What stands inside the last LaTeX `\boxed{…}`, braces inside it included."""
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
    """The fenced blocks of a text, of these languages or of any; one that is never closed reaches to the end."""
    blocks = ((opened["language"].lower(), text[opened.end() + 1 : end]) for opened, end in _find_blocks(text))
    return [inside for language, inside in blocks if not languages or language in languages]


def without_code_blocks(text: str) -> str:
    """The text without the insides of its fenced blocks."""
    for opened, end in reversed(list(_find_blocks(text))):
        text = text[: opened.end()] + text[end:]
    return text


def _find_blocks(text: str) -> Iterator[tuple[re.Match[str], int]]:
    """The opening of each fenced block, and where its inside ends."""
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        # At least as many marks, alone on their line, close a block; anything less is a part of it.
        elif fence["mark"].startswith(opened["mark"]) and fence["line"] is not None and not fence["language"]:
            yield opened, fence.start()
            opened = None
    if opened is not None:
        yield opened, len(text)


def texts_of_expected(expected: Any) -> list[str]:
    """The answers that are right, as texts; a list means any of them."""
    answers: list[Any] = expected if isinstance(expected, list) else [expected]  # pyright: ignore[reportUnknownVariableType]
    if not answers or None in answers:
        raise EvalError("there is no expected answer to compare with. Add 'expected' to the task's verifier.")
    return [
        answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
        for answer in answers
    ]


_OPENING = re.compile(r"[{\[]")
_MOST_ATTEMPTS = 50
"""How many brackets are tried as a beginning; a text of nothing but brackets must not take permanently."""


def strict_loads(text: str) -> Any:
    """The value of a JSON text; `ValueError` for anything else, and for `NaN`, repeated keys and bottomless nesting."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def find_json(text: str) -> Any:
    """The JSON value of a text: all of it, else its last code block that is one, else the first object or list in it.

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
    """An object whose keys differ: of a repeated one, parsers keep the first value, the last, or all."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is repeated")
    return found


_DECODER = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_without_repeated_keys)
