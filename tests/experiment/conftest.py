"""Small experiments on the mock backend, run in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig, register_verifier
from evsys_sdk.experiment import Experiment, ExperimentResult

WORDS = ["amber", "birch", "cedar", "dune", "ember", "frost"]
ROWS = [
    {"messages": [{"role": "user", "content": word}, {"role": "assistant", "content": word.upper()}]} for word in WORDS
]

type Config = Callable[..., ExperimentConfig]
type Run = Callable[..., ExperimentResult]


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    return ROWS


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """An experiment of one short SFT run; `run` holds changes to the run, everything else to the experiment."""

    def make(run: dict[str, Any] | None = None, params: dict[str, Any] | None = None, **more: Any) -> ExperimentConfig:
        base = {
            "name": "r",
            "data": {"source_kind": "in_memory", "rows": ROWS},
            "model": {"name": "tiny"},
            "algorithm": {"kind": "sft", "params": {"max_steps": 6, "batch_size": 3, **(params or {})}},
            "backend": {"kind": "mock"},
            **(run or {}),
        }
        runs = {} if "runs" in more or "matrix" in more else {"run": base}
        return ExperimentConfig.model_validate(
            {"name": "e", "output_dir": str(tmp_path / "outputs"), **runs, **_filled(more, base)}
        )

    return make


@pytest.fixture
def uneven() -> str:
    """A verifier whose rewards differ between any two answers as often as not, so that there is something to learn."""
    register_verifier("uneven")(lambda completion, expected, **_: float(sum(completion.encode()) % 2))
    return "uneven"


@pytest.fixture
def run(config: Config) -> Run:
    def execute(*args: Any, resume: bool = False, checked: bool = False, **kwargs: Any) -> ExperimentResult:
        """`checked`: what would be refused before the run goes wrong in it, as if it had gone wrong since."""
        return Experiment(config(*args, **kwargs), checked=checked).run(resume=resume)

    return execute


def _filled(more: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Several runs are given as changes to the base run."""
    return {**more, "runs": [{**base, **change} for change in more["runs"]]} if "runs" in more else more


def recorded(result: ExperimentResult, run: str = "r") -> dict[str, Any]:
    return json.loads((result.path / run / "run_result.json").read_text(encoding="utf-8"))


@pytest.fixture
def result_of() -> Callable[..., dict[str, Any]]:
    return recorded
