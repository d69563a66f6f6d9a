"""The chat-template renderer on small tokenizers whose tokens can be counted by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.backends.mock.tokenizer import MESSAGE_END, MESSAGE_START, ByteTokenizer
from evsys_sdk.errors import DataError
from evsys_sdk.inference import Rendered, get_renderer
from evsys_sdk.inference.conversation import split_thinking

type Conversation = Sequence[dict[str, Any]]
type Template = Callable[..., str]

CONTROL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|end|>", "<|call|>", "<|assistant|>", "<|user|>"]
MERGED = ["\n\n", "\n\n\n"]


class CharacterTokenizer:
    """One token per character, but one for each control token and for each run of two or three newlines.

    Written for these tests, with the interface of a Hugging Face tokenizer; the template is a Python function.
    """

    def __init__(self, template: Template, eos: str | None = "</s>") -> None:
        self.template = template
        self.texts = [*CONTROL, *sorted(MERGED, key=len, reverse=True)]
        self.eos_token_id = None if eos is None else self.encode(eos)[0]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert "\ufffe" not in text
        tokens: list[int] = [] if not add_special_tokens or not hasattr(self, "eos_token_id") else [-1]
        while text:
            prefix = next((known for known in self.texts if text.startswith(known)), text[0])
            tokens.append(0x110000 + self.texts.index(prefix) if prefix in self.texts else ord(prefix))
            text = text[len(prefix) :]
        return tokens

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        texts = [self.texts[token - 0x110000] if token >= 0x110000 else chr(token) for token in ids]
        return "".join(text for text in texts if not (skip_special_tokens and text in CONTROL))

    def apply_chat_template(
        self, messages: Conversation, tokenize: bool = True, add_generation_prompt: bool = False, **tools: Any
    ) -> str:
        assert tokenize is False
        return self.template(messages, add_generation_prompt, **tools)


def chatml(messages: Conversation, generate: bool) -> str:
    turns = [
        f"<|im_start|>{message['role']}\n{message['content']}{_calls(message)}<|im_end|>\n" for message in messages
    ]
    return "".join(turns) + ("<|im_start|>assistant\n" if generate else "")


def _calls(message: dict[str, Any]) -> str:
    return "".join(f"<tool_call>{json.dumps(call['function'])}</tool_call>" for call in message.get("tool_calls") or ())


def strips_thinking(messages: Conversation, generate: bool) -> str:
    """As Qwen3: the last turn shows its thinking, empty or not; earlier turns lose it."""
    turns: list[str] = []
    for index, message in enumerate(messages):
        thinking, content = split_thinking(message["content"])
        if message["role"] == "assistant" and index == len(messages) - 1:
            content = f"<think>\n{thinking}\n</think>\n\n{content}"
        turns.append(f"<|im_start|>{message['role']}\n{content}<|im_end|>\n")
    return "".join(turns) + ("<|im_start|>assistant\n" if generate else "")


def opens_thinking(messages: Conversation, generate: bool) -> str:
    """As DeepSeek-R1: the prompt opens a thinking block that written turns do not have."""
    turns: list[str] = []
    for message in messages:
        thinking, content = split_thinking(message["content"])
        turns.append(f"<|{message['role']}|>{content}</s>" if thinking or content else f"<|{message['role']}|></s>")
    return "<s>" + "".join(turns) + ("<|assistant|><think>\n" if generate else "")


def ignores_generation_prompt(messages: Conversation, generate: bool) -> str:
    return chatml(messages, False)


def bracketed(messages: Conversation, generate: bool) -> str:
    """As Llama 2: no header before an answer, and spaces around it."""
    turns = [
        f" {message['content']} </s>" if message["role"] == "assistant" else f"<s>[INST] {message['content']} [/INST]"
        for message in messages
    ]
    return "".join(turns)


def text_marks(messages: Conversation, generate: bool) -> str:
    turns = [f"{message['role'].upper()}: {message['content']}\n###\n" for message in messages]
    return "".join(turns) + ("ASSISTANT: " if generate else "")


def no_mark(messages: Conversation, generate: bool) -> str:
    turns = [f"{message['role']}: {message['content']}\n" for message in messages]
    return "".join(turns) + ("assistant: " if generate else "")


def ends_text(messages: Conversation, generate: bool) -> str:
    """As Phi-3: a conversation that does not go on is closed by the end-of-text token."""
    turns = [f"<|{message['role']}|>\n{message['content']}<|end|>\n" for message in messages]
    return "".join(turns) + ("<|assistant|>\n" if generate else "</s>")


def system_moves(messages: Conversation, generate: bool) -> str:
    """As Mistral Nemo: the system message stands in the last user message, and only while that one is the last."""
    system = next((message["content"] + "\n\n" for message in messages if message["role"] == "system"), "")
    turns: list[str] = ["<s>"]
    rest = [message for message in messages if message["role"] != "system"]
    for index, message in enumerate(rest):
        if message["role"] == "assistant":
            turns.append(f"{message['content']}</s>")
        else:
            turns.append(f"[INST]{system if index == len(rest) - 1 else ''}{message['content']}[/INST]")
    return "".join(turns)


def spans(rendered: Rendered) -> list[tuple[bool, list[int]]]:
    """Neighbouring tokens with the same weight, in order."""
    pairs = zip(rendered.tokens, rendered.weights, strict=True)
    return [
        (weight == 1.0, [token for token, _ in group]) for weight, group in groupby(pairs, key=lambda pair: pair[1])
    ]


def shown(tokenizer: Any, rendered: Rendered) -> list[tuple[bool, str]]:
    return [(trained, tokenizer.decode(tokens)) for trained, tokens in spans(rendered)]


def say(*turns: str) -> list[dict[str, Any]]:
    """A conversation from `role: text` lines."""
    return [{"role": turn.partition(": ")[0], "content": turn.partition(": ")[2]} for turn in turns]


def test_exact_tokens_and_weights_of_one_turn() -> None:
    (rendered,) = get_renderer(ByteTokenizer()).render(say("user: hi", "assistant: é"))
    before = [MESSAGE_START, *b"user\nhi", MESSAGE_END, ord("\n"), MESSAGE_START, *b"assistant\n"]
    assert rendered.tokens == [*before, 0xC3, 0xA9, MESSAGE_END]
    assert rendered.weights == [0.0] * len(before) + [1.0, 1.0, 1.0]


def test_the_newline_after_a_turn_is_context_of_the_next_and_carries_no_loss() -> None:
    tokenizer = ByteTokenizer()
    (rendered,) = get_renderer(tokenizer).render(say("user: a", "assistant: b", "user: c", "assistant: d"))
    assert shown(tokenizer, rendered) == [
        (False, "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"),
        (True, "b<|im_end|>"),
        (False, "\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"),
        (True, "d<|im_end|>"),
    ]


def test_only_the_last_turn_carries_loss_when_asked() -> None:
    tokenizer = ByteTokenizer()
    conversation = say("user: a", "assistant: b", "user: c", "assistant: d")
    (rendered,) = get_renderer(tokenizer).render(conversation, "last_assistant")
    assert rendered.tokens == get_renderer(tokenizer).render(conversation)[0].tokens
    assert shown(tokenizer, rendered)[1:] == [(True, "d<|im_end|>")]


def test_a_turn_of_weight_0_is_shown_and_not_learned() -> None:
    tokenizer = ByteTokenizer()
    conversation = say("user: a", "assistant: b", "user: c", "assistant: d")
    conversation[1]["weight"] = 0
    (rendered,) = get_renderer(tokenizer).render(conversation)
    assert rendered == get_renderer(tokenizer).render(conversation, "last_assistant")[0]
    conversation[3]["weight"] = 0
    with pytest.raises(DataError, match=r"no assistant turn .*assistant with weight 0.*assistant_template"):
        get_renderer(tokenizer).render(conversation)
    conversation[3]["weight"] = 0.5
    with pytest.raises(DataError, match=r"messages\[3\].weight must be 0 or 1, not 0.5"):
        get_renderer(tokenizer).render(conversation)


def test_what_follows_the_last_supervised_turn_is_left_out() -> None:
    tokenizer = ByteTokenizer()
    short, long = (
        get_renderer(tokenizer).render(say("user: a", "assistant: b", *more)) for more in ([], ["user: thanks"])
    )
    assert short == long


def test_a_completion_starts_at_a_token_boundary() -> None:
    """Written at once, the newline of the header and those of the answer would be one token, which is never sampled."""
    tokenizer = CharacterTokenizer(chatml)
    conversation = say("user: a", "assistant: \n\nb", "user: c", "assistant: d")
    renderer = get_renderer(tokenizer)
    (rendered,) = renderer.render(conversation)
    two, three = tokenizer.encode("\n\n", False), tokenizer.encode("\n\n\n", False)
    assert spans(rendered)[1] == (True, [*two, ord("b"), *tokenizer.encode("<|im_end|>", False)])
    assert not set(three) & set(rendered.tokens)
    assert renderer.prompt(conversation[:3]) == rendered.tokens[: len(renderer.prompt(conversation[:3]))]


def test_thinking_that_the_template_drops_gives_one_sequence_per_turn() -> None:
    tokenizer = CharacterTokenizer(strips_thinking, eos="<|im_end|>")
    conversation = say("user: a", "assistant: <think>\nhm\n</think>\n\nb", "user: c", "assistant: d")
    renderer = get_renderer(tokenizer)
    first, second = renderer.render(conversation)
    assert shown(tokenizer, first) == [
        (False, "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"),
        (True, "<think>\nhm\n</think>\n\nb<|im_end|>"),
    ]
    assert shown(tokenizer, second) == [
        (
            False,
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n",
        ),
        (True, "<think>\n\n</think>\n\nd<|im_end|>"),
    ]
    assert renderer.render(conversation, "last_assistant") == [second]
    assert [renderer.parse(spans(each)[1][1])["content"] for each in (first, second)] == [
        "<think>\nhm\n</think>\n\nb",
        "d",
    ]


@pytest.mark.parametrize(
    ("content", "completion", "parsed"),
    [
        ("<think>\nhm\n</think>\n\nb", "hm\n</think>\n\nb</s>", "<think>\nhm\n</think>\n\nb"),
        ("b", "\n</think>\n\nb</s>", "b"),
    ],
)
def test_an_answer_continues_from_the_thinking_block_that_the_prompt_opens(
    content: str, completion: str, parsed: str
) -> None:
    tokenizer = CharacterTokenizer(opens_thinking)
    renderer = get_renderer(tokenizer)
    (rendered,) = renderer.render([*say("user: a"), {"role": "assistant", "content": content}])
    assert shown(tokenizer, rendered) == [(False, "<s><|user|>a</s><|assistant|><think>\n"), (True, completion)]
    assert renderer.parse(spans(rendered)[1][1])["content"] == parsed


def test_separate_reasoning_is_what_the_model_thinks() -> None:
    tokenizer = CharacterTokenizer(opens_thinking)
    answer = {"role": "assistant", "content": "b", "reasoning_content": "hm"}
    (rendered,) = get_renderer(tokenizer).render([*say("user: a"), answer])
    assert shown(tokenizer, rendered)[1] == (True, "hm\n</think>\n\nb</s>")


def writes_field(messages: Conversation, generate: bool) -> str:
    """As gpt-oss: thinking is read from its own field only."""
    turns = [
        f"<|{message['role']}|>[{message.get('reasoning_content', '')}]{message['content']}</s>" for message in messages
    ]
    return "".join(turns) + "<|assistant|>" * generate


def ignores_field(messages: Conversation, generate: bool) -> str:
    """As Llama 3: a field that it does not know is dropped."""
    return (
        "".join(f"<|{message['role']}|>{message['content']}</s>" for message in messages) + "<|assistant|>" * generate
    )


@pytest.mark.parametrize(
    ("template", "said"), [(writes_field, "[hm]b</s>"), (ignores_field, "<think>\nhm\n</think>\n\nb</s>")]
)
def test_thinking_reaches_a_template_in_the_form_that_it_reads(template: Any, said: str) -> None:
    tokenizer = CharacterTokenizer(template)
    for answer in ({"content": "b", "reasoning_content": "hm"}, {"content": "<think>\nhm\n</think>\n\nb"}):
        [first] = get_renderer(tokenizer).render([{"role": "user", "content": "a"}, {"role": "assistant", **answer}])
        assert (
            tokenizer.decode([token for token, weight in zip(first.tokens, first.weights, strict=True) if weight])
            == said
        )


def test_a_sample_cut_off_while_thinking_keeps_the_opened_block() -> None:
    tokenizer = CharacterTokenizer(opens_thinking)
    assert get_renderer(tokenizer).parse(tokenizer.encode("hm", False))["content"] == "<think>\nhm"


def test_a_prompt_that_is_no_prefix_of_the_written_turn_is_still_what_training_starts_from() -> None:
    tokenizer = CharacterTokenizer(system_moves)
    renderer = get_renderer(tokenizer)
    first, second = renderer.render(say("system: S", "user: a", "assistant: b", "user: c", "assistant: d"))
    assert shown(tokenizer, first) == [(False, "<s>[INST]S\n\na[/INST]"), (True, "b</s>")]
    assert shown(tokenizer, second) == [(False, "<s>[INST]a[/INST]b</s>[INST]S\n\nc[/INST]"), (True, "d</s>")]


def test_a_template_that_ignores_the_generation_prompt_gets_its_header() -> None:
    tokenizer = CharacterTokenizer(ignores_generation_prompt)
    renderer = get_renderer(tokenizer)
    same = get_renderer(CharacterTokenizer(chatml))
    conversation = say("user: a", "assistant: b", "user: c", "assistant: d")
    assert renderer.render(conversation) == same.render(conversation)
    assert renderer.prompt(conversation[:1]) == same.prompt(conversation[:1])


def test_blanks_that_a_template_puts_around_an_answer_are_sampled_but_not_content() -> None:
    tokenizer = CharacterTokenizer(bracketed)
    renderer = get_renderer(tokenizer)
    (rendered,) = renderer.render(say("user: a", "assistant: b", "user: c", "assistant: d"))
    assert shown(tokenizer, rendered) == [
        (False, "<s>[INST] a [/INST]"),
        (True, " b </s>"),
        (False, "<s>[INST] c [/INST]"),
        (True, " d </s>"),
    ]
    assert renderer.parse(tokenizer.encode(" b </s>", False))["content"] == "b"


def test_a_mark_of_ordinary_text_ends_the_turn_and_stops_the_sampler() -> None:
    tokenizer = CharacterTokenizer(text_marks)
    renderer = get_renderer(tokenizer)
    assert renderer.stop == ["###", "</s>"]
    (rendered,) = renderer.render(say("user: a", "assistant: b", "user: c", "assistant: d"))
    assert shown(tokenizer, rendered)[1:3] == [(True, "b\n###"), (False, "\nUSER: c\n###\nASSISTANT: ")]
    assert renderer.parse(tokenizer.encode("b\n###\nUSER: more", False))["content"] == "b"
    assert get_renderer(CharacterTokenizer(text_marks, eos=None)).stop == ["###"]


def test_without_any_mark_the_end_of_text_token_ends_each_turn() -> None:
    """Later turns have no such token before them, so they are separate sequences."""
    tokenizer = CharacterTokenizer(no_mark)
    renderer = get_renderer(tokenizer)
    first, second = renderer.render(say("user: a", "assistant: b ", "user: c", "assistant: d"))
    assert shown(tokenizer, first) == [(False, "user: a\nassistant: "), (True, "b </s>")]
    assert shown(tokenizer, second) == [(False, "user: a\nassistant: b \nuser: c\nassistant: "), (True, "d</s>")]
    assert renderer.stop == tokenizer.encode("</s>", False)


def test_a_tokenizer_with_which_sampling_would_never_stop_is_refused() -> None:
    with pytest.raises(DataError, match=r"writes no mark after an assistant turn and there is no eos_token"):
        get_renderer(CharacterTokenizer(no_mark, eos=None))


def test_an_end_of_text_token_after_the_mark_is_not_part_of_the_turn() -> None:
    tokenizer = CharacterTokenizer(ends_text)
    renderer = get_renderer(tokenizer)
    (rendered,) = renderer.render(say("user: a", "assistant: b", "user: c", "assistant: d"))
    assert [text for trained, text in shown(tokenizer, rendered) if trained] == ["b<|end|>", "d<|end|>"]
    assert tokenizer.eos_token_id not in rendered.tokens
    assert renderer.stop == tokenizer.encode("<|end|></s>", False)


def test_a_turn_with_its_own_mark_ends_there() -> None:
    def template(messages: Conversation, generate: bool) -> str:
        text = chatml(messages, generate)
        return text.replace("</tool_call><|im_end|>", "</tool_call><|call|>")

    tokenizer = CharacterTokenizer(template)
    call: Any = {"type": "function", "function": {"name": "f", "arguments": {}}}
    conversation = [
        *say("user: a"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        *say("tool: 7", "assistant: seven"),
    ]
    (rendered,) = get_renderer(tokenizer).render(conversation)
    assert [text for trained, text in shown(tokenizer, rendered) if trained] == [
        '<tool_call>{"name": "f", "arguments": {}}</tool_call><|call|>',
        "seven<|im_end|>",
    ]


def test_tool_calls_that_the_template_would_drop_are_refused() -> None:
    call: Any = {"type": "function", "function": {"name": "f", "arguments": {}}}
    conversation = [*say("user: a"), {"role": "assistant", "content": "", "tool_calls": [call]}]
    with pytest.raises(DataError, match=r"messages\[1\] has tool_calls, which the chat template does not write"):
        get_renderer(CharacterTokenizer(no_mark)).render(conversation)


def test_the_template_sees_tool_calls_with_objects_and_tool_messages_as_they_came() -> None:
    conversations_seen: list[Conversation] = []

    def template(messages: Conversation, generate: bool) -> str:
        conversations_seen.append(messages)
        return chatml(messages, generate)

    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    conversation = [
        {"role": "system", "content": [{"type": "text", "text": "S"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "7", "tool_call_id": "c1", "name": "f"},
        {"role": "assistant", "content": "seven"},
    ]
    get_renderer(CharacterTokenizer(template)).render(conversation)
    whole = next(messages for messages in conversations_seen if len(messages) == 4 and messages[0]["content"] == "S")
    assert whole[0] == {"role": "system", "content": "S"}
    function = {"name": "f", "arguments": {"x": 1}}
    assert whole[1] == {"role": "assistant", "content": "", "tool_calls": [{**call, "function": function}]}
    assert whole[2] == conversation[2]


def test_an_empty_answer_teaches_to_stop_at_once() -> None:
    tokenizer = ByteTokenizer()
    (rendered,) = get_renderer(tokenizer).render(say("user: a", "assistant: "))
    assert spans(rendered)[-1] == (True, [MESSAGE_END])


@pytest.mark.parametrize("answer", ["hello", "Able", "B", ""])
def test_a_conversation_may_start_with_the_assistant_although_the_template_needs_a_message(answer: str) -> None:
    def template(messages: Conversation, generate: bool) -> str:
        system = "" if messages[0]["role"] == "system" else "<|im_start|>system\nDefault.<|im_end|>\n"
        return system + chatml(messages, generate)

    tokenizer = CharacterTokenizer(template)
    (rendered,) = get_renderer(tokenizer).render(say(f"assistant: {answer}", "user: a", "assistant: b"))
    assert shown(tokenizer, rendered)[:2] == [
        (False, "<|im_start|>system\nDefault.<|im_end|>\n<|im_start|>assistant\n"),
        (True, f"{answer}<|im_end|>"),
    ]


def test_what_the_template_refuses_is_reported_with_its_reason() -> None:
    def template(messages: Conversation, generate: bool) -> str:
        if messages[0]["role"] != "user":
            raise ValueError("Roles must alternate.")
        return chatml(messages, generate)

    renderer = get_renderer(CharacterTokenizer(template))
    with pytest.raises(DataError, match=r"refuses a conversation of system, user, assistant: Roles must alternate\. "):
        renderer.render(say("system: S", "user: a", "assistant: b"))
    with pytest.raises(DataError, match=r"refuses a conversation of no messages: IndexError|list index out of range"):
        renderer.prompt([])


def test_a_template_that_refuses_the_probe_is_understood_from_real_conversations() -> None:
    def template(messages: Conversation, generate: bool) -> str:
        if messages[0]["role"] != "system":
            raise ValueError("a system message is needed")
        return chatml(messages, generate)

    tokenizer = CharacterTokenizer(template, eos="<|im_end|>")
    renderer = get_renderer(tokenizer)
    (rendered,) = renderer.render(say("system: S", "user: a", "assistant: b", "user: c", "assistant: d"))
    assert [text for trained, text in shown(tokenizer, rendered) if trained] == ["b<|im_end|>", "d<|im_end|>"]
    assert renderer.stop == tokenizer.encode("<|im_end|>", False)


class SpaceTokenizer(CharacterTokenizer):
    """As older SentencePiece models: text starts with an added space, at its beginning and after control tokens."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        tokens = super().encode(text, add_special_tokens)
        is_text = [token < 0x110000 or self.texts[token - 0x110000] in MERGED for token in tokens]
        starts = [at for at, text in enumerate(is_text) if text and not (at and is_text[at - 1])]
        return [part for at, token in enumerate(tokens) for part in ([ord("▁"), token] if at in starts else [token])]


