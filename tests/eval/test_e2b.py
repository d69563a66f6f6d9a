"""e2b: the conversation with E2B's SDK, held with a stand-in that raises and answers as that SDK does.

The stand-in follows `e2b` 2.63: `commands.run` raises `CommandExitException` for any exit code but 0, lost sandboxes
are `TimeoutException`s, and refused keys are `AuthenticationException`s. No sandbox is made and no test is run here.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evsys_sdk import E2BVerifier, EvsysAuthError
from evsys_sdk.errors import ConfigError, EvalError, MissingExtraError
from evsys_sdk.eval.verifier import VerifierInput, build_verifier
from evsys_sdk.protocols import VerificationResult

TASK = E2BVerifier(
    dockerfile="FROM python:3.12\nRUN pip install pytest", test_sh="pytest test_state.py", test_state_py="x = 1"
)


@dataclass
class Result:
    stderr: str
    stdout: str
    exit_code: int
    error: str | None = None


class SandboxException(Exception): ...


class TimeoutException(SandboxException): ...


class AuthenticationException(Exception): ...


@dataclass
class CommandExitException(SandboxException, Result): ...


@dataclass
class Cloud:
    """What the stand-in was asked to do, and how it is to end."""

    exit_code: int = 0
    fails: dict[str, Exception] = field(default_factory=dict[str, Exception])
    templates: set[str] = field(default_factory=set[str])
    builds: list[str] = field(default_factory=list[str])
    contexts: list[str] = field(default_factory=list[str])
    sandboxes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    commands: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])
    killed: int = 0

    def may_fail(self, step: str) -> None:
        if step in self.fails:
            raise self.fails[step]


def stand_in(cloud: Cloud) -> ModuleType:
    """A module with the part of the SDK that the verifier uses."""

    class AsyncTemplate:
        def __init__(self, file_context_path: str | None = None) -> None:
            assert file_context_path is not None
            cloud.contexts.append(file_context_path)

        def from_dockerfile(self, content: str) -> AsyncTemplate:
            self.content = content
            return self

        @staticmethod
        async def exists(name: str) -> bool:
            await asyncio.sleep(0)
            return name in cloud.templates

        @staticmethod
        async def build(template: AsyncTemplate, name: str) -> None:
            await asyncio.sleep(0.01)
            cloud.may_fail("build")
            cloud.builds.append(template.content)
            cloud.templates.add(name)

    class Files:
        async def write(self, path: str, data: bytes) -> None:
            cloud.may_fail("write")
            cloud.files[path] = data

    class Commands:
        async def run(self, cmd: str, **options: Any) -> Result:
            cloud.commands.append((cmd, options))
            cloud.may_fail("run")
            if cloud.exit_code:
                raise CommandExitException(f"2 failed in {cmd}", "", cloud.exit_code)
            return Result("", "2 passed", 0)

    class AsyncSandbox:
        files, commands = Files(), Commands()

        @classmethod
        async def create(cls, **options: Any) -> AsyncSandbox:
            cloud.may_fail("create")
            assert options["template"] in cloud.templates
            cloud.sandboxes.append(options)
            return cls()

        async def kill(self) -> bool:
            cloud.killed += 1
            cloud.may_fail("kill")
            return True

    module = ModuleType("e2b")
    module.AsyncTemplate, module.AsyncSandbox = AsyncTemplate, AsyncSandbox  # type: ignore[attr-defined]
    for kind in (AuthenticationException, CommandExitException, SandboxException, TimeoutException):
        setattr(module, kind.__name__, kind)
    return module


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    fake = Cloud()
    monkeypatch.setitem(sys.modules, "e2b", stand_in(fake))
    monkeypatch.setattr("evsys_sdk.builtins.find_spec", lambda name: object())
    monkeypatch.setenv("E2B_API_KEY", "e2b_test")
    return fake


async def judged(task: E2BVerifier = TASK) -> VerificationResult:
    return await build_verifier(task)(VerifierInput("q", "the model's output \ud800"))


async def test_a_passing_test_earns_one_and_everything_lies_where_it_should(cloud: Cloud) -> None:
    decision = await judged()
    assert decision.reward == 1.0
    assert decision.info == {"exit_code": 0, "timed_out": False, "stdout": "2 passed", "stderr": ""}
    assert cloud.builds == [TASK.dockerfile]
    assert cloud.files == {
        "/tmp/evsys/model_output.txt": b"the model's output ?",
        "/tmp/evsys/test.sh": b"pytest test_state.py",
        "/tmp/evsys/test_state.py": b"x = 1",
    }
    ((command, options),) = cloud.commands
    assert command == "timeout --kill-after=5 120 bash test.sh"
    assert options["cwd"] == "/tmp/evsys"
    assert options["envs"] == {"MODEL_OUTPUT": "/tmp/evsys/model_output.txt"}
    assert options["timeout"] > 120
    assert cloud.sandboxes[0]["allow_internet_access"] is False
    assert cloud.sandboxes[0]["timeout"] > 120
    assert cloud.killed == 1


@pytest.mark.parametrize(("exit_code", "timed_out"), [(1, False), (2, False), (124, True), (137, False)])
async def test_a_failing_test_earns_nothing(cloud: Cloud, exit_code: int, timed_out: bool) -> None:
    cloud.exit_code = exit_code
    decision = await judged()
    assert (decision.reward, decision.info["exit_code"], decision.info["timed_out"]) == (0.0, exit_code, timed_out)
    assert "2 failed" in decision.info["stderr"]
    assert cloud.killed == 1


async def test_a_test_script_that_cannot_run_is_warned_about(cloud: Cloud, caplog: pytest.LogCaptureFixture) -> None:
    cloud.exit_code = 127
    assert (await judged()).reward == 0.0
    assert "test.sh could not run a command" in caplog.text


@pytest.mark.parametrize("step", ["build", "create", "write", "run"])
async def test_what_e2b_fails_at_is_an_error_and_no_zero(cloud: Cloud, step: str) -> None:
    cloud.fails[step] = TimeoutException("the sandbox was not found")
    with pytest.raises(EvalError, match="verifier 'e2b' failed: TimeoutException: the sandbox was not found"):
        await judged()
    assert cloud.killed == len(cloud.sandboxes)


async def test_a_sandbox_that_cannot_be_ended_does_not_change_the_verdict(
    cloud: Cloud, caplog: pytest.LogCaptureFixture
) -> None:
    cloud.fails["kill"] = SandboxException("gone")
    assert (await judged()).reward == 1.0
    assert "could not be stopped: gone" in caplog.text


async def test_a_dockerfile_is_built_once_however_many_ask(cloud: Cloud) -> None:
    assert [reply.reward for reply in await asyncio.gather(*(judged() for _ in range(20)))] == [1.0] * 20
    assert len(cloud.builds) == 1
    other = E2BVerifier(dockerfile="FROM debian", test_sh="true")
    await judged(other)
    assert cloud.builds == [TASK.dockerfile, "FROM debian"]
    assert len({options["template"] for options in cloud.sandboxes}) == 2


async def test_a_template_that_exists_is_not_built_and_a_failed_build_is_tried_again(cloud: Cloud) -> None:
    cloud.fails["build"] = SandboxException("no space")
    with pytest.raises(EvalError, match="no space"):
        await judged()
    del cloud.fails["build"]
    assert (await judged()).reward == 1.0
    assert len(cloud.builds) == 1


async def test_one_rollout_that_gives_up_does_not_end_the_build_for_the_others(cloud: Cloud) -> None:
    impatient, patient = asyncio.create_task(judged()), asyncio.create_task(judged())
    await asyncio.sleep(0.002)
    impatient.cancel()
    assert (await patient).reward == 1.0
    assert len(cloud.builds) == 1


async def test_copy_in_a_dockerfile_finds_no_files_of_this_machine(cloud: Cloud) -> None:
    await judged()
    (context,) = cloud.contexts
    assert context.startswith("/")
    assert "evsys" not in context
    assert not Path(context).exists()


async def test_a_refused_key_is_named_without_being_shown(cloud: Cloud) -> None:
    cloud.fails["create"] = AuthenticationException("401")
    with pytest.raises(EvsysAuthError, match="E2B refused the key in E2B_API_KEY: 401"):
        await judged()


async def test_without_a_key_nothing_is_asked(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2B_API_KEY")
    with pytest.raises(EvsysAuthError, match="needs the environment variable E2B_API_KEY"):
        await judged()
    assert cloud == Cloud()


def test_without_the_extra_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evsys_sdk.builtins.find_spec", lambda name: None)
    with pytest.raises(
        MissingExtraError, match=r"verifier 'e2b' needs the extra 'e2b'.*pip install 'evsys-sdk\[e2b\]'"
    ):
        build_verifier(TASK)


@pytest.mark.usefixtures("cloud")
@pytest.mark.parametrize("dockerfile", ["Dockerfile", "/etc/passwd", "RUN FROMAGE"])
def test_a_path_is_not_a_dockerfile(dockerfile: str) -> None:
    with pytest.raises(ConfigError, match="it has no FROM"):
        build_verifier(E2BVerifier(dockerfile=dockerfile, test_sh="true"))
