"""A cluster whose processes come and go loses no arm."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig
from evsys_sdk.experiment import Experiment
from evsys_sdk.experiment.launchers.ray_task import MessageBoard

ray: Any = pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), *sys.path])
    environment = {"env_vars": {"PYTHONPATH": path}}
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    yield
    ray.shutdown()


def test_losing_the_message_board_stops_no_arm(
    config: Callable[..., ExperimentConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "board.pid"
    answer = MessageBoard.reason

    def reason(self: MessageBoard, arm: str) -> str | None:
        where.write_text(str(os.getpid()), encoding="utf-8")
        return answer(self, arm)

    monkeypatch.setattr(MessageBoard, "reason", reason)
    launcher = {"kind": "ray", "params": {"retries": 0}}
    runs = [{"name": name, "seed": seed} for seed, name in enumerate("abcd")]
    experiment = Experiment(config(runs=runs, params={"max_steps": 400, "batch_size": 3}, launcher=launcher))
    killed: list[int] = []

    def kill_the_board() -> None:
        while not where.exists():
            time.sleep(0.02)
        killed.append(int(where.read_text(encoding="utf-8")))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_the_board, daemon=True)
    killer.start()
    result = experiment.run()
    assert [arm.status for arm in result.arms] == ["completed"] * 4, [arm.result.error for arm in result.arms]
    assert killed
    assert killed[0] != os.getpid()
