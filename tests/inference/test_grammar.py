"""Answers that keep a form: filters allow exactly the tokens that lead to it."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("llguidance", reason="needs the extra `grammar`")

from evsys_sdk.backends.mock.tokenizer import ByteTokenizer
from evsys_sdk.errors import DataError
from evsys_sdk.inference.grammar import Grammar, answer_grammar

TOKENIZER = ByteTokenizer()
END = TOKENIZER.eos_token_id
CITY = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY}}


def write(grammar: Grammar, text: str) -> list[int]:
    """The tokens that may follow a text; fails where one of its tokens is not allowed."""
    built = grammar()
    for at, token in enumerate(TOKENIZER.encode(text)):
        assert token in built.allowed(), f"{text[:at]!r} cannot go on with {text[at]!r}"
        built.accept(token)
    return [int(token) for token in built.allowed()]


def test_json_of_a_schema_ends_with_the_end_of_a_turn() -> None:
    assert write(answer_grammar(TOKENIZER, schema=CITY, ends=[END]), '{"city": "Rome"}') == [END]
    assert write(answer_grammar(TOKENIZER, schema=CITY), '{"city": "Rome"}') == []
    assert write(answer_grammar(TOKENIZER, schema=CITY, ends=[END]), '{"city": "') == [ord("O"), ord("R")]


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'),
        ("llama3_json", '{"name": "weather", "parameters": {"city": "Oslo"}}'),
        ("mistral", '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}}]'),
    ],
)
def test_a_forced_call_is_written_as_its_parser_reads_it(parser: str, text: str) -> None:
    other: dict[str, Any] = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}
    for tools in ([TOOL], [TOOL, other]):
        assert write(answer_grammar(TOKENIZER, tools=tools, parser=parser, ends=[END]), text) == [END]


def test_thinking_that_the_prompt_has_begun_is_free() -> None:
    grammar = answer_grammar(TOKENIZER, schema={"type": "object"}, ends=[END], after_thinking=True)
    assert write(grammar, "hm, a city </think>") == [ord("{")]
    assert END not in write(grammar, "hm")


def test_what_cannot_be_kept_is_refused() -> None:
    with pytest.raises(DataError, match="is not supported"):
        answer_grammar(TOKENIZER, schema={"type": "no such type"})
    with pytest.raises(DataError, match="'pythonic' cannot be forced"):
        answer_grammar(TOKENIZER, tools=[TOOL], parser="pythonic")


def test_any_object_is_an_object() -> None:
    end = write(answer_grammar(TOKENIZER, schema={"type": "object"}, ends=[END]), json.dumps({"a": [1, {"b": None}]}))
    assert end == [END]


def test_an_answer_may_be_a_call_or_json() -> None:
    grammar = answer_grammar(TOKENIZER, schema={"type": "object"}, tools=[TOOL], parser="hermes", ends=[END])
    assert write(grammar, "") == [ord("<"), ord("{")]


def test_an_object_may_have_other_properties_if_the_schema_allows_them() -> None:
    grammar = answer_grammar(TOKENIZER, schema={**CITY, "additionalProperties": {"type": "integer"}}, ends=[END])
    assert write(grammar, '{"city": "Rome", "a": 1}') == [END]
