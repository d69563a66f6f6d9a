"""Rows with a known target -> tasks with a verifier.

The prompt is the row's conversation before its last assistant turn; the target is that turn or else the row's `answer`
or `tool_slug`. Rows that are tasks keep their verifier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..data import ChatMessagesRow, HarborTask, InProcessVerifier, TargetFormat, detect_format, from_dict, parse_rows
from ..data.types import Message, ToolDefinition, VerifierPayload
from ..errors import DataError
from ..inference.conversation import text_messages
from ..inference.renderer import row_messages
from ..protocols import Row

EXACT = "exact_match"
"""Default verifier: the text in the answer tag, or else the whole answer, must equal the target."""
CALLS = "tool_calls_match"
"""Verifier of rows whose target calls tools."""
_TARGETS = ("answer", "tool_slug")


def tasks_of_rows(rows: Sequence[Row]) -> list[HarborTask]:
    """Turn rows of chats, of prompts with an answer, or of tasks into tasks; each needs an expected answer."""
    if not rows:
        raise DataError("there are no rows to score. Check eval.eval_data and its transforms.")
    if all(detect_format(row) == TargetFormat.HARBOR_TASK for row in rows):
        return [cast("HarborTask", from_dict(row)) for row in rows]
    chats = parse_rows((_as_chat(row) for row in rows), TargetFormat.CHAT_MESSAGES)
    return [_task_of_chat(chat, number) for number, chat in enumerate(chats, start=1)]


def task_of(
    task_id: str,
    messages: Sequence[Message],
    verifier: VerifierPayload,
    metadata: Mapping[str, Any] | None = None,
    tools: Sequence[ToolDefinition] = (),
) -> HarborTask:
    """The task of continuing a conversation."""
    metadata = {key: value for key, value in (metadata or {}).items() if key != "context_messages"}
    *context, last = messages
    if set(last) != {"role", "content"} or last["role"] != "user":  # for example a tool result: keep it in the context
        return HarborTask(task_id, "", verifier, {**metadata, "context_messages": list(messages)}, list(tools))
    history = {"context_messages": context} if context else {}
    return HarborTask(task_id, last["content"], verifier, {**metadata, **history}, list(tools))


def target_of(task: HarborTask) -> str:
    """The expected answer of a task as text; empty if it has none."""
    expected: Any = getattr(task.verifier, "expected", None)
    return "" if expected is None else str(expected)


def _as_chat(row: Row) -> Row:
    if "prompt" not in row or "messages" in row:
        return row
    prompt = row["prompt"]
    messages = cast("list[Any]", prompt) if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    return {"messages": messages, **{key: value for key, value in row.items() if key != "prompt"}}


def _task_of_chat(chat: ChatMessagesRow, number: int) -> HarborTask:
    messages = row_messages(chat)
    last = max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=0)
    target = next((chat.metadata[key] for key in _TARGETS if key in chat.metadata), None)
    if last and (target is None or last == len(messages) - 1):
        [answer] = text_messages(messages[last : last + 1])
        messages, target = messages[:last], answer["content"]
        if calls := answer.get("tool_calls"):  # the calls are the answer, not the text around them
            verifier = InProcessVerifier(CALLS, expected=[call["function"] for call in calls])
            return task_of(f"row-{number}", messages, verifier, chat.metadata, chat.tools)
    if target is None:
        raise DataError(
            f"eval row {number} has no assistant turn, 'answer' or 'tool_slug' to compare with. Add one of them."
        )
    verifier = InProcessVerifier(EXACT, expected=str(target))
    return task_of(f"row-{number}", messages, verifier, chat.metadata, chat.tools)
