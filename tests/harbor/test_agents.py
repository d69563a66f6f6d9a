"""Agents that are Harbor's own, or written for it, ask the current policy."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.data.types import HarborTask, InProcessVerifier
from evsys_sdk.errors import ConfigError
from evsys_sdk.protocols import VerificationResult
from evsys_sdk.rollouts.engine import EngineLimits, InlineEngine, RolloutRequest
from evsys_sdk.rollouts.harness import EnvironmentSpec, build_harness

pytest.importorskip("harbor", reason="needs the extra harbor; run make test-harbor")
pytestmark = pytest.mark.harbor
MINI_SWE = os.environ.get("EVSYS_MINI_SWE_PYTHON", "")
"""A Python with mini-swe-agent."""

MODULE = """
from harbor.agents.base import BaseAgent

class Asks(BaseAgent):
    @staticmethod
    def name(): return "asks"
    def version(self): return "1"
    async def setup(self, environment): self.ready = self.policy
    async def run(self, instruction, environment, context):
        await self.ready.act([{"role": "user", "content": instruction}])

class Elsewhere(Asks):
    async def run(self, instruction, environment, context): pass
"""


INSTALLED = '''
from harbor.agents.installed.base import BaseInstalledAgent

PROGRAM = """
import json, os, sys, urllib.request
body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": sys.argv[1]}]}).encode()
headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
open("said.txt", "w").write(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""

class Installed(BaseInstalledAgent):
    @staticmethod
    def name(): return "installed"
    async def install(self, environment): pass
    def populate_context_post_run(self, context): pass
    async def run(self, instruction, environment, context):
        write = f"cat > a.py <<'END'\\n{PROGRAM}\\nEND\\n"
        await self.exec_as_agent(environment, command=write + "python3 a.py 'go' | tee /logs/agent/log.txt")
'''


async def wrote_yes(task: HarborTask, rollout: Any, environment: Any) -> VerificationResult:
    return VerificationResult(float(await environment.read_file("said.txt") == b"yes"))


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_a_program_that_harbor_runs_in_the_sandbox_asks_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_engine: Any, say: Any
) -> None:
    (tmp_path / "installed_agents.py").write_text(INSTALLED, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    harness = build_harness(None, EnvironmentSpec(kind="bwrap"), agent_import_path="installed_agents:Installed")
    assert harness.engine == "harbor"
    task = HarborTask("t", "Say yes.", InProcessVerifier("exact_match", "yes"))
    requests = [RolloutRequest(task, at, say.scripted("yes"), harness, wrote_yes) for at in range(3)]
    for rollout in make_engine(attempts=1).submit(requests).result():
        assert (rollout.status, rollout.reward, rollout.error) == ("ok", 1.0, None)
        assert [turn.completion_tokens for turn in rollout.turns] == [[101]]


async def said_yes(task: HarborTask, rollout: Any, environment: Any) -> VerificationResult:
    return VerificationResult(float(rollout.completion == "yes"))


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_engine: Any) -> Callable[..., Any]:
    """Run one row with an agent of a module that lies in the project."""
    (tmp_path / "project_agents.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    def ask(path: str, policy: Any, engine: Any = None) -> Any:
        context = [{"role": "system", "content": "Be brief."}]
        task = HarborTask("t", "Say yes.", InProcessVerifier("exact_match", "yes"), {"context_messages": context})
        request = RolloutRequest(task, 0, policy, build_harness(agent_import_path=path), said_yes)
        [rollout] = (engine or make_engine(attempts=1)).submit([request]).result()
        return rollout

    return ask


@pytest.mark.parametrize("path", ["project_agents:Asks", "project_agents.Asks"])
def test_a_harbor_agent_of_the_users_own_gets_the_policy(ask: Any, say: Any, path: str) -> None:
    policy = say.scripted("yes")
    rollout = ask(path, policy)
    assert (rollout.status, rollout.reward, rollout.error) == ("ok", 1.0, None)
    assert policy.asked == ["Be brief.\n\nSay yes."]
    assert rollout.turns[0].completion_tokens == [101]
    assert [message["role"] for message in rollout.messages] == ["user", "assistant"]


def test_a_harbor_agent_that_asks_another_model_is_a_failure(ask: Any, say: Any) -> None:
    rollout = ask("project_agents:Elsewhere", say.scripted("yes"))
    assert (rollout.status, rollout.reward) == ("infra", None)
    assert "no request to the policy" in rollout.error


def test_the_inline_engine_says_that_it_needs_harbor(ask: Any, say: Any) -> None:
    engine = InlineEngine(EngineLimits(attempts=1))
    rollout = ask("project_agents:Asks", say.scripted("yes"), engine)
    engine.close()
    assert rollout.status == "infra"
    assert "Set engine: harbor." in rollout.error


def test_an_agent_that_cannot_be_imported_is_reported_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="cannot import the agent"):
        build_harness(agent_import_path="project_agents:Missing")


def test_terminus_2_types_what_the_policy_says(make_folder: Any, in_sandbox: Any, say: Any) -> None:
    policy = say.scripted(say.keys("cp input.txt output.txt\n"), say.keys(done=True), say.keys(done=True))
    rollout = in_sandbox(make_folder(), policy, agent="terminus_2")
    assert (rollout.status, rollout.reward, rollout.error) == ("ok", 1.0, None)
    assert [turn.completion_tokens for turn in rollout.turns] == [[101], [102], [103]]
    assert "Copy input.txt to output.txt." in policy.asked[0]
    assert "cp input.txt output.txt" in policy.asked[1]
    assert [message["role"] for message in rollout.messages] == ["user", "assistant"] * 3


def test_stock_terminus_2_is_named_by_its_import_path_alone(make_folder: Any, make_engine: Any, say: Any) -> None:
    if shutil.which("bwrap") is None or shutil.which("tmux") is None:
        pytest.skip("needs bubblewrap and tmux")
    path = "harbor.agents.terminus_2.terminus_2:Terminus2"
    harness = build_harness(None, EnvironmentSpec(kind="bwrap"), agent_import_path=path)
    assert harness.engine == "harbor"
    policy = say.scripted(say.keys("cp input.txt output.txt\n"), say.keys(done=True), say.keys(done=True))
    [rollout] = make_engine(attempts=1).submit([RolloutRequest(make_folder(), 0, policy, harness, said_yes)]).result()
    assert (rollout.status, rollout.reward, rollout.error) == ("ok", 1.0, None)
    assert [turn.completion_tokens for turn in rollout.turns] == [[101], [102], [103]]


def link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def leave_out(folder: str, names: list[str]) -> set[str]:
    left = {"site-packages", "test", "idlelib"} if Path(folder).name.startswith("python3.") else set[str]()
    return left & set(names)


@pytest.mark.skipif(
    not MINI_SWE or shutil.which("bwrap") is None,
    reason="needs bubblewrap and mini-swe-agent; run make test-harbor",
)
def test_stock_mini_swe_agent_works_in_the_sandbox_by_its_import_path_alone(make_engine: Any, say: Any) -> None:
    where = "import litellm, sys; print(sys.base_prefix, litellm.__file__.partition('/litellm/')[0])"
    base, packages = subprocess.run([MINI_SWE, "-c", where], capture_output=True, text=True, check=True).stdout.split()
    # Not below /tmp, of which the sandbox has its own, nor in a home folder, which its user may not enter.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        shared = Path(folder)
        for source, target in ((base, "python"), (packages, "packages")):
            shutil.copytree(source, shared / target, symlinks=True, copy_function=link, ignore=leave_out)
        variables = f"LD_LIBRARY_PATH={shared}/python/lib PYTHONPATH={shared}/packages"
        run = f'{variables} exec {shared}/python/bin/python3 -m minisweagent.run.mini "$@"'
        for name, command in {"uv": "true", "mini-swe-agent": run}.items():
            (shared / name).write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
            (shared / name).chmod(0o755)
        shared.chmod(0o755)
        params = {
            "read_only": [folder],
            "env": {"PATH": f"{folder}:/usr/bin:/bin", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            "memory_mb": 2048,
        }
        path = "harbor.agents.installed.mini_swe_agent:MiniSweAgent"
        harness = build_harness(None, EnvironmentSpec(kind="bwrap", params=params), agent_import_path=path)
        task = HarborTask("t", "Write yes into said.txt.", InProcessVerifier("exact_match", "yes"))
        policy = say.calling("bash", "printf yes > said.txt", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
        [rollout] = make_engine(attempts=1).submit([RolloutRequest(task, 0, policy, harness, wrote_yes)]).result()
    assert (rollout.error, rollout.status, rollout.reward) == (None, "ok", 1.0), rollout.error
    assert [turn.completion_tokens for turn in rollout.turns] == [[101], [102]]
    assert "Write yes into said.txt." in policy.asked[0]


def test_terminus_2_with_a_policy_that_fails_is_a_failure(make_folder: Any, in_sandbox: Any, say: Any) -> None:
    rollout = in_sandbox(make_folder(), say.scripted(), agent="terminus_2")
    assert (rollout.status, rollout.reward) == ("infra", None)
    assert "IndexError" in rollout.error


def test_a_recipe_refuses_the_wrong_engine_before_it_starts() -> None:
    from evsys_sdk.rollouts.harness import AgentSpec

    with pytest.raises(ConfigError, match="Set engine: harbor"):
        build_harness(AgentSpec(kind="terminus_2")).refuse_inline()
    build_harness().refuse_inline()
