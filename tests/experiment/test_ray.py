"""Arms as tasks of a real Ray cluster: the same scores as on this machine, whatever happens to its workers."""

import json
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ConfigError, ExperimentConfig, ExperimentResult
from evsys_sdk.experiment import Experiment
from evsys_sdk.record.events import Event, read_events
from evsys_sdk.settings import import_project_code

ray: Any = pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]

type Config = Callable[..., ExperimentConfig]
RUNS = [{"name": name, "seed": seed} for seed, name in enumerate("abcd")]
BENCHMARK = {
    "success_metric": "pass@1",
    "benchmark": [{"name": "words", "path": "tasks.jsonl", "split": "val", "run_every": 2, "models": ["base"]}],
}
CODE = """
import os
from pathlib import Path
from evsys_sdk import register_callback
from evsys_sdk.training.callback import Callback

@register_callback("notes_where")
class NotesWhere(Callback):
    def on_run_start(self, info, control):
        self.run, self.folder = info.run_id, info.run_dir.parent
        (self.folder / f"{self.run}.pid").write_text(str(os.getpid()))

    def on_step(self, step, metrics):
        if (self.folder / "slowly").exists():
            import time
            time.sleep(0.4)
"""


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two workers on this machine, shared by the tests: starting a cluster takes seconds."""
    path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), *sys.path])
    environment = {"env_vars": {"PYTHONPATH": path}}
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    yield
    ray.shutdown()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "watching.py").write_text(textwrap.dedent(CODE), encoding="utf-8")
    words = ["amber", "birch", "cedar"]
    tasks = [
        {"task_id": w, "instruction": w, "verifier": {"kind": "in_process", "fn_name": "exact_match", "expected": w}}
        for w in words
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")
    import_project_code(["watching.py"])
    return tmp_path


def through_ray(config: Config, name: str, **more: Any) -> ExperimentConfig:
    params = {"save_every": 1, "max_steps": 8}
    change = {"metadata": BENCHMARK, "callbacks": [{"kind": "notes_where"}], "launcher": {"kind": "ray"}, **more}
    return config(runs=RUNS, params=params, name=name, **change)


def scores(result: ExperimentResult) -> dict[str, dict[str, float]]:
    return {arm.name: {k: v for k, v in arm.metrics.items() if not k.startswith("time/")} for arm in result.arms}


def kinds(result: ExperimentResult) -> list[str]:
    return [event["kind"] for event in map(Event.to_dict, read_events(result.path))]


def test_scores_and_record_are_those_of_the_local_launcher(config: Config, project: Path) -> None:
    local = Experiment(through_ray(config, "local", launcher=None)).run()
    remote = Experiment(through_ray(config, "remote")).run()
    assert remote.exit_code == 0, [arm.result.error for arm in remote.arms]
    assert scores(remote) == scores(local)
    for arm in "abcd":
        written = [sorted(str(f.relative_to(r.path / arm)) for f in (r.path / arm).rglob("*")) for r in (local, remote)]
        assert written[0] == written[1]
    pids = {(remote.path / f"{arm}.pid").read_text(encoding="utf-8") for arm in "abcd"}
    assert str(os.getpid()) not in pids
    assert remote.conclusion is not None
    assert local.conclusion is not None
    assert remote.conclusion["runs"] == local.conclusion["runs"]


def test_the_arm_of_a_killed_worker_continues_elsewhere_with_the_same_scores(config: Config, project: Path) -> None:
    undisturbed = Experiment(through_ray(config, "undisturbed")).run()
    experiment = Experiment(through_ray(config, "disturbed"))
    folder = experiment.open().path
    (folder / "slowly").write_text("", encoding="utf-8")

    def kill_one() -> None:
        while not (folder / "a" / "checkpoints.jsonl").exists():
            time.sleep(0.05)
        os.kill(int((folder / "a.pid").read_text(encoding="utf-8")), signal.SIGKILL)
        (folder / "slowly").unlink()

    killer = threading.Thread(target=kill_one)
    killer.start()
    result = experiment.run()
    killer.join()
    assert result.exit_code == 0, [arm.result.error for arm in result.arms]
    assert kinds(result).count("arm_retried") >= 1
    assert scores(result) == scores(undisturbed)
    assert len((folder / "a" / "starts.jsonl").read_text(encoding="utf-8").splitlines()) == 2


def test_a_request_to_stop_reaches_the_workers(config: Config, project: Path) -> None:
    experiment = Experiment(through_ray(config, "stopped"))
    folder = experiment.open().path
    (folder / "slowly").write_text("", encoding="utf-8")

    def stop() -> None:
        while not (folder / "a" / "checkpoints.jsonl").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    result = experiment.run()
    assert (result.status, result.exit_code) == ("interrupted", 130)
    assert {arm.status for arm in result.arms} == {"cancelled"}
    (folder / "slowly").unlink()
    again = Experiment(through_ray(config, "stopped")).run()
    assert (again.path, again.exit_code) == (result.path, 0)


def test_a_worker_that_does_not_see_the_disk_is_an_error(
    config: Config, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evsys_sdk.experiment.launchers import ray as launcher

    start = launcher.RayLauncher.start

    def start_elsewhere(self: Any, job: Any) -> Any:
        (self._folder / launcher.SHARED).unlink(missing_ok=True)
        return start(self, job)

    monkeypatch.setattr(launcher.RayLauncher, "start", start_elsewhere)
    result = Experiment(through_ray(config, "there")).run()
    assert result.exit_code == 2
    assert all("does not see" in str(arm.result.error) for arm in result.arms)


def test_what_the_cluster_does_not_have_is_refused_before_anything_starts(config: Config, project: Path) -> None:
    wanted = {"kind": "ray", "params": {"gpus_per_arm": 1}}
    with pytest.raises(ConfigError, match=r"launcher\.params.*asks for 1 GPU, and the cluster has 0"):
        Experiment(through_ray(config, "greedy", launcher=wanted)).run()
