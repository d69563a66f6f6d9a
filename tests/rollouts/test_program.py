"""Programs that know nothing of us are agents: they ask over HTTP, and what was sampled is what is recorded."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest

from evsys_sdk.backends.client import Sample, SamplingParams, TrainingClient
from evsys_sdk.backends.future import Operation
from evsys_sdk.config.specs import AgentSpec, EnvironmentSpec
from evsys_sdk.data.types import HarborTask
from evsys_sdk.errors import ConfigError
from evsys_sdk.experiment.preflight import check_file
from evsys_sdk.inference.renderer import get_renderer
from evsys_sdk.protocols import VerificationResult
from evsys_sdk.rollouts.datums import merge_turns
from evsys_sdk.rollouts.engine import InlineEngine, RolloutRequest
from evsys_sdk.rollouts.gateway import Gateway
from evsys_sdk.rollouts.harness import build_harness
from evsys_sdk.rollouts.policy import RecordingPolicy, SamplerPolicy
from evsys_sdk.rollouts.rollout import Rollout, Turn

CLIENT = """
import json, os, sys, urllib.error, urllib.request

def ask(path, body, key=None):
    base = os.environ["ANTHROPIC_BASE_URL"]
    headers = {"content-type": "application/json", "authorization": "Bearer " + (key or os.environ["OPENAI_API_KEY"])}
    request = urllib.request.Request(base + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()

def chat(messages, **more):
    status, text = ask("/v1/chat/completions", {"model": "policy", "messages": messages, **more})
    assert status == 200, text
    return json.loads(text)["choices"][0]["message"]
"""
"""A client as any program could have one, with the standard library alone."""
SANDBOX = pytest.param("bwrap", marks=pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"))

type RunProgram = Callable[..., list[Rollout]]


async def reward_one(task: HarborTask, rollout: Rollout, environment: Any) -> VerificationResult:
    return VerificationResult(1.0, {})


class Scripted:
    """Answers one after the other, each in as many tokens as it has words."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages, self.asked = list(messages), list[tuple[list[Any], Any]]()

    async def act(self, messages: Any, *, tools: Any = None) -> Turn:
        self.asked.append((list(messages), tools))
        message = {"role": "assistant", "content": "", **self.messages[min(len(self.asked), len(self.messages)) - 1]}
        return Turn(message, [1] * len(self.asked), [2], [-0.5], input_tokens=len(self.asked), output_tokens=1)


@pytest.fixture
def run_program(make_engine: Callable[..., InlineEngine], make_task: Callable[..., HarborTask]) -> RunProgram:
    def run(script: str, policy: Any, *, environment: str = "unsafe_host", n: int = 1, **params: Any) -> list[Rollout]:
        # What runs in the sandbox is the system's Python, on the host that of the tests.
        python = "python3" if environment == "bwrap" else sys.executable
        spec = AgentSpec(
            kind="program",
            params={"command": f"{python} agent.py {{instruction}}", "files": {"agent.py": CLIENT + script}, **params},
        )
        harness = build_harness(spec, EnvironmentSpec(kind=environment))
        policies = policy if isinstance(policy, list) else [policy] * n
        requests = [
            RolloutRequest(make_task(instruction='it\'s "me" {model}'), at, one, harness, reward_one)
            for at, one in enumerate(policies)
        ]
        return make_engine(attempts=1, timeout_s=60.0).submit(requests).result()

    return run


TALK = """
messages = [{"role": "user", "content": sys.argv[1]}]
for turn in range(3):
    messages += [chat(messages), {"role": "user", "content": "go on %d" % turn}]
print("done")
"""


@pytest.mark.parametrize("environment", ["unsafe_host", SANDBOX])
def test_the_tokens_of_a_program_are_those_of_the_sampler(
    environment: str, run_program: RunProgram, make_client: Callable[..., TrainingClient]
) -> None:
    client = make_client(context_length=1024)
    policy = SamplerPolicy(client.sampler().result(), get_renderer(client.tokenizer), SamplingParams(12), 1024)
    [rollout, again] = run_program(TALK, [policy.with_seed(1), policy.with_seed(1)], environment=environment)
    # The untrained model may not end its last answer in time; the program has ended either way.
    assert (rollout.reward, rollout.info.get("exit_code")) == (1.0, 0), rollout.error
    assert rollout.info["stdout"] == "done\n"
    assert rollout.messages[0]["content"] == 'it\'s "me" {model}'
    assert [len(stretch) for stretch in merge_turns(rollout.turns)] == [3]
    last = rollout.turns[-1]
    recomputed = client.sampler().result().logprobs([*last.prompt_tokens, *last.completion_tokens]).result()
    assert last.logprobs == pytest.approx(recomputed[len(last.prompt_tokens) :].tolist(), abs=1e-5)
    assert [turn.completion_tokens for turn in again.turns] == [turn.completion_tokens for turn in rollout.turns]


CALL = {"tool_calls": [{"id": "abc", "type": "function", "function": {"name": "look", "arguments": {"at": "sky"}}}]}
APIS = {
    "chat": """
tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
first = chat([{"role": "user", "content": "go"}], tools=[tool])
call = first["tool_calls"][0]
assert json.loads(call["function"]["arguments"]) == {"at": "sky"}, call
result = {"role": "tool", "tool_call_id": call["id"], "content": "blue"}
assert chat([{"role": "user", "content": "go"}, first, result], tools=[tool])["content"] == "it is blue"
""",
    "messages": """
tool = {"name": "look", "input_schema": {"type": "object"}}
body = {"model": "any", "max_tokens": 99, "messages": [{"role": "user", "content": "go"}], "tools": [tool]}
status, text = ask("/v1/messages?beta=true", {**body, "stream": True})
assert status == 200 and "message_stop" in text and "input_json_delta" in text, text
status, text = ask("/v1/messages", body)  # the same request once more
use = json.loads(text)["content"][0]
assert use["type"] == "tool_use" and use["input"] == {"at": "sky"}, text
result = {"type": "tool_result", "tool_use_id": use["id"], "content": "blue"}
body["messages"] += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
assert json.loads(ask("/v1/messages", body)[1])["content"][0]["text"] == "it is blue"
""",
    "responses": """
tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
items = [{"role": "user", "content": "go"}]
status, text = ask("/v1/responses", {"model": "any", "input": items, "tools": [tool], "stream": True})
assert status == 200 and "response.completed" in text, text
call = json.loads(ask("/v1/responses", {"model": "any", "input": items, "tools": [tool]})[1])["output"][0]
assert call["type"] == "function_call" and json.loads(call["arguments"]) == {"at": "sky"}, call
items += [call, {"type": "function_call_output", "call_id": call["call_id"], "output": "blue"}]
last = json.loads(ask("/v1/responses", {"model": "any", "input": items, "tools": [tool]})[1])["output"][0]
assert last["content"][0]["text"] == "it is blue", last
""",
}


@pytest.mark.parametrize("api", APIS)
def test_each_api_carries_tools_calls_and_results(api: str, run_program: RunProgram) -> None:
    policy = Scripted(CALL, {"content": "it is blue"})
    [rollout] = run_program(APIS[api], policy, api=api)
    assert rollout.info["exit_code"] == 0, rollout.info["stderr"]
    assert len(rollout.turns) == 2  # an equal request is answered once
    (_, tools), (messages, _) = policy.asked
    assert tools[0]["function"]["name"] == "look"
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert rollout.messages[-1]["content"] == "it is blue"


WRITE = """
text = "The sky is"
for turn in range(3):
    status, answer = ask("/v1/completions", {"model": "policy", "prompt": text, "max_tokens": 9})
    assert status == 200, answer
    text += json.loads(answer)["choices"][0]["text"] + " and %d" % turn
assert ask("/v1/completions", {"model": "policy", "prompt": [text, text]})[0] == 400
assert ask("/v1/completions", {"model": "policy", "prompt": text, "echo": True})[0] == 400
"""


def test_a_program_that_continues_texts_keeps_its_tokens(
    run_program: RunProgram, make_client: Callable[..., TrainingClient]
) -> None:
    client = make_client(context_length=1024)
    policy = SamplerPolicy(client.sampler().result(), get_renderer(client.tokenizer), SamplingParams(5), 1024)
    [rollout] = run_program(WRITE, policy.with_seed(3), api="completions")
    assert rollout.info["exit_code"] == 0, rollout.info["stderr"]
    first, *_, last = rollout.turns
    assert client.tokenizer.decode(first.prompt_tokens) == "The sky is"  # no chat template around it
    known = [*first.prompt_tokens, *first.completion_tokens]
    assert rollout.turns[1].prompt_tokens[: len(known)] == known
    assert [len(stretch) for stretch in merge_turns(rollout.turns)] == [3]
    assert last.logprobs


class HeldSampler:
    """Samples some tokens, waits until it is released, and samples the others."""

    was_released = True

    def __init__(self, inner: Any, text: str) -> None:
        self._inner, self.tokenizer, self._text, self.release = inner, inner.tokenizer, text, threading.Event()

    def sample(self, prompt: Any, n: int, params: SamplingParams) -> Operation[list[Sample]]:
        future: Future[list[Sample]] = Future()
        tokens = self.tokenizer.encode(self._text)

        def work() -> None:
            for at, token in enumerate(tokens):
                if at == len("<think>\nhm\n</think>\n\nI"):
                    self.was_released = self.release.wait(30)
                if params.on_token is not None:
                    params.on_token((token, -0.5, []))
            future.set_result([Sample(tokens, [-0.5] * len(tokens), "stop")])

        threading.Thread(target=work, daemon=True).start()
        return Operation(future)


def streamed_parts(stream: str) -> Iterator[str]:
    """The texts of thinking and answer in a stream of any of the three APIs, in their order."""
    for line in stream.splitlines():
        if line.startswith("data: {"):
            event: dict[str, Any] = json.loads(line.removeprefix("data: "))
            delta: Any = event.get("delta") or (event.get("choices") or [{}])[0].get("delta") or {}
            names = ("thinking", "reasoning_content", "text", "content")
            yield delta if isinstance(delta, str) else "".join(delta.get(name) or "" for name in names)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_a_stream_carries_the_answer_while_it_is_sampled(
    path: str, make_client: Callable[..., TrainingClient]
) -> None:
    client = make_client(context_length=1024)
    sampler = HeldSampler(client.sampler().result(), "<think>\nhm\n</think>\n\nIt is blue.")
    policy: Any = SamplerPolicy(sampler, get_renderer(client.tokenizer), SamplingParams(99), 1024)  # pyright: ignore[reportArgumentType]
    messages: Any = [{"role": "user", "content": "go"}]
    asked = {"input": messages} if path == "/v1/responses" else {"messages": messages, "max_tokens": 9}
    recorder, text = RecordingPolicy(policy), ""
    async with Gateway(recorder) as gateway, httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
        headers, body = {"authorization": f"Bearer {gateway.credential}"}, {"model": "any", "stream": True, **asked}
        async with http.stream("POST", path, json=body, headers=headers) as stream:
            async for part in stream.aiter_text():
                text += part
                if '"I"' in text and not sampler.release.is_set():
                    assert not recorder.turns, "the answer has not ended"
                    sampler.release.set()
    assert sampler.release.is_set()
    joined = "".join(streamed_parts(text))  # what is sampled after the release comes in parts of any size
    assert joined.index("hm") < joined.index("It is blue.")
    [turn] = recorder.turns
    assert turn.completion_tokens == sampler.tokenizer.encode("<think>\nhm\n</think>\n\nIt is blue.")


class ReleasedByTheNext(HeldSampler):
    """The first answer is complete only when a second one is asked for."""

    asked = False

    def sample(self, prompt: Any, n: int, params: SamplingParams) -> Operation[list[Sample]]:
        if self.asked:
            self.release.set()
            return self._inner.sample(prompt, n, params)
        self.asked = True
        return super().sample(prompt, n, params)


def test_a_program_reads_a_stream_while_it_is_sampled(
    run_program: RunProgram, make_client: Callable[..., TrainingClient]
) -> None:
    script = """
body = {"model": "policy", "stream": True, "messages": [{"role": "user", "content": "go"}]}
headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
with urllib.request.urlopen(urllib.request.Request(address, json.dumps(body).encode(), headers)) as stream:
    for line in stream:
        if b'"I' in line:
            chat([{"role": "user", "content": "more"}])
"""
    client = make_client(context_length=1024)
    sampler: Any = ReleasedByTheNext(client.sampler().result(), "<think>\nhm\n</think>\n\nIt is blue.")
    policy = SamplerPolicy(sampler, get_renderer(client.tokenizer), SamplingParams(99), 1024)
    [rollout] = run_program(script, policy)
    assert rollout.info["exit_code"] == 0, rollout.info
    assert len(rollout.turns) == 2
    assert sampler.was_released, "the second request comes only when the first answer can be read before its end"


def test_requests_that_are_not_for_this_rollout_are_refused(run_program: RunProgram) -> None:
    script = """
body = {"model": "policy", "messages": [{"role": "user", "content": "go"}]}
found = [ask("/v1/chat/completions", body, key="other"), ask("/v1/messages", {**body, "max_tokens": 5}),
         ask("/v1/chat/completions", {**body, "response_format": {"type": "json_object"}}),
         ask("/v1/chat/completions", {**body, "stop": "x"}), ask("/v1/chat/completions", []),
         ask("/v1/chat/completions", body)]
print(json.dumps([status for status, _ in found]))
"""
    [rollout] = run_program(script, Scripted({"content": "hi"}), api="chat")
    assert json.loads(rollout.info["stdout"]) == [401, 404, 400, 400, 400, 200]
    assert len(rollout.turns) == 1


@pytest.mark.parametrize("budget", [{"max_turns": 2}, {"max_tokens": 2}])
def test_a_program_that_has_spent_its_budget_is_stopped_and_truncated(
    budget: dict[str, int], run_program: RunProgram
) -> None:
    script = """
import time
for turn in range(9):
    if ask("/v1/chat/completions", {"model": "p", "messages": [{"role": "user", "content": str(turn)}]})[0] != 200:
        time.sleep(600)
"""
    [rollout] = run_program(script, Scripted({"content": "hi"}), **budget)
    assert (rollout.status, len(rollout.turns)) == ("truncated", 2)
    assert "used up its budget" in str(rollout.error)


def test_a_program_that_never_asks_says_why(run_program: RunProgram) -> None:
    [rollout] = run_program("sys.exit('no config')", Scripted({"content": "hi"}))
    assert rollout.status == "infra"
    assert "exited with 1 without a request to the policy: no config" in str(rollout.error)


@pytest.mark.parametrize(("code", "reward"), [(0, 1.0), (3, 0.0)])
def test_the_exit_code_can_be_the_reward(code: int, reward: float, run_program: RunProgram) -> None:
    script = f"chat([{{'role': 'user', 'content': 'go'}}]); sys.exit({code})"
    [rollout] = run_program(script, Scripted({"content": "hi"}), reward="exit_code")
    assert rollout.reward == reward


def test_programs_run_at_the_same_time_and_none_sees_another(
    run_program: RunProgram, make_client: Callable[..., TrainingClient]
) -> None:
    client = make_client(context_length=1024)
    policy = SamplerPolicy(client.sampler().result(), get_renderer(client.tokenizer), SamplingParams(8), 1024)
    rollouts = run_program(TALK, [policy.with_seed(number) for number in range(8)])
    assert [rollout.info["exit_code"] for rollout in rollouts] == [0] * 8
    assert {len(rollout.turns) for rollout in rollouts} == {3}
    assert len({tuple(rollout.turns[0].completion_tokens) for rollout in rollouts}) > 1


def test_a_connection_that_stays_open_ends_with_its_rollout_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    async def hold() -> bytes:
        async with Gateway(Scripted({"content": "hi"})) as gateway:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
            await reader.readuntil(b"\r\n")
        rest = await reader.read()
        writer.close()
        return rest

    assert b"credential" in asyncio.run(hold())
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01 no HTTP\r\n\r\n", b"400"),
        (b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 99_999 + b"\r\n\r\n", b"431"),
        (b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n" + b"a" * 99, b"413"),
    ],
)
async def test_what_cannot_be_read_is_refused(sent: bytes, status: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evsys_sdk.rollouts.gateway._LONGEST_BODY", 50)
    async with Gateway(Scripted({"content": "hi"})) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(sent)
        assert (await reader.readuntil(b"\r\n")).split()[1] == status
        assert b"invalid HTTP request" in await reader.read()
        writer.close()


@pytest.mark.parametrize(("script", "found"), [("agent.py", None), ("missing.py", "without a request to the policy")])
def test_a_deep_validation_starts_the_program_once(
    script: str, found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    verifier = {"kind": "in_process", "fn_name": "contains", "expected": "a"}
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"task_id": "t", "instruction": "go", "verifier": verifier}))
    started = tmp_path / "started"
    program = CLIENT + f"open({str(started)!r}, 'a').write('x'); chat([{{'role': 'user', 'content': sys.argv[1]}}])"
    params = {"command": f"{sys.executable} {script} {{instruction}}", "files": {"agent.py": program}}
    recipe = {"agent": {"kind": "program", "params": params}, "environment": {"kind": "unsafe_host"}, "max_steps": 1}
    run = {
        "name": "r",
        "data": {"path": "tasks.jsonl"},
        "model": {"name": "tiny"},
        "algorithm": {"kind": "rl", "params": {**recipe, "batch_size": 1}},
        "backend": {"kind": "mock"},
    }
    axes = {"algorithm.params.learning_rate": [1e-3, 1e-2]}
    (tmp_path / "config.yaml").write_text(json.dumps({"name": "e", "matrix": {"base_run": run, "axes": axes}}))
    with nullcontext() if found is None else pytest.raises(ConfigError, match=found):
        check_file(tmp_path / "config.yaml")
    assert found or started.read_text() == "x"


def test_a_program_without_an_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs an environment"):
        build_harness(AgentSpec(kind="program", params={"command": "true"}))
