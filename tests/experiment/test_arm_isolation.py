"""What an arm, its process or its launcher does wrong stays its own, and what it had finished is kept."""

import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig, RunResult, register_launcher
from evsys_sdk.errors import DataError, TrainingError
from evsys_sdk.experiment import Experiment
from evsys_sdk.experiment.jobs.background import cancel
from evsys_sdk.experiment.launcher import ArmJob, Launch, WorkerLost, execute
from evsys_sdk.record.events import Event, Journal, read_events
from evsys_sdk.record.lock import folder_lock
from evsys_sdk.settings import import_project_code
from evsys_sdk.training.callback import RunControl

type Config = Callable[..., ExperimentConfig]
RUNS = [{"name": "a", "seed": 1}, {"name": "b", "seed": 2}]
PROCESSES = {"launcher": {"kind": "local", "params": {"arms_in": "processes"}}, "max_concurrent_arms": 2}
THREADS = {"launcher": {"kind": "local", "params": {"arms_in": "threads"}}, "max_concurrent_arms": 2}

CODE = """
import os, subprocess, sys, time
from evsys_sdk import RunResult, register_algorithm, register_callback
from evsys_sdk.training.callback import Callback

class Own:
    def __init__(self, **params):
        self.params = params

@register_algorithm("returns_a_function")
class ReturnsAFunction(Own):
    def train(self, ctx):
        return RunResult(ctx.run_id, "completed", {"score": 0.5}, extras={"made_by": lambda: None})

@register_algorithm("looks_around")
class LooksAround(Own):
    def train(self, ctx):
        print("a line of the user's own code")
        child = [sys.executable, "-c", "import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)"]
        seen = {"python_path": os.environ.get("PYTHONPATH"), "child": subprocess.run(child).returncode}
        return RunResult(ctx.run_id, "completed", extras=seen)

@register_callback("waits")
class Waits(Callback):
    def on_run_start(self, info, control):
        self.name = info.run_id

    def on_step(self, step, metrics):
        open(self.name + ".waits", "w").close()
        time.sleep(3600)

@register_callback("slow")
class Slow(Callback):
    def on_step(self, step, metrics):
        time.sleep(0.2)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose module `odd_arms` can be imported by workers too."""
    (tmp_path / "odd_arms.py").write_text(textwrap.dedent(CODE), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "odd_arms", raising=False)
    importlib.import_module("odd_arms")
    return tmp_path


def written(folder: Path, arm: str) -> dict[str, Any]:
    return json.loads((folder / arm / "run_result.json").read_text(encoding="utf-8"))


def test_a_result_that_cannot_travel_comes_back_as_the_record_has_it(config: Config, project: Path) -> None:
    runs = [{**run, "algorithm": {"kind": "returns_a_function"}} for run in RUNS]
    result = Experiment(config(runs=runs, **PROCESSES)).run()
    assert [arm.status for arm in result.arms] == ["completed", "completed"]
    assert result.arms[0].metrics == {"score": 0.5}
    assert "function" in result.arms[0].result.extras["made_by"]


def test_programs_started_by_an_arm_see_nothing_of_its_worker(config: Config, project: Path) -> None:
    runs = [{**RUNS[0], "algorithm": {"kind": "looks_around"}}]
    result = Experiment(config(runs=runs, **PROCESSES)).run()
    assert written(result.path, "a")["extras"]["python_path"] == os.environ.get("PYTHONPATH")
    assert written(result.path, "a")["extras"]["child"] == -signal.SIGTERM


