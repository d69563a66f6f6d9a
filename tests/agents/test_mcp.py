"""`evsys mcp`: what a client may send without ending it, what the tools refuse and why, and a launch by its plan."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.cli.mcp.commands import ToolError, ToolInvocation
from evsys_sdk.cli.mcp.protocol import McpServer, Tool
from evsys_sdk.cli.mcp.tools import TOOLS
from evsys_sdk.scaffold.project import init_project

MOST_TOKENS = 1500


def refuse(call: ToolInvocation, given: dict[str, Any]) -> Any:
    raise ToolError("the plan changed")


def fail(call: ToolInvocation, given: dict[str, Any]) -> Any:
    raise RuntimeError("a bug")


NUMBER = {"n": {"type": "integer", "minimum": 1, "maximum": 9}}
SIMPLE = [
    Tool("echo", "Say it again.", lambda call, given: given, {**NUMBER, "text": {"type": "string"}}, ["n"]),
    Tool("refuse", "Refuse.", refuse),
    Tool("fail", "Fail.", fail),
]


def talk(*lines: bytes | dict[str, Any], tools: list[Tool] = SIMPLE) -> list[dict[str, Any]]:
    """Everything that a server answers to some lines, in the order of ids, and those without one first."""
    sent = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
    out = io.StringIO()
    McpServer(tools, _UntilAnswered(sent, out), out).serve()
    answers = [json.loads(line) for line in out.getvalue().splitlines()]
    return sorted(answers, key=lambda one: (one["id"] is not None, str(one["id"])))


class _UntilAnswered(io.BytesIO):
    """Ends only when every call that was sent has been answered, as a patient client does."""

    def __init__(self, sent: bytes, out: io.StringIO) -> None:
        super().__init__(sent)
        self._out, self._calls = out, sent.count(b'"tools/call"')

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(-1 if size is None else size)
        while not line and self._out.getvalue().count('"jsonrpc"') < self._calls:
            threading.Event().wait(0.01)
        return line


def request(method: str, id: Any = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def call(tool: str, id: Any = 1, **arguments: Any) -> dict[str, Any]:
    return request("tools/call", id, name=tool, arguments=arguments)


def test_a_client_is_greeted_in_its_own_version_or_in_ours() -> None:
    [known] = talk(request("initialize", protocolVersion="2025-06-18"))
    assert known["result"]["protocolVersion"] == "2025-06-18"
    [other] = talk(request("initialize", protocolVersion="1999-01-01"))
    assert other["result"]["protocolVersion"] == "2025-11-25"
    [nothing] = talk({"jsonrpc": "2.0", "id": 1, "method": "initialize"})
    assert nothing["result"]["serverInfo"]["name"] == "evsys"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{\n", -32700),
        (b"\xff\xfe\n", -32700),
        (b"[" * 100_000 + b"\n", -32700),
        (b"[]\n", -32600),
        (b"3\n", -32600),
        (b'{"jsonrpc": "2.0", "id": 1}\n', -32600),
        (b'{"jsonrpc": "2.0", "id": {}, "method": "ping"}\n', -32600),
        (b'{"jsonrpc": "2.0", "id": true, "method": "ping"}\n', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "server/discover"}\n', -32601),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}\n', -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": ["x"]}}\n', -32602),
        (b'{"x": "' + b"y" * (3 << 20) + b'"}\n', -32600),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_answered_gets_an_error_and_the_next_request_its_answer(line: bytes, code: int) -> None:
    *wrong, pong = talk(line, request("ping", "zz"))
    assert pong == {"jsonrpc": "2.0", "id": "zz", "result": {}}
    assert [one["error"]["code"] for one in wrong if "error" in one] == [code]


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_no_bytes_end_the_server(lines: list[bytes]) -> None:
    answers = talk(*(line.replace(b"\n", b"") + b"\n" for line in lines), request("ping", "last"))
    assert answers[-1] == {"jsonrpc": "2.0", "id": "last", "result": {}}


def test_notices_and_answers_of_the_client_are_not_answered() -> None:
    lines: list[bytes | dict[str, Any]] = [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": [3]}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": 7},
        {"jsonrpc": "2.0", "id": 4, "result": {}},
        b"\n",
    ]
    assert talk(*lines) == []


def test_a_refusal_reaches_the_model_with_its_reason() -> None:
    [answer] = talk(call("refuse"))
    assert answer["result"] == {"content": [{"type": "text", "text": "the plan changed"}], "isError": True}


def test_a_bug_is_an_answer_too() -> None:
    [answer] = talk(call("fail"))
    assert answer["result"]["isError"]
    assert "RuntimeError: a bug" in answer["result"]["content"][0]["text"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "'n' is missing"),
        ({"n": "3"}, "'n' should be of type integer"),
        ({"n": True}, "'n' should be of type integer"),
        ({"n": 10}, "'n' should be between 1 and 9"),
        ({"n": 1, "m": 2}, "unknown argument 'm' (known: n, text)"),
        ({"n": 1, "text": "a\x00b"}, "'text' should be text"),
        ({"n": 1, "text": "x" * 5000}, "of at most 4096 characters"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], said: str) -> None:
    [answer] = talk(call("echo", **arguments))
    assert answer["result"]["isError"]
    assert said in answer["result"]["content"][0]["text"]


def test_many_calls_at_once_are_each_answered_once() -> None:
    answers = talk(*(call("echo", number, n=number % 9 + 1) for number in range(60)))
    assert {answer["id"]: json.loads(answer["result"]["content"][0]["text"])["n"] for answer in answers} == {
        number: number % 9 + 1 for number in range(60)
    }


def test_the_tools_cost_a_model_less_than_1500_tokens() -> None:
    [answer] = talk(request("tools/list"), tools=list(TOOLS))
    tools = answer["result"]["tools"]
    assert len(tools) == 14
    assert len(json.dumps(tools)) / 4 < MOST_TOKENS


def test_no_tool_can_edit_tasks_budgets_or_records() -> None:
    may_write = {tool.name for tool in TOOLS if not tool.reads_only}
    assert may_write == {"launch", "cancel", "note"}
    tools = {name for tool in TOOLS for name in tool.properties}
    assert not tools & {"content", "file", "budget", "root", "force", "resume"}


# Against the real command line


class Client:
    """A client that asks one thing at a time."""

    def __init__(self, cwd: Path) -> None:
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "evsys_sdk", "mcp"],
            cwd=cwd,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._number = 0

    def ask(self, tool: str, **arguments: Any) -> tuple[Any, bool]:
        """What a tool answers, and whether it refused."""
        self._number += 1
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(call(tool, self._number, **arguments)) + "\n")
        self._process.stdin.flush()
        result = json.loads(self._process.stdout.readline())["result"]
        text = result["content"][0]["text"]
        return (text if result["isError"] else json.loads(text)), result["isError"]

    def close(self) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        return self._process.wait(timeout=60)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = init_project("shop", into=tmp_path / "shop").root
    result = subprocess.run(
        [sys.executable, "-m", "evsys_sdk", "new-experiment", "first"], cwd=root, capture_output=True, check=False
    )
    assert result.returncode == 0
    config = next((root / "experiments").glob("*_first")) / "config.yaml"
    shutil.copy(config, root / "config.yaml")
    text = config.read_text("utf-8").replace("max_steps: 30", "max_steps: 4").replace("n_repeats: 3", "n_repeats: 1")
    (root / "config.yaml").write_text(text, encoding="utf-8")
    return root


@pytest.fixture
def client(project: Path) -> Iterator[Client]:
    started = Client(project)
    yield started
    assert started.close() == 0


@pytest.mark.slow
@pytest.mark.e2e
def test_an_experiment_is_planned_launched_watched_and_remembered(client: Client, project: Path) -> None:
    planned, refused = client.ask("validate", config="config.yaml")
    assert not refused
    assert planned["plan"]["total"]["steps"] == 4

    reply, refused = client.ask("launch", config="config.yaml", plan_hash="0" * 16)
    assert refused
    assert "this is not the plan" in reply
    config = project / "config.yaml"
    before = config.read_text("utf-8")
    config.write_text(before.replace("max_steps: 4", "max_steps: 400000"), encoding="utf-8")
    reply, refused = client.ask("launch", config="config.yaml", plan_hash=planned["plan_hash"])
    assert refused
    assert "changed since" in reply
    assert client.ask("list_experiments")[0]["total"] == 0
    config.write_text(before, encoding="utf-8")

    launched, refused = client.ask("launch", config="config.yaml", plan_hash=planned["plan_hash"])
    assert not refused, launched
    name = launched["experiment_id"]
    while (state := client.ask("status", experiment=name, wait_s=20)[0]["state"]) == "running":
        pass
    assert state == "completed"
    shown, refused = client.ask("get_experiment", experiment=name)
    assert not refused
    assert shown["verdict"] in ("promising_unconfirmed", "inconclusive")  # one seed shows nothing more
    steps, refused = client.ask("logs", experiment=name, what="metrics", last=2)
    assert not refused
    assert [line["step"] for line in steps["lines"]] == [4, 4]  # of two scorings
    answers, refused = client.ask("logs", experiment=name, what="test", last=3)
    assert not refused
    assert len(answers["lines"]) == 3
    audited, refused = client.ask("audit", experiment=name)
    assert not refused
    assert [one["clean"] for one in audited] == [True]
    wrong, refused = client.ask("errors", experiment=name, limit=2)
    assert not refused, wrong
    assert wrong["n_wrong"] > 0
    assert "Two of these are the same run" in client.ask("compare", first=name, second=name)[0]
    assert client.ask("campaign") == ([], False)
    assert "there is no campaign" in client.ask("campaign", name="--help")[0]
    assert not client.ask("note", experiment=name, text="Four steps teach nothing.")[1]
    context, refused = client.ask("context")
    assert not refused
    assert "Four steps teach nothing." in json.dumps(context)
    assert client.ask("cancel", experiment=name)[0]["was_running"] is False


@pytest.mark.slow
@pytest.mark.e2e
def test_every_refusal_of_the_command_line_arrives_whole(client: Client, project: Path) -> None:
    config = project / "config.yaml"
    text = config.read_text("utf-8").replace("n_repeats: 1", "n_repeats: 0").replace("kind: mock", "kind: mok")
    config.write_text(text, encoding="utf-8")
    reply, refused = client.ask("validate", config="config.yaml")
    assert refused
    assert "n_repeats: should be at least 1" in reply
    assert "Did you mean 'mock'" in reply
    assert "there is no experiment" in client.ask("get_experiment", experiment="--help")[0]
    assert "did you mean" in client.ask("schema", kind="algorithm", name="sf")[0]
    assert "a name needs its kind" in client.ask("schema", name="sft")[0]
    assert client.ask("schema", kind="algorithm", name="sft")[0]["properties"]["max_steps"]