def test_a_tokenizer_that_starts_text_with_a_space_does_not_put_one_inside_a_conversation() -> None:
    tokenizer = SpaceTokenizer(chatml)
    conversation = say("user: a", "assistant: b", "user: c", "assistant: d")
    (rendered,) = get_renderer(tokenizer).render(conversation)
    assert rendered.tokens == tokenizer.encode(chatml(conversation, False).removesuffix("\n"), False)
    assert [text for trained, text in shown(tokenizer, rendered) if trained] == ["b<|im_end|>", "d<|im_end|>"]


def test_parsing_stops_at_the_first_mark_and_leaves_control_tokens_out() -> None:
    tokenizer = ByteTokenizer()
    renderer = get_renderer(tokenizer)
    assert renderer.stop[0] == MESSAGE_END
    assert renderer.parse(tokenizer.encode("a<|im_start|>b<|im_end|>c<|im_end|>"))["content"] == "ab"
    assert renderer.parse(tokenizer.encode("cut off"))["content"] == "cut off"
    assert renderer.parse([]) == {"role": "assistant", "content": ""}


TEXT = st.text(st.sampled_from("ab \n.é漢🙂:#"), max_size=6)
TOKENIZERS: dict[str, Callable[[], Any]] = {
    "bytes": ByteTokenizer,
    "chatml": lambda: CharacterTokenizer(chatml),
    "spaces": lambda: SpaceTokenizer(chatml),
    "ignores_generation_prompt": lambda: CharacterTokenizer(ignores_generation_prompt),
    "ends_text": lambda: CharacterTokenizer(ends_text),
    "bracketed": lambda: CharacterTokenizer(bracketed),
    "system_moves": lambda: CharacterTokenizer(system_moves),
    "no_mark": lambda: CharacterTokenizer(no_mark),
}
CLOSING = {
    "bytes": "<|im_end|>",
    "ends_text": "<|end|>",
    "bracketed": " </s>",
    "system_moves": "</s>",
    "no_mark": "</s>",
}
OPENING = {"bracketed": " "}


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """An optional system message, then questions (or tool results) and answers, ending anywhere after an answer."""
    messages = [{"role": "system", "content": draw(TEXT)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": draw(st.sampled_from(["user", "tool"])), "content": draw(TEXT)})
        messages.append({"role": "assistant", "content": draw(TEXT)})
    return messages + ([{"role": "user", "content": draw(TEXT)}] if draw(st.booleans()) else [])


def completions(sequences: list[Rendered]) -> Iterator[tuple[list[int], list[int]]]:
    """Each supervised turn as (what stands before it, its tokens)."""
    for rendered in sequences:
        done = 0
        for trained, tokens in spans(rendered):
            if trained:
                yield rendered.tokens[:done], tokens
            done += len(tokens)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(conversation=conversations())
def test_training_sees_what_sampling_sees(kind: str, conversation: list[dict[str, Any]]) -> None:
    tokenizer = TOKENIZERS[kind]()
    renderer = get_renderer(tokenizer)
    turns = [index for index, message in enumerate(conversation) if message["role"] == "assistant"]
    items = list(completions(renderer.render(conversation)))
    assert len(items) == len(turns)
    for index, (before, said) in zip(turns, items, strict=True):
        content = conversation[index]["content"]
        assert before == renderer.prompt(conversation[:index])
        text = OPENING.get(kind, "") + content + CLOSING.get(kind, "<|im_end|>")
        assert tokenizer.decode(said) == text
        if kind != "spaces":
            assert said == tokenizer.encode(text, False)
        assert renderer.parse(said) == {"role": "assistant", "content": content}
    last = list(completions(renderer.render(conversation, "last_assistant")))
    assert last == [(renderer.prompt(conversation[: turns[-1]]), items[-1][1])]


TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}},
}
ASKED: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather in Paris?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "18 C"},
    {"role": "assistant", "content": "18 degrees."},
]


