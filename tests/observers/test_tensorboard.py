"""TensorBoard event files, read back with TensorBoard's own reader."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from evsys_sdk.errors import DataError, MissingExtraError
from evsys_sdk.observers.callbacks.tensorboard_logger import TensorBoardLogger
from evsys_sdk.observers.log_stores.tensorboard import TensorBoardLogStore
from evsys_sdk.protocols import LogStore, RunResult
from evsys_sdk.training.callback import EvalRecord, RunControl

if TYPE_CHECKING:
    from .conftest import MakeInfo

needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None,
    reason="tensorboard is not installed; it is part of the extra 'tensorboard'",
)


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars(tag)]


@needs_tensorboard
def test_scalars_hyperparams_and_artifacts_can_be_read_back(tmp_path: Path) -> None:
    store = TensorBoardLogStore(log_dir=str(tmp_path))
    assert isinstance(store, LogStore)
    store.log_hyperparams({"model": {"name": "mock", "api_key": "abc"}, "lr": 0.1, "stages": [1, 2], "note": None})
    store.log_metrics({"loss": 0.5, "bad": math.nan}, 1)
    store.log_scalar("loss", 0.25, 2)
    store.log_artifact("final_checkpoint", "runs/a/step2")
    store.close()

    assert scalars(tmp_path, "loss") == [(1, 0.5), (2, 0.25)]
    assert math.isnan(scalars(tmp_path, "bad")[0][1])
    events = read(tmp_path)
    assert events.Tensors("artifacts/final_checkpoint")[0].tensor_proto.string_val == [b"runs/a/step2"]
    assert hyperparams(events) == {
        "model.name": "mock",
        "model.api_key": "[redacted]",
        "lr": 0.1,
        "stages": "[1, 2]",
        "note": "null",
    }


def hyperparams(found: Any) -> dict[str, Any]:
    from tensorboard.plugins.hparams import metadata

    content = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    values = metadata.parse_session_start_info_plugin_data(content).hparams
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in values.items()}


@needs_tensorboard
def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from evsys_sdk.observers.log_stores.tensorboard import TensorBoardLogStore\n"
        "store = TensorBoardLogStore(log_dir=sys.argv[1])\n"
        "for step in range(1, 51): store.log_metrics({'loss': 1.0}, step)\n"
        "assert 'torch' not in sys.modules and 'tensorflow' not in sys.modules\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    assert [step for step, _ in scalars(tmp_path, "loss")] == list(range(1, 51))


@needs_tensorboard
def test_a_resumed_run_replaces_the_steps_it_repeats(make_info: MakeInfo, tmp_path: Path) -> None:
    def attempt(steps: range, loss: float) -> None:
        callback = TensorBoardLogger()
        callback.on_run_start(make_info(run_dir=tmp_path, steps_done=steps.start - 1), RunControl())
        for step in steps:
            callback.on_step(step, {"loss": loss})
        callback.on_eval(EvalRecord("arithmetic", "val", steps[-1], {"pass@1": 0.5}))
        callback.on_run_end(RunResult("arm-a", "completed", artifacts={"final_checkpoint": "x"}))
        callback.close()

    attempt(range(1, 9), 1.0)
    [first] = (tmp_path / "logs/tensorboard_logger").iterdir()
    first.write_bytes(first.read_bytes()[:-3])  # a kill may cut the last record short
    attempt(range(5, 11), 2.0)

    folder = tmp_path / "logs/tensorboard_logger"
    expected = [(step, 1.0) for step in range(1, 5)] + [(step, 2.0) for step in range(5, 11)]
    assert scalars(folder, "loss") == expected
    assert scalars(folder, "val/arithmetic/pass@1") == [(10, 0.5)]
    assert hyperparams(read(folder))["algorithm.params.learning_rate"] == 0.001


@needs_tensorboard
def test_a_folder_that_cannot_be_written_stops_the_run_with_a_remedy(make_info: MakeInfo, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file is in the way", encoding="utf-8")
    with pytest.raises(DataError, match=r"cannot be written.*Check the permissions"):
        TensorBoardLogger().on_run_start(make_info(run_dir=tmp_path), RunControl())


def test_without_the_package_the_error_says_how_to_get_it(make_info: MakeInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [NotInstalled("tensorboard"), *sys.meta_path])
    with pytest.raises(MissingExtraError, match=r"pip install 'evsys-sdk\[tensorboard\]'"):
        TensorBoardLogger().on_run_start(make_info(), RunControl())


class NotInstalled:
    """Makes a package look as if it were not there."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.split(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named '{self.package}'", name=self.package)
