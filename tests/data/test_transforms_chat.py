"""The built-in transforms that make and change conversations, tasks and prompt examples."""

from __future__ import annotations

from typing import Any

import pytest

from evsys_sdk.config import TransformSpec
from evsys_sdk.data import (
    ChatMessagesRow,
    HarborTask,
    InProcessVerifier,
    PromptExample,
    apply_transforms,
    build_transforms,
    from_dict,
    image_url_block,
    parse_rows,
    text_block,
)
from evsys_sdk.errors import ConfigError, DataError

Row = dict[str, Any]


def run(rows: list[Row], kind: str, **params: Any) -> list[Row]:
    return list(apply_transforms(rows, build_transforms([TransformSpec(kind=kind, params=params)])))


def one(row: Row, kind: str, **params: Any) -> Row:
    (transformed,) = run([row], kind, **params)
    return transformed


def refusal(row: Row, kind: str, **params: Any) -> str:
    with pytest.raises((DataError, ConfigError)) as caught:
        run([row], kind, **params)
    return str(caught.value)


def user(content: Any) -> Row:
    return {"role": "user", "content": content}


def assistant(content: Any, **others: Any) -> Row:
    return {"role": "assistant", "content": content, **others}


def system(content: Any) -> Row:
    return {"role": "system", "content": content}


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"prompt": "q", "completion": "a"}, [user("q"), assistant("a")]),
        ({"query": "q", "answer": "a"}, [user("q"), assistant("a")]),
        ({"question": "q", "answer": "a"}, [user("q"), assistant("a")]),
        ({"instruction": "q", "output": "a"}, [user("q"), assistant("a")]),
        ({"instruction": "q", "input": "i", "output": "a"}, [user("q\n\ni"), assistant("a")]),
        ({"instruction": "q", "input": "", "output": "a"}, [user("q"), assistant("a")]),
        ({"input": "q", "output": "a"}, [user("q"), assistant("a")]),
        ({"problem": "q", "solution": 4}, [user("q"), assistant("4")]),
        ({"prompt": "q"}, [user("q")]),
        ({"prompt": None, "question": "q", "answer": "a"}, [user("q"), assistant("a")]),
        ({"messages": [user("q"), assistant("a")], "answer": "ignored"}, [user("q"), assistant("a")]),
        (
            {"prompt": [system("s"), user("q")], "completion": [assistant("a")]},
            [system("s"), user("q"), assistant("a")],
        ),
    ],
)
def test_well_known_fields_make_a_conversation(row: Row, messages: list[Row]) -> None:
    assert one(row, "jsonl_to_chat") == {**row, "messages": messages}


def test_templates_and_a_system_prompt_make_a_conversation_and_fields_stay() -> None:
    row = {"query": "q", "tool_slug": "T", "toolkit": "k"}
    chat = one(
        row,
        "jsonl_to_chat",
        system_prompt="Use {tools}.",
        user_template="Q: {query}",
        assistant_template="<{tool_slug}>",
    )
    assert chat == {**row, "messages": [system("Use {tools}."), user("Q: q"), assistant("<T>")]}
    plain = one(row, "jsonl_to_chat", user_template="Q: {query}", assistant_template="<{tool_slug}>", keep_fields=False)
    assert plain == {"messages": [user("Q: q"), assistant("<T>")]}


def test_one_template_leaves_the_other_turn_to_the_well_known_fields() -> None:
    assert one({"q": "x", "answer": "a"}, "jsonl_to_chat", user_template="{q}")["messages"] == [
        user("x"),
        assistant("a"),
    ]
    assert one({"q": "x"}, "jsonl_to_chat", user_template="{q}")["messages"] == [user("x")]
    messages = one({"prompt": "q", "slug": "S"}, "jsonl_to_chat", assistant_template="[{slug}]")["messages"]
    assert messages == [user("q"), assistant("[S]")]


def test_a_template_wins_over_messages_that_are_there() -> None:
    row = {"messages": [user("old")], "q": "new", "a": "A"}
    assert one(row, "jsonl_to_chat", user_template="{q}", assistant_template="{a}")["messages"] == [
        user("new"),
        assistant("A"),
    ]


def test_a_conversation_with_a_system_message_keeps_its_own() -> None:
    row = {"messages": [system("own"), user("q")]}
    assert one(row, "jsonl_to_chat", system_prompt="ours") == row