def lists_tools(messages: Conversation, generate: bool, tools: Sequence[Any] = ()) -> str:
    """ChatML with the definitions in front."""
    head = f"<|im_start|>system\nTools: {json.dumps(tools)}<|im_end|>\n" if tools else ""
    return head + chatml(messages, generate)


def joins_texts(messages: Conversation, generate: bool, tools: Sequence[Any] = ()) -> str:
    """As DeepSeek V3: arguments are joined as text, and calls are written where the content is null."""
    calls = [
        {**message, "content": _joined(message) if message["content"] is None else message["content"]}
        for message in messages
    ]
    return lists_tools([{**call, "tool_calls": []} for call in calls], generate, tools)


def _joined(message: dict[str, Any]) -> str:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return "".join("<call>" + function["name"] + "\n" + function["arguments"] + "</call>" for function in functions)


def forgets_tools(messages: Conversation, generate: bool, tools: Sequence[Any] = ()) -> str:
    return chatml([{**message, "tool_calls": []} for message in messages], generate)


@pytest.mark.parametrize(
    ("template", "call"),
    [
        (lists_tools, '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'),
        (joins_texts, '<call>get_weather\n{"city": "Paris"}</call>'),
    ],
)
def test_tools_are_in_the_prompt_and_arguments_are_encoded_once(template: Template, call: str) -> None:
    tokenizer = CharacterTokenizer(template)
    renderer = get_renderer(tokenizer)
    (rendered,) = renderer.render(ASKED, tools=[TOOL])
    question, first, result, second = shown(tokenizer, rendered)
    assert question[1].startswith(f"<|im_start|>system\nTools: {json.dumps([TOOL])}<|im_end|>\n<|im_start|>user\n")
    assert first == (True, f"{call}<|im_end|>")
    assert result == (False, "\n<|im_start|>tool\n18 C<|im_end|>\n<|im_start|>assistant\n")
    assert second == (True, "18 degrees.<|im_end|>")
    assert rendered.tokens[: len(renderer.prompt(ASKED[:1], [TOOL]))] == renderer.prompt(ASKED[:1], [TOOL])


