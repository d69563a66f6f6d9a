"""Folders in Harbor's format, with shell tests at their real paths and no container."""

from collections.abc import Callable
from typing import Any

import pytest

from evsys_sdk.data.types import HarborTask
from evsys_sdk.errors import DataError
from evsys_sdk.rollouts.engine import RolloutRequest
from evsys_sdk.rollouts.harness import EnvironmentSpec, build_harness

pytest.importorskip("harbor", reason="needs the extra harbor; run make test-harbor")
pytestmark = pytest.mark.harbor

type Make = Callable[..., HarborTask]


def test_the_tests_of_the_folder_give_the_reward(make_folder: Make, in_sandbox: Any, say: Any) -> None:
    task = make_folder()
    solved = in_sandbox(task, say.scripted(say.shell("cp input.txt output.txt"), "done"))
    assert (solved.status, solved.reward, solved.error) == ("ok", 1.0, None)
    assert [turn.completion_tokens for turn in solved.turns] == [[101], [102]]
    missed = in_sandbox(task, say.scripted("I would rather not"))
    assert (missed.status, missed.reward) == ("ok", 0.0)


def test_an_agent_is_told_the_instruction(make_folder: Make, in_sandbox: Any, say: Any) -> None:
    policy = say.scripted("no")
    in_sandbox(make_folder(), policy)
    assert policy.asked == ["Copy input.txt to output.txt."]


def passes_if(condition: str) -> str:
    return f"#!/bin/sh\nif {condition}; then r=1; else r=0; fi\necho $r > /logs/verifier/reward.txt\n"


def test_a_task_may_need_the_processes_of_the_agent(make_folder: Make, in_sandbox: Any, say: Any) -> None:
    test = (
        "#!/bin/sh\nif pgrep -f 'sleep 7654' >/dev/null; then r=1; else r=0; fi\necho $r > /logs/verifier/reward.txt\n"
    )
    leave = say.shell("nohup sleep 7654 >/dev/null 2>&1 &")
    ended = in_sandbox(make_folder(test=test), say.scripted(leave, "done"))
    folder = make_folder(test=test, toml="[metadata]\nkeep_processes = true\n", name="kept")
    assert (ended.reward, in_sandbox(folder, say.scripted(leave, "done")).reward) == (0.0, 1.0)


def rewards(text: str) -> str:
    return f"#!/bin/sh\necho '{text}' > /logs/verifier/reward.json\n"


def test_of_several_rewards_the_one_called_reward_counts(make_folder: Make, in_sandbox: Any, say: Any) -> None:
    rollout = in_sandbox(make_folder(test=rewards('{"style": 1, "reward": 0.25}')), say.scripted("done"))
    assert rollout.reward == 0.25
    assert rollout.info == {"rewards": {"style": 1, "reward": 0.25}}


def test_a_single_reward_may_have_any_name(make_folder: Make, in_sandbox: Any, say: Any) -> None:
    assert in_sandbox(make_folder(test=rewards('{"score": 0.5}')), say.scripted("done")).reward == 0.5


@pytest.mark.parametrize(
    ("test", "said"),
    [
        (rewards('{"style": 1, "speed": 0}'), "none named 'reward'"),
        (rewards('{"reward": NaN}'), "the verifier failed"),
        ("#!/bin/sh\nexit 0\n", "the verifier failed: RewardFileNotFoundError"),
    ],
)
def test_tests_without_a_clear_reward_are_a_failure(
    make_folder: Make, in_sandbox: Any, say: Any, test: str, said: str
) -> None:
    rollout = in_sandbox(make_folder(test=test), say.scripted("done"))
    assert (rollout.status, rollout.reward) == ("infra", None)
    assert said in rollout.error


def test_tests_that_hang_are_a_failure(make_folder: Make, in_sandbox: Any, say: Any) -> None:
    rollout = in_sandbox(make_folder(test="#!/bin/sh\nsleep 60\n"), say.scripted("done"), verify_timeout_s=0.5)
    assert (rollout.status, rollout.reward) == ("infra", None)


def test_a_command_that_hangs_is_truncated_and_scored(make_folder: Make, in_sandbox: Any, say: Any) -> None:
    hang = say.shell("cp input.txt output.txt; sleep 60")
    rollout = in_sandbox(make_folder(), say.scripted(hang, "done"), timeout_s=1.0)
    assert (rollout.status, rollout.reward) == ("truncated", 1.0)


def test_a_folder_may_give_less_time_than_we_do(make_folder: Make, in_sandbox: Any, say: Any) -> None:
    task = make_folder(toml="[agent]\ntimeout_sec = 0.5\n")
    rollout = in_sandbox(task, say.scripted(say.shell("sleep 60"), "done"))
    assert (rollout.status, rollout.reward) == ("truncated", 0.0)
    assert rollout.error == "the agent was stopped after 0.5 s"


def test_a_task_that_needs_a_container_is_not_run_without_one(make_folder: Make, in_sandbox: Any, say: Any) -> None:
    policy = say.scripted("done")
    with pytest.raises(DataError, match=r"needs a container \(Dockerfile\), which environment 'bwrap' .*rootfs"):
        in_sandbox(make_folder(dockerfile="FROM debian\n"), policy)
    assert policy.asked == []


def test_tests_in_a_separate_environment_see_only_the_artifacts(make_folder: Make, in_sandbox: Any, say: Any) -> None:
    test = passes_if("[ -f /app/output.txt ] && [ ! -f /app/other.txt ]")
    toml = 'artifacts = ["/app/output.txt"]\n[verifier]\nenvironment_mode = "separate"\n'
    rollout = in_sandbox(
        make_folder(test=test, toml=toml), say.scripted(say.shell("cp input.txt output.txt; touch other.txt"), "done")
    )
    assert (rollout.status, rollout.reward, rollout.error) == ("ok", 1.0, None)


def test_a_folder_that_is_gone_is_reported_by_name(make_folder: Make, make_engine: Any, say: Any) -> None:
    import shutil

    task = make_folder()
    shutil.rmtree(task.metadata["task_dir"])
    harness = build_harness(environment=EnvironmentSpec(kind="none"))
    [rollout] = make_engine(attempts=1).submit([RolloutRequest(task, 0, say.scripted("x"), harness, None)]).result()  # pyright: ignore[reportArgumentType]
    assert rollout.status == "infra"
    assert task.metadata["task_dir"] in rollout.error
