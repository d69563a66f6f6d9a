"""The tinker-cookbook adapter.

Most tests use `StandIn`, a module written here that speaks the part of the package's interface the adapter uses, so
that they run without it. The tests at the end use the package itself where it is installed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from evsys_sdk.backends.mock.tokenizer import MESSAGE_END, ByteTokenizer
from evsys_sdk.errors import ConfigError, DataError
from evsys_sdk.inference import Rendered, Renderer, get_renderer

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


class ModelTokenizer(ByteTokenizer):
    """Has the tokens that named renderers rely on, and takes the options they pass."""

    own_template_only = False  # pyright: ignore[reportGeneralTypeIssues]
    name_or_path = "ada/model"
    bos_token = None

    def encode(self, text: str, add_special_tokens: bool = False, split_special_tokens: bool = False) -> list[int]:
        return list(text.encode()) if split_special_tokens else super().encode(text, add_special_tokens)


class ToolCall(BaseModel):
    class Function(BaseModel):
        name: str
        arguments: str

    type: str = "function"
    id: str | None = None
    function: Function


class Tokens(list[int]):
    to_ints = tolist = list[int].copy


class StandInRenderer:
    """ChatML; earlier turns lose their thinking, which must come as a separate part unless `text_only`."""

    def __init__(self, tokenizer: Any, *, text_only: bool = False) -> None:
        self.tokenizer, self.text_only = tokenizer, text_only

    def get_stop_sequences(self) -> list[int]:
        return [MESSAGE_END]

    def turn(self, message: dict[str, Any], *, last: bool) -> tuple[list[int], list[int]]:
        assert "trainable" not in message
        if message["content"] == "alien":
            raise KeyError("no such text")
        content: Any = message["content"]
        if not isinstance(content, str):
            if self.text_only:
                raise ValueError("Expected text content.")
            shown = [f"<think>{part['thinking']}</think>" if "thinking" in part else part["text"] for part in content]
            content = "".join(shown if last else shown[-1:])
        if not self.text_only:
            content += "".join(f"<call>{call.function.arguments}</call>" for call in message.get("tool_calls", ()))
        head = self.tokenizer.encode(f"<|im_start|>{message['role']}\n")
        return head, self.tokenizer.encode(f"{content}<|im_end|>")

    def build_generation_prompt(self, messages: Sequence[dict[str, Any]]) -> Tokens:
        turns = [self.turn(message, last=False) for message in messages]
        tokens = [token for head, output in turns for token in (*head, *output)]
        return Tokens([*tokens, *self.tokenizer.encode("<|im_start|>assistant\n")])

    def build_supervised_example(self, messages: Sequence[dict[str, Any]], train_on_what: str) -> tuple[Tokens, Tokens]:
        assert train_on_what == "last"
        tokens, weights = Tokens(), Tokens()
        for index, message in enumerate(messages):
            head, output = self.turn(message, last=index == len(messages) - 1)
            tokens += [*head, *output]
            weights += [0] * len(head) + [int(index == len(messages) - 1)] * len(output)
        return Tokens([*tokens, 10]), Tokens([*weights, 0])

    def parse_response(self, response: list[int]) -> tuple[dict[str, Any], str]:
        if response.count(MESSAGE_END) > 1:
            raise ValueError("more than one stop token")
        text = self.tokenizer.decode([token for token in response if token != MESSAGE_END])
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if match := re.fullmatch("<think>(.*)</think>(.*)", text):
            thinking, answer = match.groups()
            message["content"] = [{"type": "thinking", "thinking": thinking}, {"type": "text", "text": answer}]
        if "<call>" in text:
            answer, _, arguments = text.removesuffix("</call>").partition("<call>")
            message["content"] = answer
            if arguments == "bad":
                message["unparsed_tool_calls"] = [SimpleNamespace(raw_text="<call>bad</call>")]
            else:
                call = ToolCall.model_validate({"function": {"name": "f", "arguments": arguments}})
                message["tool_calls"] = [call]
        return message, "stop_sequence"


class StandIn(ModuleType):
    """What `tinker_cookbook.renderers` looks like to the adapter."""

    TrainOnWhat = SimpleNamespace(LAST_ASSISTANT_MESSAGE="last")
    ToolCall = ToolCall

    @staticmethod
    def get_registered_renderer_names() -> list[str]:
        return ["ada/own"]

    @staticmethod
    def get_renderer(name: str, tokenizer: Any, image_processor: Any = None, model_name: str | None = None) -> Any:
        assert model_name is not None
        if name == "qwen3":
            return StandInRenderer(tokenizer)
        elif name == "role_colon":
            return StandInRenderer(tokenizer, text_only=True)
        elif name == "qwen3_vl":
            raise ValueError("an image processor is needed.")
        raise ValueError(f"Unknown renderer: {name}.")


@pytest.fixture
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tinker_cookbook", ModuleType("tinker_cookbook"))
    monkeypatch.setitem(sys.modules, "tinker_cookbook.renderers", StandIn("tinker_cookbook.renderers"))


@pytest.fixture
def renderer(_stand_in: None) -> Renderer:
    return get_renderer(ModelTokenizer(), "qwen3")


def say(*turns: str) -> list[dict[str, Any]]:
    return [{"role": turn.partition(": ")[0], "content": turn.partition(": ")[2]} for turn in turns]


def trained(rendered: Rendered) -> list[str]:
    """The supervised texts, one for each turn."""
    text = "".join(
        ModelTokenizer().decode([token]) if weight else "\0"
        for token, weight in zip(rendered.tokens, rendered.weights, strict=True)
    )
    return [part for part in text.split("\0") if part]


def test_the_name_says_what_was_really_used(renderer: Renderer) -> None:
    assert isinstance(renderer, Renderer)
    assert renderer.name == "cookbook:qwen3"
    assert renderer.stop == [MESSAGE_END]


def test_turns_that_stand_unchanged_share_one_sequence(renderer: Renderer) -> None:
    conversation = say("user: a", "assistant: b", "user: c", "assistant: d")
    (rendered,) = renderer.render(conversation)
    text = "<|im_start|>user\na<|im_end|><|im_start|>assistant\nb<|im_end|>"
    text += "<|im_start|>user\nc<|im_end|><|im_start|>assistant\nd<|im_end|>"
    assert rendered.tokens == ModelTokenizer().encode(text)
    assert trained(rendered) == ["b<|im_end|>", "d<|im_end|>"]
    assert set(rendered.weights) == {0.0, 1.0}
    (last,) = renderer.render(conversation, "last_assistant")
    assert trained(last) == ["d<|im_end|>"]
    prompt = renderer.prompt(conversation[:3])
    assert rendered.tokens[: len(prompt)] == prompt


def test_thinking_given_as_text_is_dropped_from_earlier_turns_like_thinking_given_apart(renderer: Renderer) -> None:
    as_text = say("user: a", "assistant: <think>\nhm\n</think>\n\nb", "user: c", "assistant: d")
    apart = [as_text[0], {"role": "assistant", "content": "b", "reasoning_content": "hm"}, *as_text[2:]]
    first, second = renderer.render(as_text)
    assert trained(first) == ["<think>hm</think>b<|im_end|>"]
    assert trained(second) == ["d<|im_end|>"]
    assert "hm" not in ModelTokenizer().decode(second.tokens)
    assert renderer.render(apart) == [first, second]
    assert second.tokens[: len(renderer.prompt(as_text[:3]))] == renderer.prompt(as_text[:3])


@pytest.mark.usefixtures("_stand_in")
def test_a_renderer_that_takes_only_text_gets_thinking_as_text() -> None:
    text = "<think>\nhm\n</think>\n\nb"
    renderer = get_renderer(ModelTokenizer(), "role_colon")
    (rendered,) = renderer.render([*say("user: a"), {"role": "assistant", "content": text}])
    assert trained(rendered) == [f"{text}<|im_end|>"]


@pytest.mark.parametrize("arguments", ['{"x": 1}', {"x": 1}])
def test_tool_calls_reach_the_renderer_typed(renderer: Renderer, arguments: Any) -> None:
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}
    conversation = [*say("user: a"), {"role": "assistant", "content": None, "tool_calls": [call]}, *say("tool: 7")]
    (rendered,) = renderer.render(conversation)
    assert trained(rendered) == ['<call>{"x": 1}</call><|im_end|>']


@pytest.mark.usefixtures("_stand_in")
def test_tool_calls_that_the_renderer_would_drop_are_refused() -> None:
    conversation = [*say("user: a"), {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    with pytest.raises(
        DataError, match=r"messages\[1\] has tool_calls, which renderer cookbook:role_colon does not write"
    ):
        get_renderer(ModelTokenizer(), "role_colon").render(conversation)


SAMPLED: list[tuple[str, dict[str, Any]]] = [
    ("b<|im_end|>", {"content": "b"}),
    ("b<|im_end|>c<|im_end|>", {"content": "b"}),
    ("cut", {"content": "cut"}),
    ("<think></think>cut", {"content": "cut"}),
    ("<think>hm</think>b<|im_end|>", {"content": "<think>\nhm\n</think>\n\nb"}),
    ("b<call>bad</call><|im_end|>", {"content": "b<call>bad</call>"}),
    (
        "b<call>{}</call><|im_end|>",
        {"content": "b", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]},
    ),
]


@pytest.mark.parametrize(("sampled", "message"), SAMPLED)
def test_a_sample_becomes_a_plain_message(renderer: Renderer, sampled: str, message: dict[str, Any]) -> None:
    assert renderer.parse(ModelTokenizer().encode(sampled)) == {"role": "assistant", **message}


def test_fields_the_package_does_not_know_are_not_passed_on(renderer: Renderer) -> None:
    (rendered,) = renderer.render([*say("user: a"), {"role": "assistant", "content": "b", "trainable": True}])
    assert trained(rendered) == ["b<|im_end|>"]


def test_what_the_renderer_refuses_is_reported_with_its_reason(renderer: Renderer) -> None:
    with pytest.raises(
        DataError, match=r"cookbook:qwen3 refuses this conversation: 'no such text'\. Change the messages"
    ):
        renderer.prompt(say("user: alien"))
    with pytest.raises(DataError, match="no assistant turn to train on"):
        renderer.render(say("user: a"))
    with pytest.raises(DataError, match="but only text"):
        renderer.prompt([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "cat.png"}}]}])


@pytest.mark.usefixtures("_stand_in")
def test_an_unknown_name_is_refused_with_the_closest_and_all_known() -> None:
    with pytest.raises(ConfigError) as caught:
        get_renderer(ModelTokenizer(), "qwen_3")
    (problem,) = caught.value.problems
    assert problem.path == "run.model.renderer_name"
    assert "did you mean 'qwen3'?" in problem.message
    assert "Known: ada/own, qwen3, qwen3_vl, role_colon." in problem.hint


@pytest.mark.usefixtures("_stand_in")
def test_a_known_renderer_that_does_not_fit_the_tokenizer_says_why() -> None:
    with pytest.raises(ConfigError, match=r"cannot be used with this tokenizer \(ModelTokenizer\): an image processor"):
        get_renderer(ModelTokenizer(), "qwen3_vl")


@pytest.fixture
def _package() -> None:
    pytest.importorskip("tinker_cookbook", reason="needs the package tinker-cookbook", exc_type=ImportError)


real = pytest.mark.usefixtures("_package")
third_party = pytest.mark.filterwarnings("default")  # what the package warns about is not ours


@real
@third_party
def test_the_package_and_chatml_agree_where_no_thinking_is_involved() -> None:
    tokenizer = ModelTokenizer()
    conversation = say("system: S", "user: a", "assistant: b", "user: c", "assistant: d")
    named, own = get_renderer(tokenizer, "qwen3_instruct"), get_renderer(tokenizer)
    assert named.name == "cookbook:qwen3_instruct"
    assert (named.render(conversation), named.prompt(conversation[:4])) == (
        own.render(conversation),
        own.prompt(conversation[:4]),
    )
    assert named.stop[0] == own.stop[0]


@real
@third_party
def test_the_package_drops_earlier_thinking_and_keeps_it_in_the_turn_to_learn() -> None:
    tokenizer = ModelTokenizer()
    renderer = get_renderer(tokenizer, "qwen3")
    conversation = say("user: a", "assistant: <think>\nhm\n</think>\n\nb", "user: c", "assistant: d")
    first, second = renderer.render(conversation)
    assert trained(first) == ["<think>\nhm\n</think>\n\nb<|im_end|>"]
    assert trained(second) == ["<think>\n\n</think>\n\nd<|im_end|>"]
    for index, rendered in ((1, first), (3, second)):
        prompt = renderer.prompt(conversation[:index])
        assert rendered.tokens[: len(prompt)] == prompt
        assert renderer.parse(rendered.tokens[len(prompt) :])["content"] == conversation[index]["content"]


@real
@third_party
def test_the_package_writes_and_reads_tool_calls() -> None:
    renderer = get_renderer(ModelTokenizer(), "qwen3")
    turn = {"role": "assistant", "content": "b", "tool_calls": [CALL]}
    (rendered,) = renderer.render([*say("user: a"), turn])
    sampled = rendered.tokens[len(renderer.prompt(say("user: a"))) :]
    parsed = renderer.parse(sampled)
    assert parsed["content"].strip() == "b"
    assert parsed["tool_calls"] == [{"type": "function", "function": CALL["function"]}]


@real
@third_party
def test_a_text_stop_of_the_package_is_part_of_what_is_learnt() -> None:
    renderer = get_renderer(ModelTokenizer(), "role_colon")
    assert renderer.stop == ["\n\nUser:"]
    (rendered,) = renderer.render(say("user: a", "assistant: b", "user: c", "assistant: d"))
    assert trained(rendered) == [" b\n\nUser:", " d\n\nUser:"]


@real
@third_party
def test_the_package_knows_its_renderers_by_name() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'qwen3'\?.*Known: .*llama3.*role_colon"):
        get_renderer(ModelTokenizer(), "qwen33")
