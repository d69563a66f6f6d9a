"""`to_prompt_example`: rows of any kind -> prompt examples, for prompt tuning and self-distillation.

- {kind: to_prompt_example, params: {inputs: [question, context], expected_field: answer}}
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from ...errors import DataError
from ...protocols import Row
from ..chat import ANSWER_FIELDS, PROMPT_FIELDS, answer_of, first_field, last_index, messages_of
from ..fields import required
from ..shapes import checked_mapping, is_object
from ..transform import RowTransform, TransformConfig

_TYPED_KEYS = ("messages", "target_assistant", "instruction", "verifier", "inputs", "expected", "metadata")


class ToPromptExampleConfig(TransformConfig):
    """Which fields are inputs, and which is the expected output."""

    inputs: list[str] | dict[str, str] | None = Field(default=None, min_length=1)
    """Fields that become inputs, or input name -> field; by default `prompt`, which is what the row asks."""
    expected_field: str | None = Field(default=None, min_length=1)
    """Field that holds the expected output; by default the answer that the row leads to, if it has one."""


class ToPromptExample(RowTransform[ToPromptExampleConfig]):
    """Turns rows into prompt examples: named inputs and an expected output."""

    name: ClassVar[str] = "to_prompt_example"
    Config = ToPromptExampleConfig

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        chosen = self.cfg.inputs or []
        named = chosen if isinstance(chosen, dict) else {field: field for field in chosen}
        self._inputs = {name: required(field) for name, field in named.items()}

    def row(self, row: Row) -> Row:
        """The row with `inputs` and `expected`."""
        metadata = checked_mapping(row.get("metadata"), "metadata")
        if self._inputs:
            inputs = {name: read(row) for name, read in self._inputs.items()}
        else:
            prompt, context = _prompt_of(row)
            inputs = {"prompt": prompt}
            metadata = {**metadata, "context_messages": context} if context else metadata
        field = self.cfg.expected_field
        expected = required(field)(row) if field is not None else _answer_of(row)
        others = {key: value for key, value in row.items() if key not in _TYPED_KEYS}
        return {"inputs": inputs, "expected": expected, "metadata": metadata, **others}


def _prompt_of(row: Row) -> tuple[Any, list[Any]]:
    """What is asked in a row of any kind, and the messages before it."""
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
