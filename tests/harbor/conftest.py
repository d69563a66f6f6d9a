import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.data.types import HarborTask, InProcessVerifier
from evsys_sdk.protocols import VerificationResult
from evsys_sdk.rollouts.engine import RolloutRequest
from evsys_sdk.rollouts.environment import Environment, NoEnvironment
from evsys_sdk.rollouts.harbor.engine import HarborEngine
from evsys_sdk.rollouts.harbor.task_folder import load_harbor_tasks
from evsys_sdk.rollouts.harness import AgentSpec, EnvironmentSpec, Harness, build_harness
from evsys_sdk.rollouts.rollout import Message, Rollout, Turn, text_of

from ..rollouts.conftest import Script, ask_once, closing_engines

PASSES_IF_COPIED = """#!/bin/bash
if cmp -s /app/input.txt /app/output.txt; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in a sandbox run for real or say why not; what Harbor deprecates in itself is its own affair."""
    missing = [program for program in ("bwrap", "tmux") if shutil.which(program) is None]
    for item in items:
        if item.get_closest_marker("harbor") is not None:
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:harbor"))
        if missing and "in_sandbox" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason=f"needs {' and '.join(missing)}: install bubblewrap and tmux"))


class Scripted:
    """A policy that gives prepared answers, one after another, and records its requests."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def act(self, messages: Sequence[Message], *, tools: Any = None) -> Turn:
        self.asked.append(text_of(messages[-1]))
        number = len(self.asked)
        return Turn({"role": "assistant", "content": self.answers[number - 1]}, [number], [number + 100], [-0.5])


class Calling(Scripted):
    """The same with calls of a tool, whose argument is a command."""

    def __init__(self, tool: str, *commands: str) -> None:
        super().__init__(*commands)
        self.tool = tool

    async def act(self, messages: Sequence[Message], *, tools: Any = None) -> Turn:
        turn = await super().act(messages)
        function = {"name": self.tool, "arguments": {"command": turn.message["content"]}}
        call = {"id": f"call{len(self.asked)}", "type": "function", "function": function}
        return replace(turn, message={"role": "assistant", "content": "Next.", "tool_calls": [call]})


async def matches(task: HarborTask, rollout: Rollout, environment: Environment) -> VerificationResult:
    assert isinstance(task.verifier, InProcessVerifier)
    return VerificationResult(float(rollout.completion == task.verifier.expected), {"said": rollout.completion})


async def must_not_be_called(task: HarborTask, rollout: Rollout, environment: Environment) -> VerificationResult:
    raise AssertionError("the tests of the folder decide")


@pytest.fixture
def make_engine() -> Iterator[Callable[..., HarborEngine]]:
    """Engines that are closed at the end of the test."""
    with closing_engines(HarborEngine) as make:
        yield make


@pytest.fixture
def make_request() -> Callable[..., RolloutRequest]:
    """A request that succeeds; a test replaces the part that is to go wrong."""

    def make(
        *,
        run: Any = ask_once,
        policy: Any = None,
        verify: Any = matches,
        environment: Callable[[], Any] = NoEnvironment,
    ) -> RolloutRequest:
        task = HarborTask("t", "say yes", InProcessVerifier("exact_match", expected="yes"))
        harness = Harness(agent=lambda: Script(run), environment=environment)
        return RolloutRequest(task, 0, policy or Scripted("yes", "yes"), harness, verify)

    return make


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., HarborTask]:
    """A task folder that wants input.txt copied; returns it as it is loaded."""

    def make(*, test: str = PASSES_IF_COPIED, toml: str = "", name: str = "copy", dockerfile: str = "") -> HarborTask:
        folder = tmp_path / name
        (folder / "tests").mkdir(parents=True)
        (folder / "environment").mkdir()
        (folder / "environment" / "input.txt").write_text("42\n", encoding="utf-8")
        if dockerfile:
            (folder / "environment" / "Dockerfile").write_text(dockerfile, encoding="utf-8")
        (folder / "task.toml").write_text(f'schema_version = "1.4"\n{toml}', encoding="utf-8")
        (folder / "instruction.md").write_text("Copy input.txt to output.txt.", encoding="utf-8")
        (folder / "tests" / "test.sh").write_text(test, encoding="utf-8")
        [task] = load_harbor_tasks(folder)
        return task

    return make


@pytest.fixture
def in_sandbox(make_engine: Callable[..., HarborEngine]) -> Callable[..., Rollout]:
    """Run a task folder in bubblewrap with prepared answers."""

    def run(task: HarborTask, policy: Scripted, agent: str = "bash", **limits: Any) -> Rollout:
        harness = build_harness(AgentSpec(kind=agent), EnvironmentSpec(kind="bwrap"))
        engine = make_engine(attempts=1, **limits)
        [rollout] = engine.submit([RolloutRequest(task, 0, policy, harness, must_not_be_called)]).result()
        return rollout

    return run


def shell(command: str) -> str:
    """What the `bash` agent takes for a command."""
    return f"```bash\n{command}\n```"


def keys(*keystrokes: str, done: bool = False) -> str:
    """What Terminus-2 takes for keystrokes."""
    commands = [{"keystrokes": typed, "duration": 0.3} for typed in keystrokes]
    return json.dumps({"analysis": "", "plan": "", "commands": commands, "task_complete": done})


@pytest.fixture
def say() -> Any:
    """The ways in which a scripted policy speaks."""
    from types import SimpleNamespace

    return SimpleNamespace(scripted=Scripted, calling=Calling, shell=shell, keys=keys)
