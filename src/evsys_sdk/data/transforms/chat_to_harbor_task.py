"""`chat_to_harbor_task`: conversations -> tasks with a verifier, for reinforcement learning and benchmarks.

    - {kind: chat_to_harbor_task, params: {fn_name: exact_match, expected_pattern: "<answer>(.*?)</answer>"}}

The last user message is the instruction. What stands before it (system message, earlier turns) goes to
`metadata.context_messages`, which rollouts put in front of the instruction.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from pydantic import Field, field_validator

from ...errors import DataError, show
from ...protocols import Row
from ..chat import answer_of, last_index, messages_of
from ..digest import digest
from ..fields import required
from ..shapes import checked_mapping
from ..template import as_text
from ..transform import RowFunction, RowTransform, TransformConfig


class ChatToHarborTaskConfig(TransformConfig):
    """How answers are verified, and what the right answer is."""

    fn_name: str = Field(default="exact_match", min_length=1)
    """Name of the registered verifier function that scores an answer."""
    params: dict[str, Any] = {}
    """Passed to the verifier function."""
    expected_field: str | None = Field(default=None, min_length=1)
    """Field that holds the right answer; by default target_assistant or the assistant's last turn."""
    expected_pattern: str | None = Field(default=None, min_length=1)
    """Regular expression that finds the right answer in that text: its first group, or all of it when it has none."""
    require_expected: bool = True
    """Whether a row without a right answer is an error; turn off for verifiers that need none."""
    task_id_field: str | None = Field(default=None, min_length=1)
    """Field that names the task; by default task_id, or else a fingerprint of the task."""

    @field_validator("expected_pattern")
    @classmethod
    def _is_a_pattern(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"{show(pattern)} is not a regular expression: {error}. Correct it.") from error
        return pattern


class ChatToHarborTask(RowTransform[ChatToHarborTaskConfig]):
    """Turns conversations into tasks: the last user message to follow, the answer to verify."""

    name: ClassVar[str] = "chat_to_harbor_task"
    Config = ChatToHarborTaskConfig

    def begin(self) -> RowFunction:
        """Equal tasks get numbered ids, so ids are counted anew in each pass."""
        times: dict[str, int] = {}

        def to_task(row: Row) -> Row:
            task = self._task(row)
            times[task["task_id"]] = count = times.get(task["task_id"], 0) + 1
            if count > 1:
                if self._given_id(row) is not None:
                    raise DataError(f"the task id {show(task['task_id'])} was used by an earlier row. Make ids unique.")
                task["task_id"] += f"-{count}"
            return task

        return to_task

    def _task(self, row: Row) -> Row:
        messages = messages_of(row)
        index = last_index(messages, "user")
        if index is None:
            raise DataError("the conversation has no user message that could be the instruction.")
        instruction = messages[index].get("content")
        expected = self._expected(row)
        metadata = checked_mapping(row.get("metadata"), "metadata")
        if index:
            metadata = {**metadata, "context_messages": messages[:index]}
        task_id = self._given_id(row) or f"task-{digest([messages[: index + 1], expected]).hex()[:12]}"
        verifier = {"kind": "in_process", "fn_name": self.cfg.fn_name, "expected": expected, "params": self.cfg.params}
        task = {"task_id": task_id, "instruction": instruction, "verifier": verifier, "metadata": metadata}
        replaced = {*task, "messages", "target_assistant"}
        return {**task, **{key: value for key, value in row.items() if key not in replaced}}

    def _expected(self, row: Row) -> Any:
        field = self.cfg.expected_field
        answer = answer_of(row) if field is None else required(field)(row)
        if answer is None:
            if self.cfg.require_expected:
                raise DataError("the row has no answer to expect. Set expected_field, or require_expected to false.")
            return None
        if self.cfg.expected_pattern is None:
            return answer
        text = as_text(answer, field or "answer")
        found = re.search(self.cfg.expected_pattern, text, re.DOTALL)
        if found is None:
            raise DataError(
                f"expected_pattern {show(self.cfg.expected_pattern)} finds nothing in the answer {show(text)}."
            )
        return found[1] if found.re.groups else found[0]

    def _given_id(self, row: Row) -> str | None:
        field = self.cfg.task_id_field
        if field is not None:
            return as_text(required(field)(row), field)
        given = row.get("task_id")
        return None if given is None else as_text(given, "task_id")
