"""`evsys eval model` from end to end: the mock model, a project's own client, failures, and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.cli.main import main

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "13_eval_model"
COMMAND = [sys.executable, "-c", "import sys; from evsys_sdk.cli.main import main; sys.exit(main())"]

CLIENT = '''
import time
from pathlib import Path

from evsys_sdk import register_inference


@register_inference("routes")
class Routes:
    """Knows two tools, and fails or dawdles on request."""

    def __init__(self, model: str = "", checkpoint_path: str = "") -> None:
        self.model = model

    def generate(self, *, prompt, max_tokens, temperature, stop=None):
        with Path("asked.txt").open("a", encoding="utf-8") as file:
            file.write("x")
        if self.model == "slow" and Path("asked.txt").stat().st_size > 2:
            time.sleep(60)
        if self.model == "broken" or (self.model == "shaky" and "phone" in prompt):
            raise ValueError("cannot phone")
        return "<answer>call_contact</answer>" if "phone" in prompt else "book_flight"
'''
ROWS = [
    {"query": "phone Ada", "tool_slug": "phone_call", "toolkit": "people"},
    {"query": "fly to Quito", "tool_slug": "book_flight", "toolkit": "travel"},
    {"query": "sail to Quito", "tool_slug": "book_boat", "toolkit": "travel"},
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "client.py").write_text(CLIENT, encoding="utf-8")
    (tmp_path / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    (tmp_path / "aliases.json").write_text('{"phone_call": ["call_contact"]}', encoding="utf-8")
    (tmp_path / "loose.json").write_text('{"book_boat": ["book_flight"]}', encoding="utf-8")
    return tmp_path


def arguments(*more: str, kind: str = "routes", model: str = "good") -> list[str]:
    files = ["--dataset", "eval.jsonl", "--aliases", "aliases.json", "--output-dir", "out"]
    return ["eval", "model", *files, "--inference-kind", kind, "--model-name", model, "--import", "client.py", *more]


def asked(project: Path) -> int:
    return (project / "asked.txt").stat().st_size


def test_the_example_runs_on_mock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--dataset", str(EXAMPLE / "eval.jsonl"), "--aliases", str(EXAMPLE / "aliases.json")]
    model = ["--inference-kind", "mock", "--model-name", "tiny-router", "--max-tokens", "8"]
    assert main(["eval", "model", *files, "--output-dir", str(tmp_path / "out"), *model]) == 0
    out, err = capsys.readouterr()
    assert "| pass@1 |" in out
    assert out.endswith(f"results: {tmp_path / 'out'}\n")
    assert "answers: 24/24" in err
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        ".lock",
        "predictions.jsonl",
        "result.json",
        "summary.json",
        "summary.md",
    }


@pytest.mark.usefixtures("project")
def test_a_projects_own_client_is_scored_by_aliases(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments("--secondary-aliases", "loose.json", "--json", "--quiet")) == 0
    out, err = capsys.readouterr()
    parsed: dict[str, Any] = json.loads(out)
    assert err == ""
    assert parsed["model"] == "routes:good"
    assert parsed["pass_at"]["1"]["value"] == pytest.approx(2 / 3)
    assert parsed["pass_at_with_secondary"]["1"]["value"] == 1.0
    assert {kind: parsed["rates"][kind]["value"] for kind in ("exact", "alias", "secondary")} == pytest.approx(
        {"exact": 1 / 3, "alias": 1 / 3, "secondary": 1 / 3}
    )
    assert parsed["by_toolkit"]["travel"]["pass_at_1"]["value"] == 0.5
    assert json.loads(Path("out/summary.json").read_text("utf-8")) == parsed


def test_the_same_command_again_asks_nothing(project: Path) -> None:
    assert main(arguments("--max-attempts", "2", "--temperature", "1")) == 0
    assert main(arguments("--max-attempts", "2", "--temperature", "1")) == 0
    assert asked(project) == 6
    assert main(arguments("--checkpoint-path", "other")) == 0
    assert asked(project) == 9
    assert Path("out/predictions.1.jsonl").exists()


@pytest.mark.usefixtures("project")
def test_failures_are_reported_and_decide_the_exit_code_only_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(model="shaky")) == 0
    out, err = capsys.readouterr()
    assert "3 rows, 1 attempt each; 1 attempt failed." in out
    assert "1 without an answer, first task 'row-1', sample 1: ValueError: cannot phone" in err
    assert main(arguments("--fail-on-retries", model="shaky")) == 2
    assert main(arguments("--fail-on-retries")) == 0


@pytest.mark.usefixtures("project")
def test_an_adapter_is_what_the_mock_model_answers_from(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from evsys_sdk.backends.client import ModelSpec
    from evsys_sdk.backends.mock.backend import MockBackend

    backend = MockBackend()
    handles = backend.prepare(model=ModelSpec("tiny", seed=3), run_dir=tmp_path)
    ref = handles["training_client"].sampler("adapter").result().ref
    backend.teardown(handles)
    asked = ["--max-tokens", "8", "--adapter-path", ref, "--json", "--quiet"]
    assert main(arguments(*asked, kind="mock", model="tiny")) == 0
    assert json.loads(capsys.readouterr().out)["model"] == f"mock:tiny adapter {ref}"


def test_a_client_with_one_model_takes_the_name_as_a_label(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = CLIENT.replace('self, model: str = "", checkpoint_path: str = ""', "self").replace("= model", '= "own"')
    (project / "client.py").write_text(code, encoding="utf-8")
    assert main(arguments("--json", model="nightly")) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "routes:nightly"


@pytest.mark.usefixtures("project")
def test_nothing_scored_is_never_a_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments("--json", model="broken")) == 2
    assert json.loads(capsys.readouterr().out)["pass_at"] == {"1": None}


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--dataset", "evl.jsonl"], "evl.jsonl: there is no such file. Did you mean 'eval.jsonl'?"),
        (["--aliases", "eval.jsonl"], "eval.jsonl: this is not JSON"),
        (["--inference-kind", "mokc"], "inference_client 'mokc' is not registered; did you mean 'mock'?"),
        (
            ["--inference-kind", "mock", "--adapter-path", "a", "--checkpoint-path", "b"],
            "--checkpoint-path: 'mock' loads one set of weights, and --adapter-path already names one",
        ),
        (["--inference-kind", "mock", "--checkpoint-path", "none"], "none"),
        (["--inference-params", "[1]"], "--inference-params must be a JSON object, not [1]"),
        (["--inference-params", "{"], "--inference-params: this is not JSON"),
        (
            ["--inference-params", '{"sed": 1}', "--inference-kind", "mock"],
            "inference-params.sed: unknown key 'sed'. Did you mean 'seed'?",
        ),
        (["--inference-params", '{"sed": 1}'], "unknown key 'sed'. Known keys here: checkpoint_path, model."),
        (["--temperature", "nan"], "--temperature: should be a finite number"),
        (["--max-attempts", "0"], "'--max-attempts': 0 is not in the range x>=1"),
    ],
)
def test_bad_input_is_a_sentence(more: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(*more)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize("missing", ["--dataset", "--aliases", "--output-dir", "--inference-kind", "--model-name"])
def test_what_cannot_be_guessed_must_be_given(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = arguments()[:-2]
    at = given.index(missing)
    assert main([*given[:at], *given[at + 2 :]]) == 1
    assert f"Missing option '{missing}'" in capsys.readouterr().err


@pytest.mark.e2e
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_command_continues_where_it_was(project: Path, end: signal.Signals) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(
        [*COMMAND, *arguments("--batch-size", "1", model="slow")],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("answers: 2/3"):
            break
    process.send_signal(end)
    process.communicate(timeout=60)
    assert process.returncode != 0
    (project / "asked.txt").unlink()
    assert main(arguments("--batch-size", "1", model="slow")) == 0
    assert asked(project) == 1
    summary = json.loads(Path("out/summary.json").read_text("utf-8"))
    assert summary["pass_at"]["1"]["value"] == pytest.approx(2 / 3)
