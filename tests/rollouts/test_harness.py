"""Which agent and environment a recipe gets, and that a mistake in naming them is reported at once."""

import sys
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.errors import ConfigError, EvsysError
from evsys_sdk.rollouts.agents.chat import ChatAgent
from evsys_sdk.rollouts.environment import NoEnvironment
from evsys_sdk.rollouts.harness import AgentSpec, EnvironmentSpec, build_harness


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    code = "class Mine:\n    async def run(self, task, policy, environment):\n        return []\n\nnumber = 3\n"
    (tmp_path / "own_agents.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_agents", raising=False)
    return "own_agents"


def test_the_default_is_a_chat_without_an_environment() -> None:
    harness = build_harness()
    assert isinstance(harness.agent(), ChatAgent)
    assert isinstance(harness.environment(), NoEnvironment)


def test_every_rollout_gets_its_own_agent_and_environment() -> None:
    harness = build_harness(AgentSpec(kind="chat"), EnvironmentSpec(kind="none"))
    assert harness.agent() is not harness.agent()
    assert harness.environment() is not harness.environment()


@pytest.mark.parametrize("separator", [":", "."])
def test_a_class_of_ones_own(own_module: str, separator: str) -> None:
    harness = build_harness(agent_import_path=f"{own_module}{separator}Mine")
    assert type(harness.agent()).__name__ == "Mine"
    assert harness.description["agent"] == f"{own_module}{separator}Mine"


@pytest.mark.parametrize("path", ["own_agents:Yours", "own_agents:number", "no_such_module:Mine", "Mine", "", ":", "."])
def test_an_agent_that_cannot_be_used_is_refused_with_its_path(own_module: str, path: str) -> None:
    with pytest.raises(ConfigError, match="agent_import_path"):
        build_harness(agent_import_path=path or " ")


def test_two_agents_are_one_too_many(own_module: str) -> None:
    with pytest.raises(ConfigError, match="both set"):
        build_harness(AgentSpec(kind="chat"), agent_import_path=f"{own_module}:Mine")


BAD_TOOLS: list[dict[str, Any]] = [{"tools": ["no_such_module:f"]}, {"tools": ["math:pi"]}, {"tools": []}, {}]


@pytest.mark.parametrize("params", BAD_TOOLS, ids=str)
def test_an_agent_with_wrong_params_is_refused_before_the_first_rollout(params: dict[str, Any]) -> None:
    with pytest.raises((EvsysError, ValueError), match="tools"):
        build_harness(AgentSpec(kind="tools", params=params))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(EvsysError, match="chatt"):
        build_harness(AgentSpec(kind="chatt"))
    with pytest.raises(EvsysError, match="nonee"):
        build_harness(environment=EnvironmentSpec(kind="nonee"))