@pytest.mark.parametrize(
    ("row", "params", "says"),
    [
        (
            {"query": "q"},
            {"user_template": "{qeury}"},
            "row 1: the row has no field 'qeury'; did you mean 'query'? It has: query",
        ),
        ({"query": None}, {"user_template": "{query}"}, "the field 'query' is null"),
        ({"text": "x"}, {}, "it has: text. Set user_template for the user's turn"),
        ({"conversations": []}, {}, "sharegpt_to_chat"),
        ({"messages": "[]"}, {}, "no list of messages"),
    ],
)
def test_a_row_that_makes_no_conversation_says_why(row: Row, params: Row, says: str) -> None:
    message = refusal(row, "jsonl_to_chat", **params)
    assert message.startswith("transform 'jsonl_to_chat', row 1: ")
    assert says in message


def test_openai_rows_with_tools_weights_and_older_function_calls() -> None:
    call = {"name": "f", "arguments": '{"x": 1}'}
    row = {
        "messages": [
            user("q"),
            {"role": "assistant", "function_call": call, "weight": 0},
            {"role": "function", "name": "f", "content": "42"},
            assistant("It is 42.", weight=1),
        ],
        "functions": [{"name": "f"}],
        "tools": [{"type": "function", "function": {"name": "g"}}],
        "parallel_tool_calls": False,
    }
    chat = one(row, "openai_chat")
    typed = next(parse_rows([chat]))
    assert chat["messages"] == [
        user("q"),
        assistant(None, weight=0, tool_calls=[{"id": "call_1", "type": "function", "function": call}]),
        {"role": "tool", "name": "f", "content": "42", "tool_call_id": "call_1"},
        assistant("It is 42.", weight=1),
    ]
    assert isinstance(typed, ChatMessagesRow)
    assert [tool["function"]["name"] for tool in typed.tools] == ["g", "f"]
    assert typed.metadata["parallel_tool_calls"] is False


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"messages": [{"role": "function", "content": "42"}]}, "no earlier message calls"),
        ({"messages": [user("q")], "tools": {"a": 1}}, "must be a list of tool definitions, not {'a': 1}"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "'messages[0].role' is 'boss'"),
        ({"prompt": "x"}, "no list of messages"),
    ],
)
def test_openai_rows_that_are_wrong_are_refused(row: Row, says: str) -> None:
    assert says in refusal(row, "openai_chat")


def test_sharegpt_rows() -> None:
    row = {
        "conversations": [
            {"from": "human", "value": "q"},
            {"from": "gpt", "value": "a", "weight": 1},
            {"role": "Bob", "content": "b"},
        ],
        "system": "s",
        "id": 7,
    }
    chat = one(row, "sharegpt_to_chat", roles={"Bob": "user"})
    assert chat == {"id": 7, "messages": [system("s"), user("q"), assistant("a", weight=1), user("b")]}
    plain = {"talk": [{"from": "human", "value": "q"}]}
    assert one(plain, "sharegpt_to_chat", field="talk", system_prompt="p")["messages"] == [system("p"), user("q")]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"messages": []}, "no field 'conversations'"),
        ({"conversations": []}, "non-empty list of turns"),
        ({"conversations": ["hi"]}, "conversations[0] must be an object"),
        ({"conversations": [{"from": "humna", "value": "x"}]}, "Did you mean 'human'?"),
        ({"conversations": [{"value": "x"}]}, "unknown speaker None"),
        ({"conversations": [{"from": "human", "value": None}]}, "conversations[0].value must be text"),
    ],
)
def test_sharegpt_rows_that_are_wrong_are_refused(row: Row, says: str) -> None:
    assert says in refusal(row, "sharegpt_to_chat")


@pytest.mark.parametrize(
    ("existing", "first"),
    [("keep", system("own")), ("replace", system("ours")), ("prepend", system("ours\n\nown"))],
)
def test_a_system_prompt_meets_one_that_is_there(existing: str, first: Row) -> None:
    row = {"messages": [system("own"), user("q")]}
    assert one(row, "add_system_prompt", prompt="ours", existing=existing)["messages"] == [first, user("q")]


