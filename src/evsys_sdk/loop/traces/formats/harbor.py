"""Harbor's trajectories (ATIF): one file a trial, with steps of system, user and agent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ....data.types import Message
from ..trace import BadRecord, Trace, as_list, as_object, as_text, parse_time, tool_call

NAME = "harbor"
_ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def is_mine(record: Mapping[str, Any]) -> bool:
    """Whether a record looks like this format."""
    return str(record.get("schema_version") or "").startswith("ATIF-") and "steps" in record


def read(record: Mapping[str, Any]) -> Iterator[Trace]:
    """The whole trajectory; steps that were copied from an earlier one are context."""
    version = str(record.get("schema_version") or "")
    if not version.startswith("ATIF-v1"):
        raise BadRecord(f"its schema_version is {version!r}, and ATIF-v1 is read")
    messages: list[Message] = []
    for raw in as_list(record.get("steps")):
        messages += _read_step(as_object(raw))
    if not messages:
        raise BadRecord("it has no steps")
    agent, steps = as_object(record.get("agent")), [as_object(one) for one in as_list(record.get("steps"))]
    totals = as_object(record.get("final_metrics"))
    counts = {"input": totals.get("total_prompt_tokens"), "output": totals.get("total_completion_tokens")}
    yield Trace(
        str(record.get("trajectory_id") or record.get("session_id") or ""),
        messages,
        next((at for one in steps if (at := parse_time(one.get("timestamp"))) is not None), None),
        str(record.get("session_id") or ""),
        str(agent.get("model_name") or ""),
        [],
        {name: value for name, value in counts.items() if isinstance(value, int)},
    )


def _read_step(step: Mapping[str, Any]) -> Iterator[Message]:
    role = _ROLES.get(str(step.get("source")))
    if role is None:
        raise BadRecord(f"a step has the source {step.get('source')!r}")
    message: Message = {"role": role, "content": as_text(step.get("message"))}
    calls = [as_object(one) for one in as_list(step.get("tool_calls"))]
    if calls:
        message["tool_calls"] = [
            tool_call(one.get("tool_call_id"), one.get("function_name"), one.get("arguments", "")) for one in calls
        ]
    yield message
    for raw in as_list(as_object(step.get("observation")).get("results")):
        result = as_object(raw)
        seen: Message = {"role": "tool", "content": as_text(result.get("content"))}
        if isinstance(result.get("source_call_id"), str):
            seen["tool_call_id"] = result["source_call_id"]
        yield seen
