"""The conversation in a row, whatever kind of row it is."""

from __future__ import annotations

from ..data import TargetFormat, detect_format, parse_rows
from ..inference.renderer import row_messages
from ..protocols import Row
from ..rollouts.rollout import Message, opening


def conversation_of(row: Row) -> list[Message]:
    """Everything that is said in a row: a task's opening, an example's inputs, or a whole conversation."""
    shape = detect_format(row)
    if shape == "harbor_task":
        [task] = parse_rows([row], TargetFormat.HARBOR_TASK)
        return opening(task)
    if shape == "prompt_dataset":
        [example] = parse_rows([row], TargetFormat.PROMPT_DATASET)
        return [{"role": "user", "content": "\n".join(str(value) for value in example.inputs.values())}]
    [chat] = parse_rows([row], TargetFormat.CHAT_MESSAGES)
    return [dict(message) for message in row_messages(chat)]


def prompt_of(row: Row) -> list[Message]:
    """What the model is shown: the conversation up to its last answer."""
    messages = conversation_of(row)
    return messages[:-1] if len(messages) > 1 and messages[-1]["role"] == "assistant" else messages