def test_a_system_prompt_is_added_in_front() -> None:
    assert one({"messages": [user("q")]}, "add_system_prompt", prompt="p")["messages"] == [system("p"), user("q")]
    blocks = {"messages": [system([text_block("own")])]}
    messages = one(blocks, "add_system_prompt", prompt="p", existing="prepend")["messages"]
    assert messages == [system([text_block("p"), text_block("own")])]
    assert "has a system message already" in refusal(blocks, "add_system_prompt", prompt="p", existing="error")
    assert "jsonl_to_chat" in refusal({"prompt": "x"}, "add_system_prompt", prompt="p")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("plain", "plain"),
        ("<think>hm</think>answer", "answer"),
        ("<think>\nhm\n</think>\n\nanswer\n", "answer"),
        ("a<think>1</think>b<thinking>2</thinking>c", "abc"),
        ("<THINK>hm</Think >answer", "answer"),
        ("hm, so</think>answer", "answer"),
        ("<think>a<think>b</think>c</think>answer", "answer"),
        ("answer<think>cut off", "answer"),
        ("<think></think>answer", "answer"),
        ("<thinker>stays</thinker>", "<thinker>stays</thinker>"),
        ("  untouched  ", "  untouched  "),
    ],
)
def test_thinking_is_taken_out_of_the_assistants_turns(text: str, left: str) -> None:
    chat = one({"messages": [user("<think>mine</think>"), assistant(text)]}, "strip_thinking")
    assert chat["messages"] == [user("<think>mine</think>"), assistant(left)]


def test_thinking_in_other_places_is_taken_out_too() -> None:
    row = {
        "messages": [
            assistant([{"type": "thinking", "thinking": "hm"}, text_block("<think>x</think>a"), image_url_block("u")]),
            assistant("b", reasoning_content="hm"),
            assistant("<reason>x</reason>c"),
        ],
        "target_assistant": "<think>x</think>t",
    }
    chat = one(row, "strip_thinking", tags=["think", "reason"])
    assert chat["messages"] == [assistant([text_block("a"), image_url_block("u")]), assistant("b"), assistant("c")]
    assert chat["target_assistant"] == "t"


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [assistant("<think>only")]},
        {"messages": [assistant([text_block("<think>only</think>"), {"type": "thinking", "thinking": "x"}])]},
        {"messages": [user("q")], "target_assistant": "<think>x"},
    ],
)
def test_a_turn_of_nothing_but_thinking_is_not_trained_on_by_accident(row: Row) -> None:
    assert "nothing but reasoning. Set if_empty" in refusal(row, "strip_thinking")
    assert run([row], "strip_thinking", if_empty="drop") == []
    assert len(run([row], "strip_thinking", if_empty="keep")) == 1


def test_a_turn_with_an_image_or_a_tool_call_is_more_than_thinking() -> None:
    thought = text_block("<think>only</think>")
    turns = [assistant([thought, image_url_block("u")]), assistant([thought], tool_calls=[{"id": "1"}])]
    assert len(run([{"messages": turns}], "strip_thinking")) == 1


def test_many_unclosed_tags_take_linear_time() -> None:
    row = {"messages": [assistant("answer" + "<think>" * 100_000)]}
    assert one(row, "strip_thinking")["messages"] == [assistant("answer")]


def test_a_conversation_becomes_a_task() -> None:
    row = {
        "messages": [system("s"), user("old"), assistant("x"), user("2+2?"), assistant("It is <answer>4</answer>")],
        "metadata": {"level": 1},
        "toolkit": "math",
    }
    made = one(row, "chat_to_harbor_task", expected_pattern="<answer>(.*?)</answer>", params={"strip": True})
    task = next(parse_rows([made]))
    assert isinstance(task, HarborTask)
    assert task.instruction == "2+2?"
    assert task.verifier == InProcessVerifier("exact_match", "4", {"strip": True})
    assert task.metadata == {"level": 1, "toolkit": "math", "context_messages": row["messages"][:3]}
    assert task.task_id.startswith("task-")


def test_the_expected_answer_comes_from_where_it_is() -> None:
    row = {
        "messages": [user("q"), assistant("last")],
        "target_assistant": "target",
        "n": 4,
        "metadata": {"gold": ["a", "b"]},
    }
    expected = lambda **params: one(row, "chat_to_harbor_task", **params)["verifier"]["expected"]  # noqa: E731
    assert expected() == "target"
    assert expected(expected_field="n") == 4
    assert expected(expected_field="gold") == ["a", "b"]
    assert expected(expected_pattern="t.r") == "tar"
    del row["target_assistant"]
    assert expected() == "last"


