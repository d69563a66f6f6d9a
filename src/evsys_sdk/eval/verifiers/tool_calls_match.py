"""`tool_calls_match`: the policy called the expected tools.

    {fn_name: tool_calls_match, expected: [{name: search, arguments: {query: weather}}], params: {arguments: subset}}

Calls are read from `tool_calls` of the assistant's messages; in messages without `tool_calls`, from
`<tool_call>{"name": ..., "arguments": {...}}</tool_call>` in the text.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from ...config.base import Strict
from ...data.types import HarborTask, Message
from ...errors import MISSING
from ...protocols import VerificationResult
from ..answers.compare import ValueComparison, count_pairs, longest_common
from ..answers.tool_call import UNREADABLE, ParsedToolCall, calls_in, calls_in_text, read_expected_calls
from ..verifier import BaseVerifier


class ToolCallsMatchParams(Strict):
    """The options for reading and comparing calls."""

    arguments: Literal["exact", "subset", "ignore"] = "exact"
    """Whether arguments must equal the expected ones, must include them, or are ignored."""
    any_order: bool = False
    """Whether the calls may be in any order."""
    extra_calls: bool = False
    """Whether calls beyond the expected ones are allowed."""
    partial_credit: bool = False
    """Whether the reward is the share of matching calls; otherwise it is 1 or 0."""
    turns: Literal["all", "last"] = "all"
    """Whether to read the calls of all assistant messages or only of the last one."""
    tag: str | None = Field(default="tool_call", min_length=1)
    """Tag around calls in the text; null to ignore calls in the text."""
    ignore_argument_order: bool = False
    """Whether lists among the arguments may be in any order."""
    relative_tolerance: float = Field(default=1e-9, ge=0, le=1)
    """Maximum difference of numbers among the arguments, relative to the expected number."""


class ToolCallsMatch(BaseVerifier[ToolCallsMatchParams]):
    """1 if the policy called the expected tools with the expected arguments."""

    name: ClassVar[str] = "tool_calls_match"
    Config = ToolCallsMatchParams

    def verify(
        self, *, completion: str, target: Any, messages: list[Message], task: HarborTask | None
    ) -> VerificationResult:
        """Compare the policy's calls with the expected calls."""
        expected = read_expected_calls(target)
        calls = self._find_calls(completion, _answers(messages, task))
        count = count_pairs if self.cfg.any_order else longest_common
        matched = count(calls, expected, self._fits)
        n_required = len(expected) if self.cfg.extra_calls else max(len(expected), len(calls))
        share = matched / n_required if n_required else 1.0
        info = {
            "calls": [call.to_dict() for call in calls],
            "matched": matched,
            "unreadable": sum(call is UNREADABLE for call in calls),
        }
        return VerificationResult(share if self.cfg.partial_credit else float(share == 1.0), info)

    def _find_calls(self, completion: str, answers: list[Message]) -> list[ParsedToolCall]:
        if answers:
            return calls_in(answers[-1:] if self.cfg.turns == "last" else answers, tag=self.cfg.tag)
        return [] if self.cfg.tag is None else calls_in_text(completion, tag=self.cfg.tag)

    def _fits(self, call: ParsedToolCall, expected: ParsedToolCall) -> bool:
        if call is UNREADABLE or call.name != expected.name:
            return False
        if self.cfg.arguments == "ignore" or expected.arguments is MISSING:
            return True
        compare = ValueComparison(
            relative_tolerance=self.cfg.relative_tolerance,
            extra_keys=self.cfg.arguments == "subset",
            ignore_order=self.cfg.ignore_argument_order,
        )
        return compare.same(call.arguments, expected.arguments)


def _answers(messages: list[Message], task: HarborTask | None) -> list[Message]:
    """Return the assistant messages that the policy wrote, without those of the given context."""
    answers = [message for message in messages if message.get("role") == "assistant"]
    context: list[Message] = list(task.metadata.get("context_messages", ())) if task else []
    return answers[sum(message.get("role") == "assistant" for message in context) :]
