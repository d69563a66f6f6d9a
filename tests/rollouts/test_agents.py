"""The built-in harnesses: what the policy is shown, what its calls do, and how a conversation ends."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from evsys_sdk.data.types import HarborTask
from evsys_sdk.rollouts.agents.bash import BashAgent
from evsys_sdk.rollouts.agents.chat import ChatAgent
from evsys_sdk.rollouts.agents.tools import ToolsAgent, tool_calls, tool_schema
from evsys_sdk.rollouts.environment import ExecResult, NoEnvironment
from evsys_sdk.rollouts.rollout import Message, TruncatedError, Turn

type MakeTask = Callable[..., HarborTask]


class ScriptedPolicy:
    """Gives prepared answers, the last one again and again, and keeps what it was shown."""

    def __init__(self, *answers: str | Message) -> None:
        self.answers, self.shown, self.tools = list(answers), list[list[Message]](), list[Any]()

    async def act(self, messages: Sequence[Message], *, tools: Any = None) -> Turn:
        self.shown.append([dict(message) for message in messages])
        self.tools.append(tools)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return Turn(answer if isinstance(answer, dict) else {"role": "assistant", "content": answer})


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


async def slow_add(a: int) -> int:
    await asyncio.sleep(0)
    return a + 100


def tools_agent(*tools: Callable[..., Any], **params: Any) -> ToolsAgent:
    return ToolsAgent(tools=[f"{__name__}:{tool.__name__}" for tool in tools or (add, slow_add)], **params)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    module = types.ModuleType(__name__)
    module.__dict__.update(add=add, slow_add=slow_add)
    monkeypatch.setitem(sys.modules, __name__, module)


async def test_chat_asks_once(make_task: MakeTask) -> None:
    policy = ScriptedPolicy("hello")
    messages = await ChatAgent().run(make_task(instruction="hi"), policy, NoEnvironment())
    assert [message["content"] for message in messages] == ["hi", "hello"]
    assert len(policy.shown) == 1


async def test_tools_are_offered_called_and_answered(make_task: MakeTask) -> None:
    policy = ScriptedPolicy(f"let me see {call('add', a=2, b=3)}{call('slow_add', a=1)}", "it is 5")
    messages = await tools_agent().run(make_task(), policy, NoEnvironment())
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [message["content"] for message in messages[2:4]] == ["5", "101"]
    assert [schema["function"]["name"] for schema in policy.tools[0]] == ["add", "slow_add"]


async def test_tools_of_a_task_are_offered_by_the_chat_agent(make_task: MakeTask) -> None:
    policy, tool = ScriptedPolicy("hello"), {"type": "function", "function": {"name": "f"}}
    await ChatAgent().run(replace(make_task(), tools=[tool]), policy, NoEnvironment())
    assert policy.tools == [[tool]]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (call("subtract", a=1), "there is no tool called 'subtract'; there are add, slow_add"),
        (call("add"), "error: TypeError"),
        (call("add", a="x", b=1), "error: TypeError"),
        ("<tool_call>not json</tool_call>", "there is no tool called"),
        ("<tool_call>[1, 2]</tool_call>", "there is no tool called"),
        ("<tool_call>3</tool_call>", "there is no tool called"),
        (f"<tool_call>{'9' * 5000}</tool_call>", "there is no tool called"),
        (f"<tool_call>{'[' * 100_000}</tool_call>", "there is no tool called"),
        ('<tool_call>{"name": "add", "arguments": "oops"}</tool_call>', "error: TypeError"),
        ('<tool_call>{"name": null}</tool_call>', "there is no tool called"),
    ],
    ids=lambda value: value[:40],
)
async def test_a_call_that_cannot_be_made_is_answered_with_the_reason(
    text: str, answer: str, make_task: MakeTask
) -> None:
    messages = await tools_agent().run(make_task(), ScriptedPolicy(text, "done"), NoEnvironment())
    assert answer in messages[2]["content"]
    assert messages[-1]["content"] == "done"


async def test_a_policy_that_never_answers_is_truncated(make_task: MakeTask) -> None:
    policy = ScriptedPolicy(call("add", a=1))
    with pytest.raises(TruncatedError, match="3 turns"):
        await tools_agent(max_turns=3).run(make_task(), policy, NoEnvironment())
    assert len(policy.shown) == 3


def test_structured_calls_are_preferred_to_written_ones() -> None:
    structured = {"function": {"name": "add", "arguments": '{"a": 1}'}}
    [parsed_call] = tool_calls({"role": "assistant", "content": call("other"), "tool_calls": [structured]})
    assert (parsed_call.name, parsed_call.parse_arguments()) == ("add", {"a": 1})


def test_the_schema_of_a_function() -> None:
    function = tool_schema(add)["function"]
    assert function["parameters"]["required"] == ["a"]
    assert function["parameters"]["properties"]["a"] == {"type": "integer"}


class Shell(NoEnvironment):
    """Answers every command with the same result and keeps the commands."""

    def __init__(self, result: ExecResult) -> None:
        self.result, self.ran = result, list[str]()

    async def exec(self, command: str, **_: Any) -> ExecResult:
        self.ran.append(command)
        return self.result


async def test_bash_runs_the_block_and_shows_what_it_printed(make_task: MakeTask) -> None:
    shell = Shell(ExecResult("out", "err", 2))
    policy = ScriptedPolicy("look:\n```bash\nls -l\npwd\n```", "done")
    messages = await BashAgent().run(make_task(), policy, shell)
    assert shell.ran == ["ls -l\npwd\n"]
    assert messages[3]["content"] == "out\nerr\n[exit code 2]"
    assert messages[-1]["content"] == "done"


async def test_bash_shortens_output_and_tells_of_a_timeout(make_task: MakeTask) -> None:
    shell = Shell(ExecResult("x" * 50, "", 124, timed_out=True))
    policy = ScriptedPolicy("```sh\nyes\n```", "done")
    messages = await BashAgent(max_output=10, introduction="").run(make_task(), policy, shell)
    assert messages[2]["content"] == f"{'x' * 10}\n... (50 characters in all)\n[timed out]"


async def test_bash_that_never_ends_is_truncated_after_its_last_command_ran(make_task: MakeTask) -> None:
    shell = Shell(ExecResult("", "", 0))
    with pytest.raises(TruncatedError, match="2 turns"):
        await BashAgent(max_turns=2).run(make_task(), ScriptedPolicy("```bash\ntouch x\n```"), shell)
    assert len(shell.ran) == 2
