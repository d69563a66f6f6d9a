"""Log stores: what they write, how they forget on a resume, and that one failing child costs only itself."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from evsys_sdk import ExperimentConfig
from evsys_sdk.builtins import BUILTINS
from evsys_sdk.errors import ConfigError, EvsysError
from evsys_sdk.experiment.run_services import open_stores
from evsys_sdk.observers.log_stores.jsonl import JsonlLogStore
from evsys_sdk.observers.log_stores.multiplex import MultiplexLogStore
from evsys_sdk.protocols import LogStore
from evsys_sdk.registry import get_log_store, register_log_store
from evsys_sdk.training.callback import Observers


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def register_broken_store() -> None:
    @register_log_store("broken")
    class Broken:  # pyright: ignore[reportUnusedClass]
        def log_scalar(self, key: str, value: float, step: int) -> None:
            raise OSError("the disk is full")

        def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
            raise OSError("the disk is full")

        def log_hyperparams(self, params: Mapping[str, Any]) -> None:
            raise OSError("the disk is full")

        def log_artifact(self, name: str, path: str) -> None:
            raise OSError("the disk is full")

        def close(self) -> None:
            raise OSError("the disk is full")


@pytest.mark.parametrize("kind", ["jsonl", "multiplex"])
def test_built_ins_satisfy_the_protocol(kind: str, tmp_path: Path) -> None:
    params: dict[str, Any] = {"log_dir": str(tmp_path)} | (
        {"children": [{"kind": "jsonl"}]} if kind == "multiplex" else {}
    )
    store = get_log_store(kind)(**params)
    assert isinstance(store, LogStore)
    assert store.name == kind


@pytest.mark.parametrize("kind", [*BUILTINS["log_store"], *BUILTINS["callback"]])
def test_every_param_of_log_stores_and_callbacks_is_documented(kind: str) -> None:
    builtin = BUILTINS["log_store"].get(kind) or BUILTINS["callback"][kind]
    schema = builtin.load().Config.model_json_schema()
    assert [name for name, field in schema["properties"].items() if "description" not in field] == []


def test_jsonl_writes_metrics_hyperparams_and_artifacts(tmp_path: Path) -> None:
    store = JsonlLogStore(log_dir=str(tmp_path / "logs"))
    store.log_hyperparams({"model": {"name": "mock"}, "api_key": "abc"})
    store.log_hyperparams({"seed": 3})
    store.log_metrics({"loss": 0.5, "time/step_s": 0.01}, 1)
    store.log_scalar("val/pass@1", 0.25, 1)
    store.log_scalar("time/total_s", 3.5, 1)
    store.log_artifact("final_checkpoint", "runs/a/step10")
    store.close()

    assert lines(tmp_path / "logs/metrics.jsonl") == [{"step": 1, "loss": 0.5}, {"step": 1, "val/pass@1": 0.25}]
    timing = [{"step": 1, "time/step_s": 0.01}, {"step": 1, "time/total_s": 3.5}]
    assert lines(tmp_path / "logs/timing.jsonl") == timing
    hyperparams = json.loads((tmp_path / "logs/hyperparams.json").read_text(encoding="utf-8"))
    assert hyperparams == {"model": {"name": "mock"}, "api_key": "[redacted]", "seed": 3}
    assert lines(tmp_path / "logs/artifacts.jsonl") == [{"name": "final_checkpoint", "path": "runs/a/step10"}]


def test_jsonl_ends_up_byte_identical_after_a_resume(tmp_path: Path) -> None:
    def run(folder: str, steps: range, *, rewind: bool = False) -> None:
        store = JsonlLogStore(log_dir=str(tmp_path / folder))
        if rewind:
            store.rewind(steps.start)
        for step in steps:
            store.log_metrics({"loss": 1 / step, "time/step_s": id(store)}, step)
        store.log_artifact("adapter", "somewhere")
        store.close()

    run("whole", range(1, 9))
    run("resumed", range(1, 7))
    run("resumed", range(5, 9), rewind=True)
    for name in ("metrics.jsonl", "artifacts.jsonl"):
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_jsonl_without_a_folder_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"log_store\.params\.log_dir: log store 'jsonl' has no folder"):
        JsonlLogStore().log_scalar("loss", 1.0, 1)


def test_unknown_params_are_refused() -> None:
    with pytest.raises(ValidationError, match="folder"):
        JsonlLogStore(folder="x")


def test_multiplex_gives_each_child_its_own_folder(tmp_path: Path) -> None:
    own = str(tmp_path / "mine")
    children = [{"kind": "jsonl"}, {"kind": "jsonl"}, {"kind": "jsonl", "params": {"log_dir": own}}]
    store = MultiplexLogStore(children=children, log_dir=str(tmp_path / "logs"))
    store.log_metrics({"loss": 1.0}, 1)
    store.close()
    for folder in ("logs/jsonl", "logs/jsonl-2", "mine"):
        assert lines(tmp_path / folder / "metrics.jsonl") == [{"step": 1, "loss": 1.0}]


def test_multiplex_in_a_run_writes_to_its_log_dir_or_below_the_run(tmp_path: Path) -> None:
    def folders(**params: Any) -> list[str]:
        children = {"children": [{"kind": "jsonl"}, {"kind": "jsonl"}]}
        run = {
            "name": "r",
            "model": {"name": "m"},
            "algorithm": {"kind": "sft"},
            "data": {"source_kind": "in_memory", "rows": [{}]},
        }
        spec = {"kind": "multiplex", "params": {**children, **params}}
        config = ExperimentConfig.model_validate({"name": "e", "run": run, "log_store": spec})
        _, store = open_stores(config, tmp_path / "run", Observers([]))
        store.log_hyperparams({"a": 1})
        store.close()
        return sorted(path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("hyperparams.json"))

    assert folders(log_dir=str(tmp_path / "named")) == ["named/jsonl", "named/jsonl-2"]
    assert folders()[2:] == ["run/logs/jsonl", "run/logs/jsonl-2"]


def test_one_failing_child_does_not_stop_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    register_broken_store()
    store = MultiplexLogStore(children=[{"kind": "broken"}, {"kind": "jsonl"}], log_dir=str(tmp_path))
    with caplog.at_level(logging.WARNING, logger="evsys_sdk"):
        for step in range(1, 11):
            store.log_metrics({"loss": 1.0}, step)
        store.log_hyperparams({"a": 1})
        store.log_artifact("x", "y")
        store.rewind(9)
        store.close()
    assert [line["step"] for line in lines(tmp_path / "jsonl/metrics.jsonl")] == list(range(1, 9))
    assert store.failures == {"broken": ["OSError: the disk is full"] * 3, "jsonl": []}
    assert len(caplog.records) == 3  # said, but not at every step


def test_a_record_that_no_child_took_is_an_error() -> None:
    register_broken_store()
    store = MultiplexLogStore(children=[{"kind": "broken"}])
    with pytest.raises(EvsysError, match=r"every log store failed\. broken: the disk is full"):
        store.log_metrics({"loss": 1.0}, 1)


def test_multiplex_needs_a_child() -> None:
    with pytest.raises(ValidationError, match="at least 1 item"):
        MultiplexLogStore(children=[])
