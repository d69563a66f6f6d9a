"""Plain dicts <-> typed rows.

`from_dict`, `to_dict` and `iter_jsonl` are strict, for files of typed rows. `parse_rows` is the last step of a
pipeline: additional fields of raw rows become metadata of the typed row.

    row = from_dict({"messages": [{"role": "user", "content": "hi"}]})
    to_dict(row)
    for row in parse_rows(rows, TargetFormat.CHAT_MESSAGES, source="data/train.jsonl"): ...
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, overload

from ..errors import DataError, show
from ..protocols import Row
from .jsonl import iter_numbered_rows, read_jsonl
from .shapes import (
    check_content,
    check_mapping,
    check_messages,
    check_text,
    check_tools,
    is_list,
    is_object,
    refuse_keys,
    verifier_from_dict,
)
from .types import (
    ChatMessagesRow,
    E2BVerifier,
    HarborTask,
    InProcessVerifier,
    LLMJudgeVerifier,
    PromptExample,
    TargetFormat,
    TypedRow,
    VerifierPayload,
)

__all__ = ["detect_format", "from_dict", "iter_jsonl", "parse_rows", "read_jsonl", "to_dict"]

_REQUIRED: dict[TargetFormat, tuple[str, ...]] = {
    TargetFormat.CHAT_MESSAGES: ("messages",),
    TargetFormat.HARBOR_TASK: ("task_id", "instruction", "verifier"),
    TargetFormat.PROMPT_DATASET: ("inputs",),
}
_OPTIONAL: dict[TargetFormat, tuple[str, ...]] = {
    TargetFormat.CHAT_MESSAGES: ("metadata", "target_assistant", "tools"),
    TargetFormat.HARBOR_TASK: ("metadata", "tools"),
    TargetFormat.PROMPT_DATASET: ("expected", "metadata"),
}
_MADE_BY = {
    TargetFormat.CHAT_MESSAGES: "jsonl_to_chat",
    TargetFormat.HARBOR_TASK: "chat_to_harbor_task",
    TargetFormat.PROMPT_DATASET: "to_prompt_example",
}
"""Format -> the built-in transform that leads to it."""
_FORMAT_OF: dict[type, TargetFormat] = {
    ChatMessagesRow: TargetFormat.CHAT_MESSAGES,
    HarborTask: TargetFormat.HARBOR_TASK,
    PromptExample: TargetFormat.PROMPT_DATASET,
}
_MOST_KEY_SETS = 1000
"""Maximum number of cached key sets; rows of one file rarely have more than a few."""

type _Builder = Callable[[Mapping[str, Any]], TypedRow]
"""Validates a row whose keys are known to be correct, and builds the typed row."""


def detect_format(row: Mapping[str, Any]) -> Literal["chat_messages", "harbor_task", "prompt_dataset", "unknown"]:
    """The typed row of a dict, by its keys only."""
    if not isinstance(row, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        return "unknown"
    format = _format_by_keys(row)
    if format is TargetFormat.CHAT_MESSAGES and isinstance(row["messages"], list):
        return "chat_messages"
    if format is TargetFormat.HARBOR_TASK:
        return "harbor_task"
    if format is TargetFormat.PROMPT_DATASET and isinstance(row["inputs"], Mapping):
        return "prompt_dataset"
    return "unknown"


def from_dict(row: Mapping[str, Any]) -> TypedRow:
    """The typed row of a dict in one of the three formats; refuses unknown keys and wrong types."""
    if not isinstance(row, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DataError(f"a row must be a dict, not {type(row).__name__} ({show(row)}).")
    format = _format_by_keys(row)
    if format is None:
        raise DataError(_explain_unknown_format(row))
    _refuse_missing(row, format)
    refuse_keys(row, known=(*_REQUIRED[format], *_OPTIONAL[format]))
    return _BUILDERS[format](())(row)


def to_dict(row: TypedRow | VerifierPayload) -> Row:
    """The JSON form of a typed row, sharing its parts; the inverse of `from_dict`."""
    match row:
        case ChatMessagesRow():
            fields: Row = {"messages": row.messages, "metadata": row.metadata}
            if row.target_assistant is not None:
                fields["target_assistant"] = row.target_assistant
            return {**fields, "tools": row.tools} if row.tools else fields
        case HarborTask():
            head: Row = {"task_id": row.task_id, "instruction": row.instruction}
            fields = {**head, "verifier": to_dict(row.verifier), "metadata": row.metadata}
            return {**fields, "tools": row.tools} if row.tools else fields
        case PromptExample():
            return {"inputs": row.inputs, "expected": row.expected, "metadata": row.metadata}
        case InProcessVerifier():
            return {"kind": row.kind, "fn_name": row.fn_name, "expected": row.expected, "params": row.params}
        case E2BVerifier():
            files = {"dockerfile": row.dockerfile, "test_sh": row.test_sh, "test_state_py": row.test_state_py}
            return {"kind": row.kind, **files}
        case LLMJudgeVerifier():
            return {"kind": row.kind, "judge_model": row.judge_model, "rubric": row.rubric}
    raise DataError(f"to_dict needs a typed row, not {type(row).__name__} ({show(row)}).")


def iter_jsonl(path: str | Path) -> Iterator[TypedRow]:
    """The typed rows of a JSONL file; formats may be mixed."""
    for number, row in iter_numbered_rows(path):
        try:
            yield from_dict(row)
        except DataError as error:
            raise DataError(f"{path}:{number}: {error}") from None


@overload
def parse_rows(
    rows: Iterable[Row | TypedRow], target: Literal[TargetFormat.CHAT_MESSAGES], source: str = ""
) -> Iterator[ChatMessagesRow]: ...
@overload
def parse_rows(
    rows: Iterable[Row | TypedRow], target: Literal[TargetFormat.HARBOR_TASK], source: str = ""
) -> Iterator[HarborTask]: ...
@overload
def parse_rows(
    rows: Iterable[Row | TypedRow], target: Literal[TargetFormat.PROMPT_DATASET], source: str = ""
) -> Iterator[PromptExample]: ...
@overload
def parse_rows(
    rows: Iterable[Row | TypedRow], target: TargetFormat | None = None, source: str = ""
) -> Iterator[TypedRow]: ...
def parse_rows(
    rows: Iterable[Row | TypedRow], target: TargetFormat | None = None, source: str = ""
) -> Iterator[TypedRow]:
    """Typed rows from the output of a pipeline, lazily; fields next to the row's own go into its metadata.

    With a `target`, every row must have that format; otherwise formats may be mixed.
    """
    target = TargetFormat(target) if target else None  # also accepts a plain string
    # Rows of one file share keys, so builders are cached by key set.
    builders: dict[tuple[str, ...], _Builder] = {}
    for number, row in enumerate(rows, 1):
        try:
            if not isinstance(row, dict):
                typed = _already_typed(row, target)
            else:
                keys = tuple(row)
                build = builders.get(keys)
                if build is None:
                    if len(builders) >= _MOST_KEY_SETS:  # bound the memory for rows with arbitrary keys
                        builders.clear()
                    build = builders[keys] = _builder(row, target)
                typed = build(row)
        except DataError as error:
            raise DataError(f"{source or 'data'}: row {number}: {error}") from None
        yield typed


def _metadata(row: Mapping[str, Any], extras: tuple[str, ...]) -> dict[str, Any]:
    metadata: Any = row.get("metadata")
    if metadata is None:
        return {key: row[key] for key in extras}
    if extras or metadata.__class__ is not dict:
        return _with_extras(check_mapping(metadata, "metadata"), row, extras)
    return metadata


def _refuse_hidden_tools(metadata: Mapping[str, Any]) -> None:
    """Refuse tool definitions in the metadata, from earlier versions of `openai_chat`."""
    hidden: Any = metadata.get("tools")
    if is_list(hidden) and hidden and is_object(hidden[0]) and "function" in hidden[0]:
        raise DataError(
            f"'metadata.tools' holds tool definitions ({show(hidden)}), which are not part of the prompt there. "
            "Move them to 'tools' of the row, or materialise the dataset again."
        )


def _chat_builder(extras: tuple[str, ...]) -> _Builder:
    def build(row: Mapping[str, Any]) -> ChatMessagesRow:
        answer = row.get("target_assistant")
        if answer is not None and not isinstance(answer, str):
            raise DataError(f"'target_assistant' must be text, not {show(answer)}.")
        metadata = _metadata(row, extras)
        _refuse_hidden_tools(metadata)
        return ChatMessagesRow(check_messages(row["messages"]), metadata, answer, check_tools(row.get("tools")))

    return build


def _task_builder(extras: tuple[str, ...]) -> _Builder:
    def build(row: Mapping[str, Any]) -> HarborTask:
        task_id = check_text(row["task_id"], "task_id")
        instruction = check_content(row["instruction"], "instruction")
        verifier, metadata = verifier_from_dict(row["verifier"]), _metadata(row, extras)
        return HarborTask(task_id, instruction, verifier, metadata, check_tools(row.get("tools")))

    return build


def _example_builder(extras: tuple[str, ...]) -> _Builder:
    def build(row: Mapping[str, Any]) -> PromptExample:
        inputs = row["inputs"]
        if not is_object(inputs):
            raise DataError(f"'inputs' must be an object of named inputs, not {show(inputs)}.")
        return PromptExample(inputs, row.get("expected"), _metadata(row, extras))

    return build


_BUILDERS: dict[TargetFormat, Callable[[tuple[str, ...]], _Builder]] = {
    TargetFormat.CHAT_MESSAGES: _chat_builder,
    TargetFormat.HARBOR_TASK: _task_builder,
    TargetFormat.PROMPT_DATASET: _example_builder,
}
"""Format -> factory of builders for rows with the given extra keys, which become metadata."""


def _format_by_keys(row: Mapping[str, Any]) -> TargetFormat | None:
    # Tasks first: their keys are the most specific, and they may keep the messages of a conversation.
    if "instruction" in row and "verifier" in row:
        return TargetFormat.HARBOR_TASK
    if "messages" in row:
        return TargetFormat.CHAT_MESSAGES
    return TargetFormat.PROMPT_DATASET if "inputs" in row else None


def _builder(row: Row, target: TargetFormat | None) -> _Builder:
    format = target or _format_by_keys(row)
    if format is None:
        raise DataError(_explain_unknown_format(row))
    _refuse_missing(row, format, target=target)
    known = (*_REQUIRED[format], *_OPTIONAL[format])
    extras = tuple(key for key in row if key not in known)
    # A column `tool` is common in rows of tool calls, and not a misspelt `tools`.
    absent = [key for key in known if key not in row and key != "tools"]
    for key in extras:
        meant = difflib.get_close_matches(str(key).casefold(), absent, n=1, cutoff=0.8)
        if meant:  # probably a typo
            raise DataError(f"unknown key '{key}'; did you mean '{meant[0]}'? If not, rename it with rename_fields.")
    return _BUILDERS[format](extras)


def _refuse_missing(row: Mapping[str, Any], format: TargetFormat, target: TargetFormat | None = None) -> None:
    missing = [key for key in _REQUIRED[format] if key not in row]
    if not missing:
        return
    actual = _format_by_keys(row) if target else None
    state = f"it is a {actual} row" if actual and actual is not format else f"it has the keys {_keys(row)}"
    raise DataError(
        f"a {format} row needs {' and '.join(f"'{key}'" for key in missing)}, but {state}. "
        f"Add {'them' if missing[1:] else 'it'}, or convert rows with the transform {_MADE_BY[format]}."
    )


def _with_extras(metadata: Mapping[str, Any], row: Mapping[str, Any], extras: tuple[str, ...]) -> dict[str, Any]:
    merged = dict(metadata)
    for key in extras:
        value = row[key]
        if merged.get(key, value) != value:
            raise DataError(
                f"'{key}' is both in the row ({show(value)}) and in its metadata ({show(merged[key])}). "
                "Rename or drop one with rename_fields or drop_fields."
            )
        merged[key] = value
    return merged


def _already_typed(row: Any, target: TargetFormat | None) -> TypedRow:
    format = _FORMAT_OF.get(row.__class__)
    if format is None:
        raise DataError(f"a row must be a dict, not {type(row).__name__} ({show(row)}).")
    if target and format is not target:
        raise DataError(f"a {target} row is needed, but this is a {format} row. Use the transform {_MADE_BY[target]}.")
    return from_dict(to_dict(row))  # rows built by hand are not yet validated


def _explain_unknown_format(row: Mapping[str, Any]) -> str:
    hint = "sharegpt_to_chat" if "conversations" in row else "jsonl_to_chat"
    return (
        f"the row is in no known format; it has the keys {_keys(row)}. A chat row needs 'messages', a task needs "
        f"'task_id', 'instruction' and 'verifier', a prompt example needs 'inputs'. Add a transform, e.g. {hint}."
    )


def _keys(row: Mapping[str, Any]) -> str:
    names = [str(key) for key in row]
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if names[12:] else "") if names else "(none)"
