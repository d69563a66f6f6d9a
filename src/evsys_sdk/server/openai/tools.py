"""Tool calls in a growing text: found by their tag, and held back while they may be beginning."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Final

from ...eval.answers.tool_call import calls_in_text
from ...inference.messages import ToolCall

TAG: Final = "tool_call"
OPENING: Final = f"<{TAG}>"


def split_calls(text: str) -> tuple[str, list[ToolCall]]:
    """The text before the first call, and the calls; a call that cannot be read stays text."""
    before, tag, _ = text.partition(OPENING)
    calls = calls_in_text(text, tag=TAG) if tag else []
    if not calls or any(not call.name for call in calls):
        return text, []
    return before.rstrip(), [
        ToolCall(f"call_{secrets.token_hex(12)}", call.name, json.dumps(call.arguments, ensure_ascii=False), {})
        for call in calls
    ]


def safe_length(text: str, holdbacks: Sequence[str]) -> int:
    """How much of a growing text can be shown: not the beginning of what may turn out to be a call or a stop."""
    shown = len(text)
    for mark in holdbacks:
        if (at := text.find(mark)) >= 0:
            shown = min(shown, at)
            continue
        for size in range(min(len(mark) - 1, len(text)), 0, -1):
            if text.endswith(mark[:size]):
                shown = min(shown, len(text) - size)
                break
    while shown and text[shown - 1] == "\ufffd":  # a character whose bytes have not all come
        shown -= 1
    return shown
