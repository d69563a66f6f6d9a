"""Tool calls are read back from what templates of each family write, and anything else stays text."""

from __future__ import annotations

from typing import Any

import pytest

from evsys_sdk.inference.tool_parsers import PARSERS, find_parser, parse_message

BEGIN, SEP = "<\uff5ctool\u2581call\u2581begin\uff5c>", "<\uff5ctool\u2581sep\uff5c>"
END, CALLS = "<\uff5ctool\u2581call\u2581end\uff5c>", "<\uff5ctool\u2581calls\u2581{}\uff5c>"
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "look", "arguments": {"city": "Paris"}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=look>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
    "mistral": '[TOOL_CALLS] [{"name": "look", "arguments": {"city": "Paris"}, "id": "call00001"}]',
    "deepseek_v3": CALLS.format("begin") + BEGIN + "function" + SEP + 'look\n```json\n{"city": "Paris"}\n```' + END
    + CALLS.format("end"),
    "llama3_json": '{"name": "look", "parameters": {"city": "Paris"}}',
    "pythonic": "[look(city='Paris')]",
}  # fmt: skip
"""How templates of the families write one call; in the structure of the published ones."""


@pytest.mark.parametrize("family", WRITTEN)
def test_the_parser_of_a_family_is_found_by_what_its_template_writes(family: str) -> None:
    parser = find_parser(WRITTEN[family] + "<|eot_id|>", "look", {"city": "Paris"})
    assert parser is PARSERS[family]
    content, [call] = parser.parse(WRITTEN[family])
    assert (content, call.name, call.arguments) == ("", "look", {"city": "Paris"})


def test_an_argument_may_hold_the_mark_that_ends_a_call() -> None:
    written = '<tool_call>\n{"name": "look", "arguments": {"city": "</tool_call>"}}\n</tool_call>'
    _, calls = PARSERS["hermes"].parse(f"{written}\n{written}")
    assert [call.arguments for call in calls] == [{"city": "</tool_call>"}] * 2


@pytest.mark.parametrize("family", ["hermes", "mistral", "deepseek_v3", "qwen3_coder"])
def test_text_before_a_call_is_content_and_calls_in_the_thinking_are_not_made(family: str) -> None:
    message = parse_message(
        f"<think>\n{WRITTEN[family]}\n</think>\n\nLet me look. {WRITTEN[family]}", PARSERS[family], ()
    )
    assert message["content"].endswith("</think>\n\nLet me look.")
    assert len(message["tool_calls"]) == 1
    assert PARSERS[family].parse(f"<think>\n{WRITTEN[family]}\n</think>\n\nNo.")[1] == []


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", "<tool_call>oops</tool_call>"),
        ("hermes", '<tool_call>{"name": "f", "arguments": "x"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f"'),
        ("qwen3_coder", '<tool_call>{"name": "f"}</tool_call>'),
        ("mistral", "[TOOL_CALLS] nothing"),
        ("llama3_json", 'so {"name": "f", "parameters": {}}'),
        ("llama3_json", '{"name": "f", "parameters": {}} and more'),
        ("pythonic", "[1, 2]"),
        ("pythonic", "[f(__import__('os'))]"),
        ("pythonic", "see [f(x=1)]"),
    ],
)
def test_calls_that_cannot_be_read_stay_text(family: str, text: str) -> None:
    assert PARSERS[family].parse(text) == (text, [])


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", WRITTEN["hermes"] * 2),
        ("mistral", '[TOOL_CALLS]look[ARGS]{"city": "Paris"}[TOOL_CALLS]look{"city": "Paris"}'),
        ("llama3_json", f"{WRITTEN['llama3_json']}; {WRITTEN['llama3_json']}"),
        ("pythonic", "[look(city='Paris'), look(city='Paris')]"),
    ],
)
def test_several_calls_have_their_own_ids(family: str, text: str) -> None:
    message = parse_message(text, PARSERS[family], ())
    ids: list[Any] = [call["id"] for call in message["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(len(one) == 9 and one.isalnum() for one in ids)


def test_values_without_quotes_have_the_type_of_their_schema() -> None:
    schema = {"properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}
    text = "<tool_call><function=f><parameter=n>3</parameter><parameter=s>3</parameter></function></tool_call>"
    _, [call] = PARSERS["qwen3_coder"].parse(
        text, [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    )
    assert call.arguments == {"n": 3, "s": "3"}