def test_what_arms_print_stays_out_of_the_json(config: Config, project: Path) -> None:
    run = config(runs=[{**run, "algorithm": {"kind": "looks_around"}} for run in RUNS], **PROCESSES)
    (project / "config.json").write_text(run.model_dump_json(), encoding="utf-8")
    command = [sys.executable, "-m", "evsys_sdk", "run", "config.json", "--json", "--quiet", "--import", "odd_arms.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert json.loads(done.stdout)["status"] == "completed", done.stderr
    assert done.stderr.count("a line of the user's own code") == 2


def test_a_finished_arm_is_kept_although_its_process_was_lost_on_the_way_home(config: Config) -> None:
    @register_launcher("lost_on_the_way_home")
    class LostOnTheWayHome:
        name = "lost_on_the_way_home"

        def open(self, launch: Launch, n_arms: int) -> int:
            self.launch = launch
            return 1

        def start(self, job: ArmJob) -> Future[RunResult]:
            if job.arm.name == "b":
                raise RuntimeError("no machine is left")
            execute(job, self.launch, RunControl())
            lost: Future[RunResult] = Future()
            lost.set_exception(WorkerLost("gone"))
            return lost

        def stop(self, arm: str, reason: str) -> None: ...

        def kill(self, arm: str) -> None: ...

        def close(self) -> None: ...

    result = Experiment(config(runs=RUNS, launcher={"kind": "lost_on_the_way_home"}, arm_retries=1)).run()
    assert [arm.status for arm in result.arms] == ["completed", "failed"]
    assert written(result.path, "a")["status"] == "completed"
    assert written(result.path, "b")["error"] == "RuntimeError: no machine is left"
    retried = [event["arm"] for event in map(Event.to_dict, read_events(result.path)) if event["kind"] == "arm_retried"]
    assert retried == ["b"]


def test_code_that_a_process_cannot_import_is_named_in_the_record(config: Config, project: Path) -> None:
    code = "import os, sys\nif os.environ.get('EVSYS_ARM_WORKER'): sys.exit('only here')\n"
    code += "from evsys_sdk import register_callback\nregister_callback('picky')(type('Picky', (), {}))\n"
    (project / "picky.py").write_text(code, encoding="utf-8")
    import_project_code(["picky.py"])
    result = Experiment(config(runs=RUNS, **PROCESSES)).run()
    assert [arm.status for arm in result.arms] == ["failed", "failed"]
    assert "picky.py" in str(written(result.path, "a")["error"])


def test_a_second_ctrl_c_ends_the_processes_of_all_arms(
    config: Config, project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = Experiment(config(runs=RUNS, callbacks=[{"kind": "waits"}], **PROCESSES))

    def press_twice() -> None:
        while len(list(project.glob("*.waits"))) < 2:  # before that, the first request is enough
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
        while "stopping after the current step" not in caplog.text:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press_twice).start()
    with pytest.raises(KeyboardInterrupt):
        experiment.run()
    for arm in "ab":
        with folder_lock(project / "outputs" / "e" / arm, what=arm, patience_s=0):  # no one works there any more
            pass


def test_arms_are_stopped_when_the_record_cannot_be_written(
    config: Config, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Journal, kind: str, **payload: Any) -> str:
        if kind == "arm_ended":
            raise DataError("journal.jsonl: cannot be written: No space left on device.")
        return append(self, kind, **payload)

    append = Journal.append
    monkeypatch.setattr(Journal, "append", full)
    runs = [RUNS[0], {**RUNS[1], "algorithm": {"kind": "sft", "params": {"max_steps": 200, "batch_size": 1}}}]
    with pytest.raises(DataError, match="No space left"):
        Experiment(config(runs=runs, callbacks=[{"kind": "slow"}], **THREADS)).run()
    stopped = written(project / "outputs" / "e", "b")
    assert (stopped["status"], stopped["metrics"]["steps"] < 200) == ("cancelled", True)


def test_cancel_names_what_keeps_a_dead_experiment_locked(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with folder_lock(tmp_path, what="it"):
        owner = json.loads((tmp_path / ".lock").read_text(encoding="utf-8"))
        (tmp_path / ".lock").write_text(json.dumps({**owner, "pid": gone.pid}), encoding="utf-8")
        with pytest.raises(TrainingError, match=rf"process {gone.pid}, which ran it, has ended.*\.lock"):
            cancel(tmp_path, patience_s=0.1)
        (tmp_path / ".lock").write_text("", encoding="utf-8")
        with pytest.raises(TrainingError, match="names no process"):
            cancel(tmp_path, patience_s=0.1)