def test_a_template_that_shows_no_tools_is_refused_unless_our_listing_is_requested() -> None:
    tokenizer = CharacterTokenizer(forgets_tools)
    with pytest.raises(DataError, match=r"does not write tools, but 1 are given.*chat_template\+hermes"):
        get_renderer(tokenizer).render(ASKED, tools=[TOOL])
    listed = get_renderer(tokenizer, "chat_template+hermes")
    assert listed.name == "chat_template+hermes"
    (rendered,) = listed.render(ASKED, tools=[TOOL])
    prompt, call, result, _ = shown(tokenizer, rendered)
    assert json.dumps(TOOL) in prompt[1]
    assert call[1] == '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>'
    assert "<|im_start|>user\n<tool_response>\n18 C\n</tool_response><|im_end|>" in result[1]


@pytest.mark.parametrize("dropped", ["system", "tool"])
def test_messages_that_a_template_leaves_out_are_refused(dropped: str) -> None:
    def leaves_out(messages: Conversation, generate: bool) -> str:
        return chatml([message for message in messages if message["role"] != dropped], generate)

    renderer = get_renderer(CharacterTokenizer(leaves_out))
    shown = {"role": "tool" if dropped == "system" else "system", "content": "x"}
    question, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    assert renderer.render([shown, question, answer])
    with pytest.raises(DataError, match=rf"messages\[1\] has the role {dropped}, which the chat template omits"):
        renderer.render([question, {"role": dropped, "content": "x"}, answer])


