"""Tasksets of the real verifiers library: rows, splits, scores, refusals, and training on them."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers", reason="needs the extra verifiers; run make test-verifiers")

from evsys_sdk.backends.client import ModelSpec, SamplingParams
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.cli.main import main
from evsys_sdk.config.specs import AgentSpec
from evsys_sdk.data.rows import parse_rows
from evsys_sdk.data.task_source import build_task_source, locate_rows
from evsys_sdk.data.types import TargetFormat
from evsys_sdk.errors import DataError, EvalError
from evsys_sdk.eval.verifier import VerifierInput, build_verifier, verify_rollout
from evsys_sdk.inference.renderer import get_renderer
from evsys_sdk.rollouts.datums import merge_turns
from evsys_sdk.rollouts.engine import EngineLimits, InlineEngine, RolloutRequest
from evsys_sdk.rollouts.harness import build_harness
from evsys_sdk.rollouts.policy import SamplerPolicy
from evsys_sdk.testing.task_source_conformance import TaskSourceConformance

pytestmark = pytest.mark.ecosystem
EXAMPLE = "examples/26_verifiers"
ROOT = Path(__file__).parents[2]
COLORS = f"verifiers:{EXAMPLE}/colors.py"

TASKSET = """
from __future__ import annotations
import verifiers.v1 as vf

class Data(vf.TaskData):
    answer: str = ""

class Config(vf.TasksetConfig):
    n: int = 8
    split: str = "train"

class One(vf.Task[Data]):
{body}

class Tasks(vf.Taskset[One, Config]):
    INFINITE = {infinite}
    def load(self):
        for n in range(self.config.n):
            yield One(Data({data}), self.config.task)
{more}
__all__ = [{names}]
"""
REWARD = """
    @vf.reward(weight=0.5)
    async def exact(self, trace):
        return float(trace.last_reply == self.data.answer)
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".evsys").mkdir()
    shutil.copytree(ROOT / EXAMPLE, tmp_path / EXAMPLE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class TestColors(TaskSourceConformance):
    splits = {split: f"{COLORS}?split={split}&names=3" for split in ("train", "val", "test")}


def write_taskset(
    body: str = REWARD, *, data: str = 'prompt=f"{n}+{n}=", answer=str(2 * n)', more: str = "", **changed: str
) -> str:
    parts = {"infinite": "False", "names": '"Tasks"'} | changed
    text = TASKSET.replace("{body}", body).replace("{data}", data).replace("{more}", more)
    for name, value in parts.items():
        text = text.replace(f"{{{name}}}", value)
    file = Path(f"taskset_{len(list(Path().glob('taskset_*.py')))}.py")
    file.write_text(text, encoding="utf-8")
    return f"verifiers:{file}"


def make_rows(path: str) -> list[dict[str, Any]]:
    return [json.loads(json.dumps(row)) for row in build_task_source(path).make_rows()]


def score(row: dict[str, Any], *messages: dict[str, Any]) -> Any:
    [task] = parse_rows([row], TargetFormat.HARBOR_TASK)
    verifier_input = VerifierInput("", messages[-1]["content"], list(messages), task=task)

    async def run() -> Any:
        return await build_verifier(task.verifier)(verifier_input)

    return asyncio.run(run())


def test_ids_do_not_depend_on_the_position_and_seeds_decide_the_order() -> None:
    path = write_taskset()
    ids = [row["task_id"] for row in make_rows(path)]
    shuffled = [row["task_id"] for row in make_rows(f"{path}?seed=1")]
    assert shuffled != ids
    assert sorted(shuffled) == sorted(ids)
    assert shuffled == [row["task_id"] for row in make_rows(f"{path}?seed=1")]
    assert [row["task_id"] for row in make_rows(f"{path}?n=3")] == ids[:3]
    assert [row["task_id"] for row in make_rows(f"{path}?size=3")] == ids[:3]


def test_the_library_runs_rewards_and_metrics_on_the_whole_conversation() -> None:
    body = (
        REWARD
        + """
    async def setup(self, trace):
        trace.info["ready"] = True
    @vf.reward(weight=2.0)
    async def parts(self, task, trace):
        return {"turns": trace.num_turns, "shape": [m.role for m in trace.messages] == ["system", "user", "assistant"]}
    @vf.metric
    async def thought(self, trace):
        return float(trace.assistant_messages[-1].reasoning_content == "carry" and trace.info["ready"])
"""
    )
    [row] = make_rows(write_taskset(body, data='prompt="1+1=", system_prompt="Add.", answer="2"') + "?n=1")
    messages = [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "1+1="},
        {"role": "assistant", "content": "<think>\ncarry\n</think>\n\n2"},
    ]
    assert row["metadata"]["context_messages"] == messages[:1]
    assert row["instruction"] == "1+1="
    result = score(row, *messages)
    assert result.reward == pytest.approx(0.5 + 2.0 + 2.0)
    assert result.info == {"exact": 0.5, "turns": 2.0, "shape": 2.0, "thought": 1.0}
    assert score(row, *messages[:2], {"role": "assistant", "content": "3"}).info["exact"] == 0


