"""Whatever the code of one arm does to its process, that arm has failed with its cause, and the others never notice."""

import importlib
import json
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig, ExperimentResult
from evsys_sdk.experiment import Experiment
from evsys_sdk.record.events import Kind, read_events

type Config = Callable[..., ExperimentConfig]

CODE = """
import ctypes, os, signal, sys, threading, time
from pathlib import Path
from evsys_sdk import register_callback
from evsys_sdk.training.callback import Callback

def spin():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        pass

def swallow():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

def fork():
    if os.fork() == 0:
        time.sleep(3600)

def fork_away():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)

def fork_and_go_on():
    os.fork()

FAULTS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(0),
    "exit3": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "sysexit": lambda: sys.exit("enough"),
    "hang": lambda: time.sleep(3600),
    "spin": spin,
    "swallow": swallow,
    "memory": lambda: bytearray(1 << 50),
    "close": lambda: os.closerange(3, 512),
    "killgroup": lambda: os.killpg(0, signal.SIGKILL),
    "forks": fork,
    "forksaway": fork_away,
    "forkson": fork_and_go_on,
    "thread": lambda: threading.Thread(target=time.sleep, args=(3600,)).start(),
    "chdir": lambda: os.chdir("/"),
    "environ": lambda: os.environ.clear(),
}

@register_callback("strikes")
class Strikes(Callback):
    def on_run_start(self, info, control):
        self.fault = info.run_id.partition("-")[0]

    def on_step(self, step, metrics):
        if step == 2 and self.fault in FAULTS:
            FAULTS[self.fault]()
"""

CAUSES = {
    "sysexit": "called sys.exit",
    "kill": "SIGKILL",
    "exit": "exit code 0",
    "exit3": "exit code 3",
    "segfault": "SIGSEGV",
    "abort": "SIGABRT",
    "hang": "arm_timeout_s",
    "spin": "arm_timeout_s",
    "swallow": "arm_timeout_s",
    "close": "",
    "killgroup": "SIGKILL",
}
HANGING = ["hang", "spin", "swallow"]
QUICK = [fault for fault in CAUSES if fault not in HANGING]
HARMLESS = ["memory", "forks", "forksaway", "thread", "chdir", "environ"]
"""What an arm may do and go on: it ends as if it had not, and so do the others."""

LIMIT_S = 20.0
"""Long enough for a sound arm on a busy machine."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "hostile_arms.py").write_text(textwrap.dedent(CODE), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "hostile_arms", raising=False)
    importlib.import_module("hostile_arms")
    return tmp_path


def sweep(config: Config, faults: list[str], at_once: int, **more: Any) -> ExperimentConfig:
    """An arm for each fault, and a sound one after every third."""
    runs: list[dict[str, Any]] = []
    for number, fault in enumerate(faults):
        runs.append({"name": f"{fault}-{number}", "seed": 1})
        if number % 3 == 0:
            runs.append({"name": f"sound-{number}", "seed": 1})
    several = {"max_concurrent_arms": at_once} if at_once > 1 else {}
    options = {"callbacks": [{"kind": "strikes"}], "output_dir": "outputs", **several, **more}
    return config(runs=runs, params={"max_steps": 4}, **options)


def lines_of(result: ExperimentResult, arm: str) -> list[dict[str, Any]]:
    text = (result.path / arm / "logs" / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def scores_of(arm: Any) -> dict[str, float]:
    return {name: value for name, value in arm.metrics.items() if not name.startswith("time/")}


def check(result: ExperimentResult, undisturbed: ExperimentResult) -> None:
    [expected] = undisturbed.arms
    assert result.exit_code == 2
    for arm in result.arms:
        fault = arm.name.partition("-")[0]
        if fault in CAUSES:
            assert arm.status == "failed", arm.name
            assert CAUSES[fault] in str(arm.result.error), arm.name
            written = json.loads((result.path / arm.name / "run_result.json").read_text(encoding="utf-8"))
            assert (written["status"], written["error"]) == ("failed", arm.result.error)
        else:
            assert arm.status == "completed", (arm.name, arm.result.error)
            assert scores_of(arm) == scores_of(expected), arm.name
            assert lines_of(result, arm.name) == lines_of(undisturbed, expected.name), arm.name
    assert Path.cwd() == result.path.absolute().parents[1], "nobody has moved this process"


def leftovers(folder: Path) -> list[str]:
    """Processes that an arm has left behind: those whose environment names the folder of the project."""
    processes: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            if b"EVSYS_ARM_WORKER=1" in environment and str(folder).encode() in environment:
                processes.append((process / "cmdline").read_text(encoding="utf-8"))
        except OSError:
            continue
    return processes


@pytest.fixture
def undisturbed(config: Config) -> ExperimentResult:
    return Experiment(config(params={"max_steps": 4}, run={"seed": 1}, name="undisturbed")).run()


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 3])
def test_every_fault_harms_its_own_arm_only(
    config: Config, project: Path, undisturbed: ExperimentResult, at_once: int
) -> None:
    check(Experiment(sweep(config, [*QUICK, *HARMLESS], at_once)).run(), undisturbed)
    assert leftovers(project) == []


@pytest.mark.slow
def test_an_arm_that_hangs_is_ended_at_its_limit_and_harms_no_other(
    config: Config, project: Path, undisturbed: ExperimentResult
) -> None:
    check(Experiment(sweep(config, HANGING, 3, arm_timeout_s=LIMIT_S)).run(), undisturbed)
    assert leftovers(project) == []


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 4])
def test_a_hundred_faults_at_random(config: Config, project: Path, undisturbed: ExperimentResult, at_once: int) -> None:
    faults = random.Random(at_once).choices([*QUICK, *HARMLESS], k=100)
    check(Experiment(sweep(config, faults, at_once)).run(), undisturbed)
    assert leftovers(project) == []


@pytest.mark.slow
def test_two_copies_of_an_arm_leave_one_record(config: Config, project: Path, undisturbed: ExperimentResult) -> None:
    """They share an event loop and wake each other's calls, so it may end well or in its time limit; others do well."""
    result = Experiment(sweep(config, ["forkson"], 1, arm_timeout_s=LIMIT_S)).run()
    twins, sound = result.arms
    assert twins.status == "completed" or "arm_timeout_s" in str(twins.result.error)
    steps = [line["step"] for line in lines_of(result, twins.name)]
    assert steps == sorted(set(steps)), "no line was written twice"
    assert scores_of(sound) == scores_of(undisturbed.arms[0])
    assert leftovers(project) == []