def test_the_time_that_a_template_writes_stands_still() -> None:
    def clock(messages: Conversation, generate: bool, chat_template: str) -> str:
        return chat_template + chatml(messages, generate)

    tokenizer: Any = CharacterTokenizer(clock)
    tokenizer.chat_template = "{{ strftime_now('%d %f') }}"  # those of Hugging Face are texts
    renderer = get_renderer(tokenizer)
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    first, again = renderer.prompt(turns[:1]), renderer.prompt(turns[:1])
    assert first == again
    assert len(renderer.render([*turns, *turns])) == 1


def test_a_control_token_in_a_tool_definition_stays_text() -> None:
    tokenizer = CharacterTokenizer(lists_tools)
    tool = {"type": "function", "function": {"name": "f", "description": "<|im_end|>"}}
    prompt = get_renderer(tokenizer).prompt(say("user: hi"), [tool])
    marks = tokenizer.encode("<|im_end|>", add_special_tokens=False)
    assert prompt.count(marks[0]) == 2  # of the system message and of the user


def test_tools_of_the_mock_tokenizer_stand_in_the_system_message() -> None:
    tokenizer = ByteTokenizer()
    conversation = [{"role": "system", "content": "Be brief."}, *ASKED]
    (rendered,) = get_renderer(tokenizer).render(conversation, tools=[TOOL])
    text = tokenizer.decode(rendered.tokens)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert json.dumps(TOOL) in text
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>' in text
