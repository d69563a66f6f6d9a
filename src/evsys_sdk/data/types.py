"""The typed rows of all algorithms, and their verifier specs.

Plain data: `rows.py` validates it. Rows are treated as immutable; to change a message, create a new one.

    ChatMessagesRow([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}])
    HarborTask("t1", "What is 2+2?", InProcessVerifier("exact_match", expected="4"))
    PromptExample({"question": "2+2?"}, expected="4")
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

type Message = dict[str, Any]
"""One chat turn: `role`, `content` and provider-specific fields (`tool_calls`, `name` ...)."""

type Block = dict[str, Any]
"""One block of multimodal content, see `chat.py`."""

type Content = str | list[Block]

type ToolDefinition = dict[str, Any]
"""A function the assistant may call: `{"type": "function", "function": {"name", "description", "parameters"}}`."""


class TargetFormat(StrEnum):
    """The typed row that an algorithm consumes."""

    CHAT_MESSAGES = "chat_messages"
    """`ChatMessagesRow`: supervised fine-tuning."""
    HARBOR_TASK = "harbor_task"
    """`HarborTask`: reinforcement learning, validation and benchmarks."""
    PROMPT_DATASET = "prompt_dataset"
    """`PromptExample`: prompt tuning and self-distillation."""


@dataclass(frozen=True, slots=True)
class InProcessVerifier:
    """Scored by a registered Python function in this process."""

    fn_name: str
    expected: Any = None
    params: dict[str, Any] = field(default_factory=dict[str, Any])
    kind: Literal["in_process"] = field(default="in_process", init=False)


@dataclass(frozen=True, slots=True)
class E2BVerifier:
    """Scored by running tests with the model's output in a sandbox; the exit code decides."""

    dockerfile: str
    test_sh: str
    test_state_py: str = ""
    kind: Literal["e2b"] = field(default="e2b", init=False)


@dataclass(frozen=True, slots=True)
class LLMJudgeVerifier:
    """Scored by a model that reads the completion and a rubric."""

    judge_model: str
    rubric: str
    kind: Literal["llm_judge"] = field(default="llm_judge", init=False)


type VerifierPayload = InProcessVerifier | E2BVerifier | LLMJudgeVerifier
"""The verifier of a task, distinguished by `kind`."""


@dataclass(frozen=True, slots=True)
class ChatMessagesRow:
    """One conversation to train on."""

    messages: list[Message]
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    target_assistant: str | None = None
    """The answer after `messages`, for rows that store it separately."""
    tools: list[ToolDefinition] = field(default_factory=list[ToolDefinition])
    """The assistant's available tools; the model's chat template writes them into the prompt."""


@dataclass(frozen=True, slots=True)
class HarborTask:
    """One task to solve and verify."""

    task_id: str
    instruction: Content
    verifier: VerifierPayload
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    tools: list[ToolDefinition] = field(default_factory=list[ToolDefinition])
    """Tools of the policy; agents with their own tools ignore them."""


@dataclass(frozen=True, slots=True)
class PromptExample:
    """Named inputs of a prompt and the expected output."""

    inputs: dict[str, Any]
    expected: Any = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


type TypedRow = ChatMessagesRow | HarborTask | PromptExample
"""The output of `parse_rows`."""