def test_a_row_without_an_answer_or_a_question_is_no_task() -> None:
    assert "no answer to expect. Set expected_field" in refusal({"messages": [user("q")]}, "chat_to_harbor_task")
    free = one({"messages": [user("q")]}, "chat_to_harbor_task", fn_name="format_only", require_expected=False)
    assert free["verifier"] == {"kind": "in_process", "fn_name": "format_only", "expected": None, "params": {}}
    assert "no user message" in refusal({"messages": [assistant("a")]}, "chat_to_harbor_task")
    row = {"messages": [user("q"), assistant("a")]}
    assert "does not match the answer 'a'" in refusal(row, "chat_to_harbor_task", expected_pattern="b+")
    assert "is not a regular expression" in refusal(row, "chat_to_harbor_task", expected_pattern="(")


def test_task_ids_are_given_or_made_from_the_content_and_never_repeat() -> None:
    row = {"messages": [user("q"), assistant("a")]}
    ids = [
        task["task_id"] for task in run([row, row, {"messages": [user("q"), assistant("b")]}], "chat_to_harbor_task")
    ]
    assert ids[1] == f"{ids[0]}-2"
    assert len(set(ids)) == 3
    assert one(row, "chat_to_harbor_task")["task_id"] == ids[0]
    assert one({**row, "task_id": "mine"}, "chat_to_harbor_task")["task_id"] == "mine"
    assert one({**row, "id": 7}, "chat_to_harbor_task", task_id_field="id")["task_id"] == "7"
    with pytest.raises(DataError, match="row 2: the task id 'mine' was used by an earlier row"):
        run([{**row, "task_id": "mine"}] * 2, "chat_to_harbor_task")


def test_an_instruction_with_images_stays_as_it_is() -> None:
    content = [text_block("what?"), image_url_block("u")]
    task = from_dict(one({"messages": [user(content), assistant("a cat")]}, "chat_to_harbor_task"))
    assert isinstance(task, HarborTask)
    assert task.instruction == content


@pytest.mark.parametrize(
    ("row", "params", "example"),
    [
        ({"messages": [user("q"), assistant("a")]}, {}, PromptExample({"prompt": "q"}, "a")),
        ({"messages": [user("q")], "target_assistant": "t"}, {}, PromptExample({"prompt": "q"}, "t")),
        ({"messages": [user("q")]}, {}, PromptExample({"prompt": "q"})),
        (
            {"messages": [system("s"), user("q"), assistant("a")]},
            {},
            PromptExample({"prompt": "q"}, "a", {"context_messages": [system("s")]}),
        ),
        (
            {"task_id": "t", "instruction": "do", "verifier": {"kind": "in_process", "fn_name": "f", "expected": 4}},
            {},
            PromptExample({"prompt": "do"}, 4, {"task_id": "t"}),
        ),
        ({"question": "q", "answer": "a"}, {}, PromptExample({"prompt": "q"}, "a", {"question": "q", "answer": "a"})),
        (
            {"q": "x", "ctx": ["c"], "gold": 1},
            {"inputs": ["q", "ctx"], "expected_field": "gold"},
            PromptExample({"q": "x", "ctx": ["c"]}, 1, {"q": "x", "ctx": ["c"], "gold": 1}),
        ),
        ({"o": {"q": "x"}}, {"inputs": {"question": "o.q"}}, PromptExample({"question": "x"}, None, {"o": {"q": "x"}})),
    ],
)
def test_rows_of_any_kind_become_prompt_examples(row: Row, params: Row, example: PromptExample) -> None:
    assert list(parse_rows(run([row], "to_prompt_example", **params))) == [example]


def test_a_row_without_a_prompt_is_no_example() -> None:
    assert "Name its inputs" in refusal({"x": 1}, "to_prompt_example")
    assert "no field 'q'" in refusal({"x": 1}, "to_prompt_example", inputs=["q"])
    assert "no user message" in refusal({"messages": [assistant("a")]}, "to_prompt_example")
