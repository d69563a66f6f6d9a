"""Every format is read from files of its producer, and damage is counted, never skipped silently or fatal.

The OpenTelemetry files were written by its own exporters (`fixtures/make_otel.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.errors import DataError
from evsys_sdk.loop.traces.reading import ImportReport, find_format, read_file, read_traces
from evsys_sdk.loop.traces.store import TraceStore, import_traces
from evsys_sdk.loop.traces.trace import BadRecord, Feedback, RewardRule, Trace, parse_time, work_out_reward

FIXTURES = Path(__file__).parent / "fixtures"
type Write = Callable[..., Path]


def read(path: Path) -> tuple[list[Trace], ImportReport]:
    report = ImportReport()
    return list(read_traces(read_file(path, report.spoil), find_format(path), report, where=path.name)), report


@pytest.mark.parametrize("name", ["otlp_file.jsonl", "otlp_protobuf.jsonl", "otel_console.json"])
def test_opentelemetry_in_every_encoding(name: str) -> None:
    traces, counts = read(FIXTURES / name)
    assert (len(traces), counts.bad_records) == (2, 0), "older conventions of other libraries are skipped"
    by_question = {next(m["content"] for m in trace.messages if m["role"] == "user"): trace for trace in traces}
    current = by_question["What is the weather in Rome?"]
    assert [m["role"] for m in current.messages] == ["system", "user", "assistant", "tool", "assistant"]
    call = current.messages[2]["tool_calls"][0]
    assert (call["id"], call["function"]["name"]) == ("c1", "weather")
    assert json.loads(call["function"]["arguments"]) == {"city": "Rome"}
    assert (current.messages[3]["content"], current.messages[4]["content"]) == ("sunny", "Sunny.")
    assert (current.conversation, current.model, current.usage) == ("conv-7", "small-1", {"input": 12, "output": 3})
    assert current.feedback == [Feedback("helpful", 1.0)]
    old = by_question["Say hello."]
    assert [m["role"] for m in old.messages] == ["system", "user", "assistant"]
    assert all(trace.time is not None and trace.time > 1.79e9 for trace in traces)


def test_one_span_has_one_id_however_it_was_encoded() -> None:
    ids = [
        {one.id_in("otel") for one in read(FIXTURES / name)[0]}
        for name in ("otlp_file.jsonl", "otlp_protobuf.jsonl", "otel_console.json")
    ]
    assert ids[0] == ids[1] == ids[2]
    assert len(ids[0]) == 2


def test_openai_rows_and_logs_of_requests(project: Path, write: Write) -> None:
    log = {
        "time": "2026-11-15T10:00:00Z",
        "request": {"model": "m", "messages": [{"role": "developer", "content": "Be brief."}]},
        "response": {
            "id": "r1",
            "choices": [{"message": {"content": None, "tool_calls": [{"id": "c", "function": {"name": "f"}}]}}],
            "usage": {"prompt_tokens": 4, "completion_tokens": 2},
        },
    }
    row = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "feedback": "thumbs_up"}
    [first, second], _ = read(write("log.jsonl", log, row))
    assert [m["role"] for m in first.messages] == ["system", "assistant"]
    assert first.messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": ""}
    assert (first.native_id, first.usage) == ("r1", {"input": 4, "output": 2})
    assert (second.messages[0]["content"], second.feedback) == ("Hi", [Feedback("feedback", "thumbs_up")])


HOSTILE: list[Any] = [
    "not json",
    "[1, 2]",
    '{"messages": "none"}',
    {"messages": [{"role": "wizard", "content": "x"}]},
    {"messages": [None]},
    {"messages": []},
    '{"messages": [{"role": "user", "content": "\\ud800"}]}',
    '{"a":' * 300 + "1" + "}" * 300,
    {"messages": [{"role": "user", "content": "ok"}], "time": "yesterday", "feedback": [1, None, {"value": {}}]},
    '{"time": 1e400, "messages": [{"role": "user", "content": "big"}]}',
]


def test_hostile_records_are_counted_and_the_others_kept(project: Path, write: Write) -> None:
    good = {"messages": [{"role": "user", "content": "fine"}]}
    report = import_traces("h", [write("h.jsonl", good, *HOSTILE)], format="openai_chat", most_bad=1.0)
    assert report.added >= 2
    assert report.bad_records >= 7
    assert "it is not a JSON object" in report.reasons
    assert report.reasons["it is not a JSON object"] == "h.jsonl:2"
    assert len(list(TraceStore("h").read())) == report.added


def test_too_many_bad_records_are_an_error_that_names_the_first(project: Path, write: Write) -> None:
    with pytest.raises(DataError, match=r"1 of 2 records could not be read, first h\.jsonl:2: it is not a JSON object"):
        import_traces("h", [write("h.jsonl", {"messages": [{"role": "user", "content": "x"}]}, "oops")])


def test_what_is_no_trace_is_refused_with_the_formats(project: Path, write: Write) -> None:
    with pytest.raises(DataError, match="none of its first 1 records looks like one of otel"):
        find_format(write("x.jsonl", {"loss": 1.0}))
    with pytest.raises(DataError, match="Did you mean 'openai_chat'"):
        find_format(Path("x.jsonl"), "openai_chut")
    with pytest.raises(DataError, match="there is no such file"):
        find_format(Path("nowhere.jsonl"))


def test_a_file_that_breaks_off_is_an_error_and_not_less(project: Path) -> None:
    Path("cut.json").write_text('[{"messages": [{"role": "user", "content": "x"}]}', "utf-8")
    with pytest.raises(DataError, match="from character 1 on this is not JSON"):
        import_traces("h", [Path("cut.json")])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-11-15T10:00:00Z", 1794736800.0),
        ("2026-11-15 10:00:00.500000", 1794736800.5),
        (1794736800, 1794736800.0),
        ("1794736800000000000", 1794736800.0),
        (1794736800000, 1794736800.0),
        ("soon", None),
        (True, None),
        (float("nan"), None),
        (-5, None),
    ],
)
def test_times_in_any_spelling(value: Any, expected: float | None) -> None:
    assert parse_time(value) == expected


def test_feedback_becomes_a_reward_with_its_rule() -> None:
    feedback = [Feedback("stars", 4), Feedback("thumb", "down"), Feedback("note", "so so")]
    reward, lines = work_out_reward(feedback, [RewardRule.parse("stars=1:5"), RewardRule.parse("thumb")])
    assert reward == pytest.approx(0.375)
    assert lines[0] == {"name": "stars", "value": 4, "reward": 0.75, "scale": [1.0, 5.0]}
    assert lines[2]["reward"] is None
    assert work_out_reward([Feedback("x", 7)], ())[0] is None
    for text in ("", "a=1", "a=1:1", "a=x:y"):
        with pytest.raises(BadRecord, match="NAME=LOW:HIGH"):
            RewardRule.parse(text)
