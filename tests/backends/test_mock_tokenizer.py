from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.backends.mock.tokenizer import MESSAGE_END, MESSAGE_START, ByteTokenizer
from evsys_sdk.errors import DataError
from evsys_sdk.inference.renderer import Tokenizer

TOKENIZER = ByteTokenizer()
PIECES = st.one_of(st.text(), st.sampled_from(["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "|>"]))


@given(st.lists(PIECES).map("".join))
def test_text_survives_a_round_trip(text: str) -> None:
    tokens = TOKENIZER.encode(text)
    assert TOKENIZER.decode(tokens) == text
    assert all(0 <= token < TOKENIZER.vocab_size for token in tokens)


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1)))
def test_any_tokens_can_be_decoded(tokens: list[int]) -> None:
    text = TOKENIZER.decode(tokens, skip_special_tokens=True)
    assert text == bytes(token for token in tokens if token < 256).decode(errors="replace")


def test_a_cut_character_becomes_the_replacement_character() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("né")[:-1]) == "n\ufffd"


def test_the_protocol_is_satisfied() -> None:
    assert isinstance(TOKENIZER, Tokenizer)
    assert (TOKENIZER.eos_token_id, len(TOKENIZER)) == (MESSAGE_END, 259)
    assert TOKENIZER.convert_tokens_to_ids("<|im_end|>") == MESSAGE_END


def test_a_conversation_is_written_turn_by_turn() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [{"type": "text", "text": "yo"}]}]
    text = TOKENIZER.apply_chat_template(messages, add_generation_prompt=True)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n<|im_start|>assistant\n"
    tokens = TOKENIZER.apply_chat_template(messages, tokenize=True)
    assert tokens[0] == MESSAGE_START
    assert tokens.count(MESSAGE_END) == 2


def test_tool_calls_are_written_as_json() -> None:
    call = {"type": "function", "function": {"name": "look_up", "arguments": {"city": "Oslo"}}}
    text = TOKENIZER.apply_chat_template([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert '<tool_call>\n{"name": "look_up", "arguments": {"city": "Oslo"}}\n</tool_call>' in text


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"content": "x"}], "message 0 has no role"),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": 3}], "message 1 has content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "vision"),
    ],
)
def test_messages_it_cannot_write_are_refused(messages: list[dict[str, object]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        TOKENIZER.apply_chat_template(messages)


def test_tokens_and_texts_that_do_not_exist_are_refused() -> None:
    with pytest.raises(DataError, match="not in the vocabulary of 259"):
        TOKENIZER.decode([259])
    with pytest.raises(DataError, match="lone surrogate"):
        TOKENIZER.encode("ok \ud800")
    with pytest.raises(DataError, match="2 tokens, not one"):
        TOKENIZER.convert_tokens_to_ids("ab")
