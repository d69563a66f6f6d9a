"""Weights & Biases, with the real package: offline for a whole run, online as far as one gets without a network."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from evsys_sdk.observers.callbacks.wandb_logger import WandbLogger
from evsys_sdk.training.callback import RunControl

if TYPE_CHECKING:
    from .conftest import MakeInfo

needs_wandb = pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="wandb is not installed; it is part of the extra 'wandb'"
)

RUN = """
import sys
from pathlib import Path
from evsys_sdk.errors import EvsysError
from evsys_sdk.protocols import RunResult
from evsys_sdk.observers.callbacks.wandb_logger import WandbLogger
from evsys_sdk.training.callback import EvalRecord, RunControl, RunInfo

run_dir, mode, done = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
config = {"algorithm": {"kind": "sft"}, "inference": {"api_key": "sk-very-secret"}}
callback = WandbLogger(mode=mode, tags=["a", "b"], timeout_seconds=3)
info = RunInfo("arith/metic", "arm-a", run_dir, config, 10, steps_done=done, hypothesis="It learns.")
try:
    callback.on_run_start(info, RunControl())
except EvsysError as error:
    sys.exit(f"{type(error).__name__}: {error}")
for step in range(done + 1, done + 4):
    callback.on_step(step, {"loss": 1 / step})
callback.on_eval(EvalRecord("", "val", done + 3, {"pass@1": 0.5}))
callback.on_run_end(RunResult("arm-a", "failed", error="it broke"))
callback.close()
"""


def environment(home: Path, **more: str) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    return variables | {"HOME": str(home), "WANDB_ERROR_REPORTING": "false", "NO_COLOR": "1"} | more


def run(tmp_path: Path, mode: str, done: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "home").mkdir(exist_ok=True)
    command = [sys.executable, "-c", RUN, str(tmp_path / "run"), mode, str(done)]
    environ = environment(tmp_path / "home", **more)
    return subprocess.run(
        command, env=environ, stdin=subprocess.DEVNULL, text=True, capture_output=True, check=False, timeout=100
    )


def records(path: Path) -> list[Any]:
    """What wandb wrote offline: protocol buffers in the log format of LevelDB, behind seven bytes of its own."""
    from wandb.proto import wandb_internal_pb2

    data, position, lines, partial = path.read_bytes(), 7, [], b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        partial += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(partial)
            lines.append(record)
            partial = b""
    return lines


def history(path: Path) -> list[dict[str, float]]:
    rows = [
        {"".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records(path)
        if record.HasField("history")
    ]
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]


@needs_wandb
@pytest.mark.slow
def test_a_whole_run_offline_and_its_resume(tmp_path: Path) -> None:
    first = run(tmp_path, "offline")
    assert first.returncode == 0, first.stderr
    stored = json.loads((tmp_path / "run/wandb.json").read_text(encoding="utf-8"))
    second = run(tmp_path, "offline", done=2)
    assert second.returncode == 0, second.stderr
    assert json.loads((tmp_path / "run/wandb.json").read_text(encoding="utf-8")) == stored

    files = sorted((tmp_path / "run/wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    assert [path.name for path in files] == [f"run-{stored['id']}.wandb"] * 2
    assert history(files[0]) == [
        {"loss": 1.0, "step": 1},
        {"loss": 0.5, "step": 2},
        {"loss": 1 / 3, "step": 3},
        {"val/pass@1": 0.5, "step": 3},
    ]
    assert [row["step"] for row in history(files[1])] == [3, 4, 5, 5]  # the repeated step is not refused

    [started] = [record.run for record in records(files[0]) if record.HasField("run")][:1]
    assert (started.project, started.run_group, started.display_name) == ("arith-metic", "arith/metic", "arm-a")
    assert (list(started.tags), started.notes) == (["a", "b"], "It learns.")
    assert [record.exit.exit_code for record in records(files[0]) if record.HasField("exit")] == [1]
    everything = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert b"[redacted]" in everything
    assert b"sk-very-secret" not in everything


@needs_wandb
def test_online_without_a_key_fails_at_once_and_says_what_to_do(tmp_path: Path) -> None:
    done = run(tmp_path, "online")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "EvsysAuthError: wandb_logger: Weights & Biases rejected the login: No API key configured. "
        "Use `wandb login` to log in. Set WANDB_API_KEY, run `wandb login`, or set `mode: offline`."
    )


@needs_wandb
def test_online_with_a_malformed_key_does_not_repeat_it(tmp_path: Path) -> None:
    done = run(tmp_path, "online", WANDB_API_KEY="short-secret")
    assert done.returncode == 1
    assert "EvsysAuthError" in done.stderr
    assert "WANDB_API_KEY" in done.stderr
    assert "short-secret" not in done.stderr


@needs_wandb
@pytest.mark.slow
def test_online_without_a_network_fails_and_names_the_way_out(tmp_path: Path) -> None:
    done = run(tmp_path, "online", WANDB_API_KEY="k" * 40, WANDB_BASE_URL="http://127.0.0.1:9")
    assert done.returncode == 1
    assert "EvsysError: wandb_logger cannot start a run at Weights & Biases" in done.stderr
    assert "`mode: offline`" in done.stderr
    assert "k" * 40 not in done.stderr


@needs_wandb
def test_no_key_is_requested_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    controller, terminal = pty.openpty()
    command = [sys.executable, "-c", RUN, str(tmp_path / "run"), "online", "0"]
    environ = environment(tmp_path / "home", TERM="xterm")
    with subprocess.Popen(command, env=environ, stdin=terminal, stderr=terminal, stdout=terminal) as process:
        os.close(terminal)
        guard = threading.Timer(60, process.kill)  # a question would wait forever
        guard.start()
        shown = b""
        while True:
            try:
                shown += os.read(controller, 65536)
            except OSError:  # the other end was closed
                break
        process.wait()
        guard.cancel()
    os.close(controller)
    assert process.returncode == 1
    assert b"mode: offline" in shown
    assert b"Enter your choice" not in shown


def test_disabled_does_nothing(make_info: MakeInfo, tmp_path: Path) -> None:
    callback = WandbLogger(mode="disabled")
    callback.on_run_start(make_info(run_dir=tmp_path), RunControl())
    callback.on_step(1, {"loss": 1.0})
    callback.close()
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValidationError, match="mode"):
        WandbLogger(mode="sometimes")
