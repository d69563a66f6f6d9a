"""The conversation that a row asks a model to continue, whatever kind of row it is."""

from __future__ import annotations

from ..data import TargetFormat, detect_format, parse_rows
from ..inference.renderer import row_messages
from ..protocols import Row
from ..rollouts.rollout import Message, opening


def prompt_of(row: Row) -> list[Message]:
    """What the model is shown: a task's opening, an example's inputs, or a conversation up to its last answer."""
    shape = detect_format(row)
    if shape == "harbor_task":
        [task] = parse_rows([row], TargetFormat.HARBOR_TASK)
        return opening(task)
    if shape == "prompt_dataset":
        [example] = parse_rows([row], TargetFormat.PROMPT_DATASET)
        return [{"role": "user", "content": "\n".join(str(value) for value in example.inputs.values())}]
    [chat] = parse_rows([row], TargetFormat.CHAT_MESSAGES)
    messages = [dict(message) for message in row_messages(chat)]
    return messages[:-1] if len(messages) > 1 and messages[-1]["role"] == "assistant" else messages
