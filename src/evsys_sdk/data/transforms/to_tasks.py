"""Conversations and other rows -> tasks: `chat_to_harbor_task` with a verifier, `to_prompt_example` with an answer."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from pydantic import Field, field_validator

from ...errors import DataError, show
from ...protocols import Row
from ..chat import ANSWER_FIELDS, PROMPT_FIELDS, answer_of, first_field, last_index, messages_of
from ..digest import digest
from ..fields import require
from ..shapes import check_mapping, is_object
from ..template import as_text
from ..transform import RowFunction, RowTransform, TransformConfig


class ChatToHarborTaskConfig(TransformConfig):
    """Verifier and expected answer of the tasks."""

    fn_name: str = Field(default="exact_match", min_length=1)
    """Name of the registered verifier function that scores an answer."""
    params: dict[str, Any] = {}
    """Params of the verifier function."""
    expected_field: str | None = Field(default=None, min_length=1)
    """Field of the expected answer; by default target_assistant or the last assistant turn."""
    expected_pattern: str | None = Field(default=None, min_length=1)
    """Regular expression that extracts the expected answer from that text: its first group, or the whole match."""
    require_expected: bool = True
    """Whether a row without an expected answer is an error; disable for verifiers that need none."""
    task_id_field: str | None = Field(default=None, min_length=1)
    """Field of the task's id; by default task_id, else a fingerprint of the task."""

    @field_validator("expected_pattern")
    @classmethod
    def _is_a_pattern(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"{show(pattern)} is not a regular expression: {error}. Correct it.") from error
        return pattern


class ChatToHarborTask(RowTransform[ChatToHarborTaskConfig]):
    """Converts conversations to tasks: the last user message is the instruction, the answer is verified.

    - {kind: chat_to_harbor_task, params: {fn_name: exact_match, expected_pattern: "<answer>(.*?)</answer>"}}

    Earlier messages (system message, turns) go to `metadata.context_messages`, which rollouts put before the
    instruction.
    """

    name: ClassVar[str] = "chat_to_harbor_task"
    Config = ChatToHarborTaskConfig

    def begin(self) -> RowFunction:
        """Number the ids of equal tasks, with new counts for each pass."""
        times: dict[str, int] = {}

        def to_task(row: Row) -> Row:
            task = self._task(row)
            times[task["task_id"]] = count = times.get(task["task_id"], 0) + 1
            if count > 1:
                if self._read_id(row) is not None:
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
        expected = self._find_expected(row)
        metadata = check_mapping(row.get("metadata"), "metadata")
        if index:
            metadata = {**metadata, "context_messages": messages[:index]}
        # A hash of question and expected answer, so that ids do not depend on file or order.
        task_id = self._read_id(row) or f"task-{digest([messages[: index + 1], expected]).hex()[:12]}"
        verifier = {"kind": "in_process", "fn_name": self.cfg.fn_name, "expected": expected, "params": self.cfg.params}
        task = {"task_id": task_id, "instruction": instruction, "verifier": verifier, "metadata": metadata}
        replaced = {*task, "messages", "target_assistant"}
        return {**task, **{key: value for key, value in row.items() if key not in replaced}}

    def _find_expected(self, row: Row) -> Any:
        field = self.cfg.expected_field
        answer = answer_of(row) if field is None else require(field)(row)
        if answer is None:
            if self.cfg.require_expected:
                raise DataError("the row has no answer to expect. Set expected_field, or require_expected to false.")
            return None
        if self.cfg.expected_pattern is None:
            return answer
        text = as_text(answer, field or "answer")
        match = re.search(self.cfg.expected_pattern, text, re.DOTALL)
        if match is None:
            raise DataError(
                f"expected_pattern {show(self.cfg.expected_pattern)} does not match the answer {show(text)}."
            )
        return match[1] if match.re.groups else match[0]

    def _read_id(self, row: Row) -> str | None:
        field = self.cfg.task_id_field
        if field is not None:
            return as_text(require(field)(row), field)
        task_id = row.get("task_id")
        return None if task_id is None else as_text(task_id, "task_id")


_TYPED_KEYS = ("messages", "target_assistant", "instruction", "verifier", "inputs", "expected", "metadata")


class ToPromptExampleConfig(TransformConfig):
    """Input fields and the expected output."""

    inputs: list[str] | dict[str, str] | None = Field(default=None, min_length=1)
    """Input fields, or input name -> field; by default `prompt`, the question of the row."""
    expected_field: str | None = Field(default=None, min_length=1)
    """Field of the expected output; by default the row's answer, if any."""


class ToPromptExample(RowTransform[ToPromptExampleConfig]):
    """Converts rows to prompt examples: named inputs and an expected output.

    - {kind: to_prompt_example, params: {inputs: [question, context], expected_field: answer}}
    """

    name: ClassVar[str] = "to_prompt_example"
    Config = ToPromptExampleConfig

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        chosen = self.cfg.inputs or []
        fields = chosen if isinstance(chosen, dict) else {field: field for field in chosen}
        self._inputs = {name: require(field) for name, field in fields.items()}

    def row(self, row: Row) -> Row:
        """The row with `inputs` and `expected`."""
        metadata = check_mapping(row.get("metadata"), "metadata")
        if self._inputs:
            inputs = {name: read(row) for name, read in self._inputs.items()}
        else:
            prompt, context = _prompt_of(row)
            inputs = {"prompt": prompt}
            metadata = {**metadata, "context_messages": context} if context else metadata
        field = self.cfg.expected_field
        expected = require(field)(row) if field is not None else _answer_of(row)
        others = {key: value for key, value in row.items() if key not in _TYPED_KEYS}
        return {"inputs": inputs, "expected": expected, "metadata": metadata, **others}


def _prompt_of(row: Row) -> tuple[Any, list[Any]]:
    """The question of a row of any format, and the messages before it."""
    if "messages" in row:
        messages = messages_of(row)
        index = last_index(messages, "user")
        if index is None:
            raise DataError("the conversation has no user message that could be the prompt.")
        return messages[index].get("content"), messages[:index]
    name = "instruction" if "verifier" in row else first_field(row, PROMPT_FIELDS)
    if name is None or row.get(name) is None:
        raise DataError(
            f"the row has none of messages, {', '.join(PROMPT_FIELDS)}; it has: {', '.join(row) or 'nothing'}. "
            "Name its inputs, e.g. inputs: [my_field]."
        )
    return row[name], []


def _answer_of(row: Row) -> Any:
    if "messages" in row:
        return answer_of(row)
    verifier = row.get("verifier")
    if is_object(verifier):
        return verifier.get("expected")
    name = first_field(row, ("expected", *ANSWER_FIELDS))
    return None if name is None else row[name]
