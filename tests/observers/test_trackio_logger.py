"""The `trackio_logger` callback, with the real package; `make test-trackio` makes its environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import Experiment, ExperimentConfig
from evsys_sdk.errors import MissingExtraError
from evsys_sdk.observers.callbacks import trackio_logger

CHATS = [
    {"messages": [{"role": "user", "content": f"q{at}"}, {"role": "assistant", "content": "a"}]} for at in range(6)
]


def config(folder: Path, **params: Any) -> ExperimentConfig:
    run = {
        "name": "r",
        "data": {"source_kind": "in_memory", "rows": CHATS},
        "model": {"name": "tiny"},
        "algorithm": {"kind": "sft", "params": {"max_steps": 3, "batch_size": 2}},
        "backend": {"kind": "mock"},
    }
    callbacks = [{"kind": "trackio_logger", "params": params}]
    return ExperimentConfig.model_validate(
        {"name": "tracked", "output_dir": str(folder), "run": run, "callbacks": callbacks}
    )


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: Any, **__: Any) -> Any:
        raise MissingExtraError("callback 'trackio_logger'", "trackio")

    monkeypatch.setattr(trackio_logger, "import_extra", absent)
    with pytest.raises(MissingExtraError, match="trackio"):
        trackio_logger.TrackioLogger().on_run_start(None, None)  # pyright: ignore[reportArgumentType]
    trackio_logger.TrackioLogger(enabled=False).on_run_start(None, None)  # pyright: ignore[reportArgumentType]


def test_steps_and_results_arrive_and_stdout_stays_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "db"))
    from trackio.sqlite_storage import SQLiteStorage  # pyright: ignore[reportMissingImports]

    result = Experiment(config(tmp_path / "outputs", project="shop")).run()
    assert result.exit_code == 0
    assert "Trackio" not in capsys.readouterr().out
    logged: list[dict[str, Any]] = SQLiteStorage.get_logs("shop", "r")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    losses = {row["step"]: row["loss"] for row in logged if "loss" in row}
    assert sorted(losses) == [1, 2, 3]
    assert logged[-1]["final/final_loss"] == pytest.approx(losses[3])
