"""`evsys run`: results on stdout, progress on stderr, an exit code for every outcome, and nothing lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.cli.main import main

CONFIG = """\
name: hello
output_dir: outputs
run:
  name: r
  data: &rows { path: rows.jsonl, transforms: [{ kind: jsonl_to_chat }] }
  model: { name: tiny }
  algorithm: { kind: sft, params: { max_steps: 4, batch_size: 3 } }
  backend: { kind: mock }
  eval: { metrics: [{ kind: exact_match }], eval_data: *rows }
"""
OWN = """\
from evsys_sdk import RunResult, register_algorithm, register_callback
from evsys_sdk.training.callback import Callback

print("imported")

@register_algorithm("talkative")
class Talkative:
    def train(self, ctx):
        print("training, dear user")
        return RunResult(ctx.run_id, "completed", {"x": float("nan")})

@register_callback("shout")
class Shout(Callback):
    def on_step(self, step, metrics):
        print("STEP", step)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    rows = [{"prompt": word, "completion": word.upper()} for word in ("ash", "bay", "elm", "fir", "oak", "yew")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "own_for_run.py").write_text(OWN, encoding="utf-8")
    return tmp_path


def rewrite(project: Path, *changes: tuple[str, str]) -> None:
    text = CONFIG
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (project / "config.yaml").write_text(text, encoding="utf-8")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "evsys_sdk", "run", "config.yaml", *arguments]


def test_the_outcome_is_a_table_on_stdout_and_progress_is_on_stderr(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "config.yaml"]) == 0
    out, err = capsys.readouterr()
    header, _, row, record, conclusion, following = out.splitlines()
    assert header.split() == ["run", "status", "steps", "final_loss", "eval/exact_match"]
    assert row.split()[:3] == ["r", "completed", "4"]
    assert row.split()[-1] == "0"
    assert record == "record: outputs/hello"
    assert "the best run is `r`" in conclusion
    assert following.startswith("To do: ")
    assert "step" in err


def test_quiet_shows_no_progress(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "config.yaml", "--quiet"]) == 0
    lines = capsys.readouterr().err.splitlines()
    warnings = ("WARNING every answer to the 6 tasks", "6 of 6 evaluation tasks also occur in the training data")
    assert all(any(warning in line for warning in warnings) for line in lines), lines  # a warning is no progress