def test_calls_of_tools_that_an_agent_offers_reach_the_trace() -> None:
    body = """
    @vf.reward
    async def used(self, trace):
        call = trace.assistant_messages[0].tool_calls[0]
        return float((call.name, call.arguments, trace.tool_messages[0].content) == ("sum", '{"a": 1}', "2"))
"""
    [row] = make_rows(write_taskset(body) + "?n=1")
    called = {"function": {"name": "sum", "arguments": {"a": 1}}, "id": "c1", "type": "function"}
    assert score(
        row,
        {"role": "user", "content": "0+0="},
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
        {"role": "assistant", "content": "2"},
    ).reward == pytest.approx(1.0)


def test_a_reward_that_raises_is_an_error_and_no_zero() -> None:
    [row] = make_rows(write_taskset("    @vf.reward\n    async def bad(self, trace):\n        return 1 / 0\n") + "?n=1")
    with pytest.raises(EvalError, match="ZeroDivisionError"):
        score(row, {"role": "assistant", "content": "2"})


def test_changed_code_of_a_taskset_makes_other_rows_files() -> None:
    first = build_task_source(write_taskset()).version
    assert build_task_source(write_taskset(REWARD + "\n    x = 1\n")).version != first


RUNTIME = "    async def {}(self, trace, runtime):\n        return 1.0\n"


@pytest.mark.parametrize(
    ("changes", "query", "message"),
    [
        ({"body": "    @vf.reward\n" + RUNTIME.format("tests")}, "", "needs a runtime for 'tests'"),
        ({"body": REWARD + RUNTIME.format("setup")}, "", "needs a runtime for 'setup'"),
        ({"body": REWARD + "    NEEDS_CONTAINER = True\n"}, "", "needs a container"),
        ({"body": "    pass\n"}, "", "has no reward"),
        ({"data": 'answer="2"'}, "", "a simulated user opens"),
        (
            {"data": 'prompt=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]'},
            "",
            "has images in its prompt",
        ),
        (
            {
                "body": REWARD
                + "    @classmethod\n    def toolsets(cls, config):\n        return [vf.Toolset(vf.ToolsetConfig())]\n"
            },
            "",
            "offers tools of a tool server",
        ),
        (
            {"more": "class Both(vf.Env):\n    pass\n", "names": '"Tasks", "Both"'},
            "",
            "has its own environment",
        ),
        ({"names": ""}, "", "exports none as a taskset"),
        ({"infinite": "True"}, "", "is infinite. Set a size"),
        ({}, "?m=3", "Its config has"),
        ({"data": "prompt=1 / 0"}, "", "ZeroDivisionError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_a_chat_scored_in_process_is_refused(changes: dict[str, str], query: str, message: str) -> None:
    path = write_taskset(**changes) + query
    with pytest.raises(DataError) as caught:
        locate_rows(path)
    assert message in str(caught.value)
    assert path in str(caught.value)


HARNESS = """
PROGRAM = '''
import json, os, sys, urllib.request
def ask(messages):
    body = json.dumps({"model": os.environ["MODEL"], "messages": messages}).encode()
    headers = {"authorization": "Bearer " + os.environ["SECRET"], "content-type": "application/json"}
    request = urllib.request.Request(os.environ["ENDPOINT"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
said = [{"role": "user", "content": sys.argv[1]}]
for turn in range(2):
    said += [{"role": "assistant", "content": ask(said)}, {"role": "user", "content": "Sure?"}]
'''

class Twice(vf.Harness[vf.HarnessConfig]):
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        import sys
        env = {"ENDPOINT": endpoint, "SECRET": secret, "MODEL": ctx.model}
        return await runtime.run([sys.executable, "-c", PROGRAM, data.prompt], env)
"""


def test_a_harness_program_asks_the_policy_through_the_gateway(project: Path) -> None:
    body = (
        REWARD + "    @vf.reward\n    async def tests(self, trace, runtime):\n        return float(trace.num_turns)\n"
    )
    path = write_taskset(body, more=HARNESS, names='"Tasks", "Twice"')
    with pytest.raises(DataError, match="program=true"):
        make_rows(path)
    tasks = list(parse_rows(make_rows(f"{path}?program=true&n=2"), TargetFormat.HARBOR_TASK))
    client = MockBackend().prepare(model=ModelSpec("tiny"), run_dir=project)["training_client"]
    policy = SamplerPolicy(client.sampler().result(), get_renderer(client.tokenizer), SamplingParams(6), 4096)
    engine = InlineEngine(EngineLimits(attempts=1, timeout_s=60.0))
    harness = build_harness(AgentSpec(kind="verifiers"))
    requests = [RolloutRequest(task, 0, policy.with_seed(task.task_id), harness, verify_rollout) for task in tasks]
    try:
        rollouts = engine.submit(requests).result()
    finally:
        engine.close()
        client.close()
    for rollout in rollouts:
        assert (rollout.status, rollout.reward) in (("ok", 2.0), ("truncated", 2.0)), rollout.error
        assert rollout.info["tests"] == 2.0
        assert all(turn.completion_tokens for turn in rollout.turns)
        assert [len(stretch) for stretch in merge_turns(rollout.turns)] == [2]


def test_the_example_validates_and_its_reward_rises(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", f"{EXAMPLE}/rl.yaml", "--deep"]) == 0
    capsys.readouterr()
    assert main(["run", f"{EXAMPLE}/rl.yaml", "--json"]) == 0
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert run["status"] == "completed"
    base = run["metrics"]["baseline/test/colors/base/mean_reward"]
    assert run["metrics"]["test/colors/mean_reward"] > base + 0.2
