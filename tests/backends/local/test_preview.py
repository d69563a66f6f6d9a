"""What `plan` and the check before a run know of a model on the local backend, before it is loaded for training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig
from evsys_sdk.experiment.preflight import check_config, models

from .conftest import save_tiny

pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local

type Config = Callable[..., dict[str, Any]]


@pytest.fixture
def config(llama: str, tmp_path: Path) -> Config:
    """An SFT experiment on the tiny model, whose tokens are bytes and whose context is 512 of them."""

    def make(answers: list[str], **params: Any) -> dict[str, Any]:
        rows = [
            {"messages": [{"role": "user", "content": "say"}, {"role": "assistant", "content": answer}]}
            for answer in answers
        ]
        verifier = {"kind": "in_process", "fn_name": "exact_match", "expected": "a"}
        task = {"task_id": "a", "instruction": "say a", "verifier": verifier}
        (tmp_path / "val.jsonl").write_text(json.dumps(task) + "\n", "utf-8")
        return {
            "name": "previewed",
            "metadata": {
                "hypothesis": "h",
                "benchmark": {"path": "val.jsonl", "split": "val", "run_every": 1, "max_tokens": 4},
            },
            "run": {
                "name": "sft",
                "data": {"source_kind": "in_memory", "rows": rows},
                "model": {"name": llama},
                "algorithm": {"kind": "sft", "params": {"max_steps": 1000, "batch_size": 2, "lora_rank": 4}},
                "backend": {"kind": "local", "params": {"device": "cpu", "threads": 1, **params}},
            },
        }

    return make


def problems(config: dict[str, Any]) -> list[str]:
    return [str(problem) for problem in check_config(ExperimentConfig.model_validate(config)).problems]


def test_rows_are_measured_in_tokens_of_the_model(config: Config) -> None:
    assert problems(config(["a" * 300, "b"])) == []
    [problem] = problems(config(["b", "a" * 600]))
    assert "row 2" in problem
    assert "512" in problem


def test_the_context_may_be_made_shorter(config: Config) -> None:
    [problem] = problems(config(["a" * 300, "b"], max_context=128))
    assert "128" in problem


def test_a_run_that_cannot_fit_is_refused_from_the_config_of_its_model(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "_total_memory", lambda: 1 << 20)  # the weights are smaller than that
    [problem] = problems(config(["a", "b"]))
    assert problem.startswith("run.model.name: training ")
    assert "for an adapter of rank 4" in problem
    assert "lower lora_rank" in problem


def test_a_tokenizer_without_a_chat_template_is_refused_at_its_model(config: Config, tmp_path: Path) -> None:
    plain = config(["a", "b"])
    plain["run"]["model"]["name"] = save_tiny(tmp_path / "plain", template=None)
    [problem] = problems(plain)
    assert problem.startswith("run.model.name: ")
    assert "chat template" in problem
