"""Tools in a chat without a template for them: told in the system message, called by a tag in the text."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..errors import show
from ..eval.answers.tool_call import calls_in_text
from .openai_requests import OpenAIRefusal

TAG: Final = "tool_call"
OPENING: Final = f"<{TAG}>"


def tell_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with a system message that lists the tools and says how to call one."""
    lines: list[str] = []
    for at, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type", "function") != "function" or not isinstance(function, dict) or "name" not in function:
            raise OpenAIRefusal(
                400, f"tools[{at}] is {show(tool)}; give type function and a function with a name.", param="tools"
            )
        lines.append(json.dumps(function, ensure_ascii=False))
    how = f'Call a tool by writing <{TAG}>{{"name": "...", "arguments": {{...}}}}</{TAG}>.'
    told = "\n".join(["Tools:", *lines, how])
    first = dict(messages[0]) if messages else {}
    if first.get("role") == "system":
        first["content"] = f"{first.get('content') or ''}\n\n{told}"
        return [first, *map(dict, messages[1:])]
    return [{"role": "system", "content": told}, *map(dict, messages)]


def split_calls(text: str) -> tuple[str, list[dict[str, Any]]]:
    """The text before the first call, and the calls; a call that cannot be read stays text."""
    before, tag, _ = text.partition(OPENING)
    calls = calls_in_text(text, tag=TAG) if tag else []
    if not calls or any(not call.name for call in calls):
        return text, []
    return before.rstrip(), [
        {
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
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
