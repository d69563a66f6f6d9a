r"""Regular expressions with a time limit.

A pattern such as `(a|aa)+$` takes exponential time on some lines, and a model in training can produce them. Python's
`re` cannot be interrupted; the package `regex` checks the time as it backtracks.

    groups = await match_within(1.0, r"(\d+) apples", "12 apples")  # ['12 apples', '12'], or None
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Literal

from ...errors import EvalError, show

type How = Literal["search", "match", "fullmatch"]


class RegexTimeoutError(EvalError):
    """A match exceeded its time limit."""


async def match_within(
    timeout_s: float, pattern: str, text: str, *, how: How = "search", flags: int = 0
) -> list[str | None] | None:
    """The match and its groups, or None without a match; `RegexTimeoutError` at the time limit."""
    import regex

    matcher: Any = getattr(regex, how)
    try:
        # In a thread without the GIL, so that other answers are scored meanwhile.
        match = await asyncio.to_thread(matcher, pattern, text, flags, timeout=timeout_s, concurrent=True)
    except TimeoutError:
        raise RegexTimeoutError(
            f"the regular expression {show(pattern)} timed out after {timeout_s:g} s on a text of {len(text)} "
            "characters. Remove nested repetitions, or raise timeout_s."
        ) from None
    except (regex.error, RecursionError, OverflowError, MemoryError) as error:
        message = f"the regular expression {show(pattern)} cannot be used: {type(error).__name__}: {error}. Correct it."
        raise EvalError(message) from None
    return None if match is None else [match[0], *match.groups()]


def check_pattern(pattern: str) -> str:
    """Return `pattern` if it is valid in Python's syntax; for validators of params."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{show(pattern)} is not a regular expression: {error}. Correct it.") from error
    return pattern