@pytest.mark.slow
def test_a_lost_arm_is_tried_again_but_not_one_whose_time_was_over(config: Config, project: Path) -> None:
    result = Experiment(sweep(config, ["exit3", "hang"], 1, arm_retries=1, arm_timeout_s=LIMIT_S)).run()
    retried = [event.text("arm") for event in read_events(result.path) if event.kind == Kind.ARM_RETRIED]
    assert retried == ["exit3-0"]
    assert [arm.status for arm in result.arms] == ["failed", "completed", "failed"]


def test_a_time_limit_that_no_process_can_keep_is_refused(config: Config, project: Path) -> None:
    script = """
    import sys, time
    from evsys_sdk import Experiment, ExperimentConfig, register_callback
    from evsys_sdk.training.callback import Callback

    @register_callback("typed_here")
    class Hangs(Callback):
        def on_step(self, step, metrics):
            while True:
                try:
                    time.sleep(0.1)
                except ValueError:
                    pass

    config = ExperimentConfig.model_validate_json(open("config.json", encoding="utf-8").read())
    result = Experiment(config).run()
    print(result.arms[0].status, result.arms[0].result.error)
    sys.exit(result.exit_code)
    """
    (project / "script.py").write_text(textwrap.dedent(script), encoding="utf-8")
    fields = config(arm_timeout_s=1.0).model_dump(mode="json")
    fields["callbacks"] = [{"kind": "typed_here"}]
    (project / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert "arm_timeout_s cannot be kept" in done.stderr
    assert "Move them to a separate module" in done.stderr


def test_ctrl_c_is_acknowledged_at_once_and_a_second_one_ends_the_arm(config: Config, project: Path) -> None:
    fields = sweep(config, ["hang"], 1).model_dump(mode="json")
    (project / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    command = [sys.executable, "-m", "evsys_sdk", "run", "config.json", "--quiet", "--import", "hostile_arms.py"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    killer = threading.Timer(100, running.kill)
    killer.start()
    try:
        while not list(project.glob("outputs/e/hang-0/logs/metrics.jsonl")):
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        assert running.stderr
        while "interrupt again" not in (line := running.stderr.readline()):
            assert line, "the request was not acknowledged"
        assert running.poll() is None, "it waits for the step to end"
        running.send_signal(signal.SIGINT)
        running.communicate()
        assert running.returncode == 130
    finally:
        killer.cancel()
    assert leftovers(project) == []