@pytest.mark.e2e
def test_json_is_all_there_is_on_stdout_even_if_the_users_code_prints(project: Path) -> None:
    rewrite(
        project,
        ("kind: sft, params: { max_steps: 4, batch_size: 3 }", "kind: talkative"),
        (", eval_data: *rows", ""),
        ("name: hello\n", "name: hello\ncallbacks: [{ kind: shout }]\n"),
    )
    line = command("--json", "--import", "own_for_run.py")
    done = subprocess.run(line, cwd=project, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "x" not in json.loads(done.stdout)["runs"][0]["metrics"]  # NaN is reported and left out
    assert "imported" in done.stderr
    assert "training, dear user" in done.stderr


def test_json_and_the_output_file_say_the_same(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "config.yaml", "--json", "--quiet", "-o", "new/folder/summary.json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert json.loads((project / "new" / "folder" / "summary.json").read_text(encoding="utf-8")) == answer
    assert (answer["name"], answer["interrupted"]) == ("hello", False)
    [run] = answer["runs"]
    parts = {"run_id", "status", "metrics", "artifacts", "error", "extras", "arm_id", "run", "seed"}
    assert set(run) == parts


def test_an_output_file_that_cannot_be_written_is_noticed_before_training(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "config.yaml", "-o", "rows.jsonl/summary.json"]) == 1
    assert "rows.jsonl" in capsys.readouterr().err
    assert not (project / "outputs").exists()
    assert main(["run", "config.yaml", "-o", "."]) == 1
    assert not (project / "outputs").exists()


def test_a_failed_arm_is_exit_2_with_its_reason_on_stderr(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "damaged").mkdir()
    (project / "damaged" / "manifest.json").write_text('{"format": 1}', encoding="utf-8")
    rewrite(project, ("name: tiny", "name: tiny, init_from_checkpoint: damaged"))
    assert main(["run", "config.yaml", "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert "r    failed" in out
    assert "damaged/weights.npz cannot be read" in err
    assert "Traceback" not in out + err


def test_an_unscored_arm_is_exit_2_and_reports_it(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = "inference: { kind: mock, params: { checkpoint: nowhere } }"
    rewrite(project, ("eval_data: *rows", f"eval_data: *rows, {asked}"))
    assert main(["run", "config.yaml", "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert "completed, unscored" in out
    assert "nowhere" in err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("max_steps: 4", "max_stepz: 4"), "max_steps"),
        (("kind: sft", "kind: sftt"), "Did you mean 'sft'?"),
        (("name: hello\n", "name: hello\nlauncher: { kind: ray }\n"), "launcher"),
    ],
    ids=["unknown param", "unknown kind", "unsupported field"],
)
def test_a_config_that_cannot_run_is_exit_1_and_leaves_nothing(
    change: tuple[str, str], message: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(project, change)
    assert main(["run", "config.yaml"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert not (project / "outputs").exists()


def test_steps_and_dry(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "config.yaml", "--quiet", "--steps", "2"]) == 0
    assert re.search(r"completed +2 ", capsys.readouterr().out)
    assert main(["run", "config.yaml", "--quiet", "--dry"]) == 0
    assert "record: outputs/dry/hello" in capsys.readouterr().out
    assert sorted(path.name for path in (project / "outputs").iterdir()) == ["dry", "hello"]


@pytest.mark.parametrize("steps", ["0", "-3", "many"])
def test_steps_must_be_a_number_above_0(steps: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "config.yaml", "--steps", steps]) == 1
    assert "--steps" in capsys.readouterr().err


def test_steps_for_an_algorithm_without_them_is_a_clear_error(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(project, ("kind: sft, params: { max_steps: 4, batch_size: 3 }", "kind: talkative"))
    assert main(["run", "config.yaml", "--import", "own_for_run.py", "--steps", "3"]) == 1
    err = capsys.readouterr().err
    assert "--steps sets max_steps, which the algorithm 'talkative' of run 'r' does not have. Leave --steps out" in err


def test_resume_of_a_finished_experiment_repeats_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "config.yaml", "--json", "--quiet"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["run", "config.yaml", "--json", "--quiet", "--resume"]) == 0
    assert json.loads(capsys.readouterr().out) == first


def test_resume_with_another_config_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "config.yaml", "--quiet"]) == 0
    assert main(["run", "config.yaml", "--quiet", "--resume", "--steps", "9"]) == 1
    assert "differs from the one in outputs/hello in: run" in capsys.readouterr().err


def test_an_output_dir_that_is_a_file_is_one_line(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "outputs").write_text("in the way", encoding="utf-8")
    assert main(["run", "config.yaml", "--quiet"]) == 1
    err = capsys.readouterr().err
    assert "outputs" in err
    assert len(err.splitlines()) == 1


@pytest.mark.e2e
def test_ctrl_c_is_exit_130_and_resume_completes_with_the_same_record(project: Path) -> None:
    rewrite(project, ("max_steps: 4", "max_steps: 60"), ("kind: mock", "kind: mock, params: { latency_ms: 10 }"))
    whole = subprocess.run(command("--quiet"), cwd=project, capture_output=True, text=True, timeout=60, check=False)
    assert whole.returncode == 0, whole.stderr
    (project / "outputs" / "hello").rename(project / "whole")
    process = subprocess.Popen(
        command("--quiet"), cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _wait_for_step(project / "outputs" / "hello" / "r" / "logs" / "metrics.jsonl", process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "r    cancelled" in out
    assert "Run the same command again to continue." in err
    assert "Traceback" not in err
    resumed = subprocess.run(
        command("--quiet", "--resume"), cwd=project, capture_output=True, text=True, timeout=60, check=False
    )
    assert resumed.returncode == 0, resumed.stderr
    assert _record(project / "outputs" / "hello" / "r") == _record(project / "whole" / "r")


def _wait_for_step(metrics: Path, process: subprocess.Popen[str]) -> None:
    while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 5):
        time.sleep(0.01)
    assert process.poll() is None, "it ended before it could be interrupted"


def _record(run: Path) -> dict[str, Any]:
    result = json.loads((run / "run_result.json").read_text(encoding="utf-8"))
    return {
        "log": (run / "logs" / "metrics.jsonl").read_bytes(),
        "metrics": result["metrics"],
        "status": result["status"],
    }


@pytest.mark.e2e
def test_a_closed_stdout_does_not_undo_the_run(project: Path) -> None:
    """As with `evsys run ... | head -0`."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command("--quiet"), cwd=project, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(writer)
    assert "Traceback" not in done.stderr
    assert (project / "outputs" / "hello" / "r" / "run_result.json").exists()


@pytest.mark.parametrize(
    "change",
    [
        ("name: hello\n", "name: hello\nlauncher: { kind: nowhere }\n"),
        ("  name: r\n", "  name: config.json\n"),
        ("kind: sft, params: { max_steps: 4, batch_size: 3 }", "kind: combo, params: { phases: [{ kind: sfft }] }"),
        ("kind: sft, params: { max_steps: 4, batch_size: 3 }",
         "kind: combo, params: { phases: [{ kind: sft, params: { max_stepz: 3 } }] }"),
        ("name: hello\n", "name: hello\nlog_store: { kind: multiplex, params: { children: [{ kind: jsonll }] } }\n"),
    ],
    ids=["launcher", "folder", "phase kind", "phase param", "child of a log store"],
)  # fmt: skip
def test_validate_refuses_what_run_would_refuse(
    change: tuple[str, str], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(project, change)
    assert main(["validate", "--deep", "config.yaml"]) == 1
    refused = capsys.readouterr().err
    assert main(["run", "config.yaml"]) == 1
    assert capsys.readouterr().err == refused
    assert not (project / "outputs").exists()


def test_a_rehearsal_needs_no_backend_that_is_not_installed(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from evsys_sdk.builtins import Builtin

    lacks = property(lambda self: "local" if self.extra == "local" else None)
    monkeypatch.setattr(Builtin, "missing_extra", lacks)
    text = (project / "config.yaml").read_text("utf-8").replace("kind: mock", "kind: local")
    (project / "config.yaml").write_text(text, "utf-8")
    assert main(["run", "config.yaml"]) == 1
    assert "needs the extra 'local'" in capsys.readouterr().err
    assert main(["run", "config.yaml", "--dry"]) == 0
