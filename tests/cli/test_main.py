"""The `evsys` command itself: exit codes, what goes to stdout and what to stderr, and how it ends early."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import pytest

from evsys_sdk import __version__, get_logger
from evsys_sdk.cli.main import COMMANDS, GROUPS, evsys, main
from evsys_sdk.errors import DataError

from ..history.recorded import write_experiment

COMMAND = [sys.executable, "-c", "import sys; from evsys_sdk.cli.main import main; sys.exit(main())"]
ROOT = Path(__file__).parents[2]
SOURCE = str(ROOT / "src")


def run(*arguments: str, cwd: Path | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command as a separate process."""
    environment = os.environ | {"PYTHONPATH": SOURCE} | options.pop("env", {})
    return subprocess.run(
        [*COMMAND, *arguments], cwd=cwd, env=environment, text=True, capture_output=True, check=False, **options
    )


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets `evsys list` raise something."""

    def raise_in_list(error: BaseException) -> None:
        # A mock raises inside the standard library: a function here would count as code of the project.
        monkeypatch.setattr("evsys_sdk.cli.project.registry.list_.callback", Mock(side_effect=error))

    return raise_in_list


def test_help_names_every_verb_and_explains_those_of_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    grouped = [name for names in GROUPS.values() for name in names]
    assert len(set(grouped)) == len(grouped) <= 30
    for name, (_, summary) in COMMANDS.items():
        assert name in out
        assert (summary in out) == (name in grouped)


def test_no_arguments_at_all_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    out, err = capsys.readouterr()
    assert "Start:" in out + err
    assert "Traceback" not in err


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_can_be_loaded_and_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    context = click.Context(evsys)
    command = evsys.get_command(context, verb)
    assert command is not None
    assert command.name == verb
    assert main([verb, "-h"]) == 0
    assert f"Usage: evsys {verb}" in capsys.readouterr().out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"evsys {__version__}\n"


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [("lst", "Did you mean 'list'?"), ("valdate", "Did you mean 'validate'?"), ("xyzzy", "Commands: ")],
)
def test_an_unknown_verb_is_refused_with_the_closest(wrong: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([wrong]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"No such command '{wrong}'. {hint}" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["validate"], "Missing argument 'PATH'"),
        (["schema", "transform"], "Missing argument 'NAME'"),
        (["validate", "a.yaml", "--depp"], "'--deep'"),
        (["validate", "a.yaml", "b.yaml"], "unexpected extra argument (b.yaml)"),
        (["--log-level", "loud", "list"], "'loud' is not a log level. Choose debug, info, warning or error."),
        (["completion", "tcsh"], "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
    ],
)
def test_wrong_usage_is_bad_input_not_a_failed_arm(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


def test_wrong_usage_is_json_too_when_json_is_requested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": "MissingParameter", "message": "Missing argument 'PATH'."}
    assert "Missing argument" in err


def test_an_expected_error_is_a_sentence_and_its_exit_code(failing: Any, capsys: pytest.CaptureFixture[str]) -> None:
    class Unscored(DataError):
        exit_code = 2

    failing(Unscored("arm 'r0' is unscored."))
    assert main(["list"]) == 2
    assert capsys.readouterr() == ("", "arm 'r0' is unscored.\n")
    assert main(["list", "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": "Unscored", "message": "arm 'r0' is unscored."}
    assert err == "arm 'r0' is unscored.\n"


def test_an_interruption_is_130(failing: Any, capsys: pytest.CaptureFixture[str]) -> None:
    failing(KeyboardInterrupt())
    assert main(["list"]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err.strip() == "Interrupted."


def test_trouble_with_the_disk_is_a_sentence(failing: Any, capsys: pytest.CaptureFixture[str]) -> None:
    failing(PermissionError(13, "Permission denied", "outputs/x"))
    assert main(["list", "--json"]) == 1
    out, err = capsys.readouterr()
    assert err == "[Errno 13] Permission denied: 'outputs/x'\n"
    assert json.loads(out)["error"] == "PermissionError"
    assert main(["--log-level", "debug", "list"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_exception_of_project_code_is_a_sentence_with_its_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        int("seven")

    monkeypatch.setattr("evsys_sdk.cli.project.registry.list_.callback", broken)
    assert main(["list", "--json"]) == 1
    out, err = capsys.readouterr()
    where = f'{__file__}:{broken.__code__.co_firstlineno + 1}: `int("seven")`'
    assert err == f"{where}: ValueError: invalid literal for int() with base 10: 'seven'. Correct that code.\n"
    assert json.loads(out)["error"] == "ValueError"


def test_a_bug_is_not_hidden(failing: Any) -> None:
    failing(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["list"])


def test_log_lines_go_to_stderr_at_the_chosen_level(
    failing: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def log(*_: Any, **__: Any) -> None:
        get_logger("test").info("working")

    monkeypatch.setattr("evsys_sdk.cli.project.registry.list_.callback", log)
    assert main(["list"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["--log-level", "INFO", "list"]) == 0
    assert capsys.readouterr().err.endswith("INFO    working\n")
    monkeypatch.setenv("EVSYS_LOGGING_LEVEL", "info")
    assert main(["list"]) == 0
    out, err = capsys.readouterr()
    assert (out, err.count("working")) == ("", 1)


@pytest.mark.e2e
def test_a_reader_that_has_gone_is_not_an_error() -> None:
    """As in `evsys list | head -1`, where no one reads the rest."""
    assert without_reader("list") == (0, "")
    assert without_reader("schema", "transform", "dedup", "--json")[0] == 1


@pytest.mark.e2e
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [("list",), ("list", "--json"), ("schema", "transform", "dedup", "--json")])
def test_a_full_disk_is_a_sentence(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        code, err = with_stdout(full.fileno(), *arguments)
    assert code == 1
    assert "Traceback" not in err
    assert "No space left on device" in err or "is not registered" in err


def without_reader(*arguments: str) -> tuple[int, str]:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return with_stdout(writing, *arguments)
    finally:
        os.close(writing)


def with_stdout(stdout: int, *arguments: str) -> tuple[int, str]:
    environment = os.environ | {"PYTHONPATH": SOURCE}
    command = [*COMMAND, *arguments]
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, env=environment, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.e2e
def test_ctrl_c_ends_a_command_with_130_and_a_word(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n", encoding="utf-8")
    process = subprocess.Popen(
        [*COMMAND, "list", "--import", "waits.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": SOURCE},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"  # what imported code prints is kept out of the answer
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip() == "Interrupted."


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_can_source_the_completion_script_and_completes_with_it() -> None:
    script = run("completion", "bash")
    assert (script.returncode, script.stderr) == (0, "")
    assert script.stdout.startswith('# To keep it, add this to ~/.bashrc:  eval "$(evsys completion bash)"\n')
    python = f"{COMMAND[0]} -c '{COMMAND[2]}'"
    test = (
        f'evsys() {{ {python} "$@"; }}\nexport -f evsys\n{script.stdout}\n'
        "complete -p evsys\nCOMP_WORDS=(evsys va)\nCOMP_CWORD=1\n"
        f"COMP_WORDS='evsys va' COMP_CWORD=1 _EVSYS_COMPLETE=bash_complete {python}\n"
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", test],
        env=os.environ | {"PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "_evsys_completion evsys" in done.stdout, done.stderr
    assert "plain,validate" in done.stdout, done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_their_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    out, err = capsys.readouterr()
    assert "_EVSYS_COMPLETE" in out
    assert out.startswith("# ")
    assert err == ""


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("arguments", "needless"),
    [
        (["--help"], "numpy pydantic rich httpx yaml"),
        (["dataset", "--help"], "numpy pydantic rich httpx yaml"),
        (["history"], "numpy pydantic rich httpx yaml matplotlib"),
        (["context"], "numpy pydantic rich httpx yaml matplotlib"),
        (["validate", str(ROOT / "examples/01_quickstart/compare.yaml")], "numpy rich httpx torch"),
    ],
)
def test_a_command_imports_only_what_it_needs(tmp_path: Path, arguments: list[str], needless: str) -> None:
    write_experiment(tmp_path / "outputs", "rates")
    code = (
        f"import sys; from evsys_sdk.cli.main import main; assert main({arguments}) == 0\n"
        f"assert not (found := set({needless.split()}) & set(sys.modules)), found"
    )
    environment = os.environ | {"PYTHONPATH": SOURCE}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_logs_of_an_arm_are_its_metrics_and_an_unknown_arm_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_experiment(tmp_path / "outputs", "e", runs={"r": 0.5})
    assert main(["logs", str(folder), "--arm", "r__seed43", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["arm"], answer["what"]) == ("r__seed43", "metrics")
    assert main(["logs", str(folder), "--arm", "nope"]) == 1
    assert "there is no arm 'nope'. Choose one of: r__seed42, r__seed43." in capsys.readouterr().err
    assert main(["logs", str(folder), "--metrics", "--rollouts", "val"]) == 1
    assert "--metrics and --rollouts cannot be used together" in capsys.readouterr().err
