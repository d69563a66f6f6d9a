"""Where arms are executed makes no difference to what comes of them, and one that dies takes no other with it."""

import importlib
import json
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig, ExperimentResult, RunResult, register_callback, register_launcher
from evsys_sdk.errors import ConfigError, TrainingError
from evsys_sdk.experiment import Experiment
from evsys_sdk.experiment.launcher import ArmJob, Launch, WorkerLost
from evsys_sdk.experiment.launchers.local import LocalLauncher
from evsys_sdk.record.events import Event, read_events
from evsys_sdk.record.lock import folder_lock, lock_owner
from evsys_sdk.training.callback import Callback

type Config = Callable[..., ExperimentConfig]
RUNS = [{"name": "a", "seed": 1}, {"name": "b", "seed": 2}, {"name": "c", "seed": 3}]
PROCESSES = {"launcher": {"kind": "local", "params": {"arms_in": "processes"}}, "max_concurrent_arms": 2}
THREADS = {"launcher": {"kind": "local", "params": {"arms_in": "threads"}}, "max_concurrent_arms": 3}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose module `bad_arms` can be imported by workers too."""
    code = """
    import os, signal, time
    from pathlib import Path
    from evsys_sdk import register_callback
    from evsys_sdk.training.callback import Callback

    class AtStep(Callback):
        def on_run_start(self, info, control):
            self.run, self.marker = info.run_id, info.run_dir.parent / f"{info.run_id}.met"

        def on_step(self, step, metrics):
            if self.run == "b" and step == 3 and not self.marker.exists():
                self.marker.write_text("")
                self.strike()

    @register_callback("dies_once")
    class DiesOnce(AtStep):
        def strike(self):
            os.kill(os.getpid(), signal.SIGKILL)

    @register_callback("hangs")
    class Hangs(AtStep):
        def strike(self):
            time.sleep(3600)

    @register_callback("slow")
    class Slow(Callback):
        def on_step(self, step, metrics):
            time.sleep(0.3)
    """
    (tmp_path / "bad_arms.py").write_text(textwrap.dedent(code), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "bad_arms", raising=False)
    importlib.import_module("bad_arms")
    return tmp_path


def events(result: ExperimentResult, kind: str) -> list[dict[str, Any]]:
    return [event for event in map(Event.to_dict, read_events(result.path)) if event["kind"] == kind]


def metrics(result: ExperimentResult) -> dict[str, dict[str, float]]:
    return {arm.name: {k: v for k, v in arm.metrics.items() if not k.startswith("time/")} for arm in result.arms}


@pytest.mark.parametrize("how", [PROCESSES, THREADS], ids=["processes", "threads"])
def test_the_record_is_the_same_wherever_the_arms_run(config: Config, how: dict[str, Any]) -> None:
    alone = Experiment(config(runs=RUNS, name="alone")).run()
    together = Experiment(config(runs=RUNS, name="together", **how)).run()
    assert together.exit_code == 0
    assert metrics(together) == metrics(alone)
    assert [arm.name for arm in together.arms] == ["a", "b", "c"]
    for name in "abc":
        files = [
            sorted(str(f.relative_to(r.path / name)) for f in (r.path / name).rglob("*")) for r in (alone, together)
        ]
        assert files[0] == files[1]


def test_a_lost_arm_is_resumed_from_its_checkpoint(config: Config, project: Path) -> None:
    params = {"save_every": 2}
    undisturbed = Experiment(config(runs=RUNS, params=params, name="undisturbed")).run()
    change = {"callbacks": [{"kind": "dies_once"}], "arm_retries": 1, **PROCESSES}
    result = Experiment(config(runs=RUNS, params=params, **change)).run()
    assert metrics(result) == metrics(undisturbed)
    assert [event["arm"] for event in events(result, "arm_retried")] == ["b"]
    starts = (result.path / "b" / "starts.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(starts) == 2


def test_an_arm_that_takes_too_long_stops_with_a_checkpoint(config: Config, project: Path) -> None:
    change = {"callbacks": [{"kind": "slow"}], "arm_timeout_s": 0.8}
    result = Experiment(config(**change)).run()
    [arm] = result.arms
    assert arm.status == "failed"
    assert "arm_timeout_s=0.8" in str(arm.result.error)
    assert "--resume" in str(arm.result.error)
    assert (result.path / "r" / "checkpoints.jsonl").exists()
    more = Experiment(config(**{**change, "arm_timeout_s": 60.0})).run(resume=True)
    assert more.path == result.path
    assert more.arms[0].metrics["steps"] == 6


def test_an_arm_that_does_not_react_is_killed(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @register_launcher("stubborn")
    class Stubborn:
        name = "stubborn"
        killed: list[str] = []

        def open(self, launch: Launch, n_arms: int) -> int:
            return 1

        def start(self, job: ArmJob) -> Future[RunResult]:
            self.future: Future[RunResult] = Future()
            return self.future

        def stop(self, arm: str, reason: str) -> None: ...

        def kill(self, arm: str) -> None:
            self.killed.append(arm)
            self.future.set_exception(WorkerLost("it was ended"))

        def close(self) -> None: ...

    monkeypatch.setattr("evsys_sdk.experiment.arms.scheduler._GRACE_S", 0.1)
    result = Experiment(config(launcher={"kind": "stubborn"}, arm_timeout_s=0.1)).run()
    assert Stubborn.killed == ["r"]
    assert (result.arms[0].status, result.arms[0].result.error) == ("failed", "it was ended")
    assert json.loads((tmp_path / "outputs" / "e" / "r" / "run_result.json").read_text(encoding="utf-8"))


def test_killing_an_arm_ends_its_process_and_the_next_one_gets_another(config: Config, project: Path) -> None:
    experiment = Experiment(config(runs=RUNS, callbacks=[{"kind": "hangs"}]))
    folder = experiment.open().path
    launcher = LocalLauncher(arms_in="processes")
    assert launcher.open(Launch(experiment.config, folder, 1), 3) == 1
    _, hanging, third = [ArmJob(arm, folder / arm.name) for arm in experiment.arms]
    try:
        future = launcher.start(hanging)
        while not (folder / "b.met").exists():
            time.sleep(0.05)
        launcher.kill("b")
        with pytest.raises(WorkerLost, match="SIGKILL"):
            future.result()
        assert launcher.start(third).result().status == "completed"
    finally:
        launcher.close()


def test_errors_of_the_config_or_the_data_are_not_retried(config: Config) -> None:
    bad = [{"messages": [{"role": "user", "content": "no answer"}]}]
    broken = config(run={"data": {"source_kind": "in_memory", "rows": bad}}, arm_retries=3)
    result = Experiment(broken, checked=True).run()
    assert result.arms[0].status == "failed"
    assert not events(result, "arm_retried")


def test_extensions_of_the_script_itself_keep_the_arms_in_this_process(config: Config) -> None:
    class Typed(Callback):
        pids: list[int] = []

        def on_run_start(self, info: Any, control: Any) -> None:
            Typed.pids.append(os.getpid())

    Typed.__module__ = "__main__"
    register_callback("typed_at_a_prompt")(Typed)
    result = Experiment(config(runs=RUNS, max_concurrent_arms=2, callbacks=[{"kind": "typed_at_a_prompt"}])).run()
    assert result.exit_code == 0
    assert set(Typed.pids) == {os.getpid()}
    with pytest.raises(ConfigError, match=r"launcher\.params\.arms_in.*Move them to a separate module"):
        Experiment(config(runs=RUNS, name="forced", callbacks=[{"kind": "typed_at_a_prompt"}], **PROCESSES)).run()


def test_an_observer_that_cannot_travel_is_refused_before_anything_starts(config: Config, tmp_path: Path) -> None:
    class Local(Callback): ...

    with pytest.raises(ConfigError, match=r"callback cannot be sent to a process.*'threads'"):
        Experiment(config(runs=RUNS, **PROCESSES), callbacks=[Local]).run()
    assert not (tmp_path / "outputs" / "e" / "a").exists()


def test_a_polite_kill_stops_every_arm_with_a_checkpoint(config: Config, project: Path) -> None:
    experiment = Experiment(config(runs=RUNS, callbacks=[{"kind": "slow"}], **PROCESSES))

    def kill_when_training() -> None:
        while not list(project.glob("outputs/e/*/logs/metrics.jsonl")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=kill_when_training).start()
    result = experiment.run()
    assert (result.status, result.exit_code) == ("interrupted", 130)
    assert {arm.status for arm in result.arms} == {"cancelled"}
    assert len(result.arms) == 2  # the third was never started
    again = Experiment(config(runs=RUNS, callbacks=[{"kind": "slow"}], **PROCESSES)).run()
    assert (again.path, again.exit_code) == (result.path, 0)
    assert {arm.metrics["steps"] for arm in again.arms} == {6}


def test_an_experiment_is_run_by_one_process_at_a_time(config: Config, tmp_path: Path) -> None:
    folder = tmp_path / "outputs" / "e"
    experiment = Experiment(config())
    experiment.open()
    with folder_lock(folder, what="it"):
        with pytest.raises(TrainingError, match=rf"process {os.getpid()} on .*evsys cancel"):
            experiment.run(resume=True)
        assert experiment.run().path.name == "e.2"  # whoever starts it twice at the same time wants it twice
    assert lock_owner(folder) is None
    assert experiment.run(fresh=True).path.name == "e.3"


@pytest.mark.parametrize(
    ("change", "remote", "slots", "in_processes"),
    [
        ({}, False, 1, False),
        ({}, True, 3, False),
        ({}, False, 3, True),
        ({"arm_timeout_s": 9.0}, False, 1, True),
        ({"arm_timeout_s": 9.0}, True, 3, True),
    ],
)
def test_built_ins_run_where_they_start_fastest_and_can_be_ended_in_time(
    config: Config, change: dict[str, Any], remote: bool, slots: int, in_processes: bool
) -> None:
    launch = Launch(config(**change), Path(), slots)
    briefing = LocalLauncher()._briefing(launch, slots, remote)  # pyright: ignore[reportPrivateUsage]
    assert (briefing is not None) == in_processes


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("remote", [False, True])
def test_code_of_the_user_never_shares_this_process(config: Config, project: Path, remote: bool, slots: int) -> None:
    launch = Launch(config(callbacks=[{"kind": "slow"}]), Path(), slots)
    assert LocalLauncher()._briefing(launch, slots, remote) is not None  # pyright: ignore[reportPrivateUsage]
    unused = Launch(config(), Path(), 1)
    assert LocalLauncher()._briefing(unused, 1, remote=False) is None  # pyright: ignore[reportPrivateUsage]


def test_every_process_sees_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    launcher = LocalLauncher()
    shares = [launcher._environment(slot, 3, ["3", "5", "7"])["CUDA_VISIBLE_DEVICES"] for slot in range(3)]  # pyright: ignore[reportPrivateUsage]
    assert shares == ["3", "5", "7"]
    pairs = LocalLauncher(gpus_per_arm=2)
    assert pairs._environment(0, 1, ["3", "5", "7"])["CUDA_VISIBLE_DEVICES"] == "3,5"  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("of_a_script", [True, False])
def test_what_an_experiment_does_not_use_never_costs_it_its_process(
    config: Config, project: Path, of_a_script: bool
) -> None:
    class Elsewhere(Callback): ...

    if of_a_script:
        Elsewhere.__module__ = "__main__"
    register_callback("not_in_the_config")(Elsewhere)
    launch = Launch(config(callbacks=[{"kind": "slow"}]), Path(), 1)
    assert LocalLauncher()._briefing(launch, 1, False) is not None  # pyright: ignore[reportPrivateUsage]
    assert Experiment(config(runs=RUNS, callbacks=[{"kind": "slow"}])).run().exit_code == 0
