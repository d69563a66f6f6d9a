"""TRL's trainers on the same rows are an independent check of the engine: same start, same order, same losses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("trl", reason="needs the extra local; run make test-local")
pytestmark = [
    pytest.mark.local,
    # What TRL and the libraries below it think of each other is not for us to repair.
    pytest.mark.filterwarnings("ignore"),
]

from evsys_sdk import ConfigError, ExperimentConfig, register_verifier_fn  # noqa: E402
from evsys_sdk.experiment import Experiment  # noqa: E402

CHATS = [
    {"messages": [{"role": "user", "content": f"word {n}"}, {"role": "assistant", "content": word * (1 + n % 3)}]}
    for n, word in enumerate(["ash", "bay", "elm", "fir", "oak", "yew", "box", "fig"])
]


def run(kind: str, model: str, rows: list[dict[str, Any]], folder: Path, params: dict[str, Any], **more: Any) -> Any:
    config = {
        "name": kind,
        "output_dir": str(folder),
        "run": {
            "name": "r",
            "data": {"source_kind": "in_memory", "rows": rows},
            "model": {"name": model},
            "algorithm": {"kind": kind, "params": params},
            "backend": {"kind": "local", "params": {"device": "cpu", "exact": True}},
            **more,
        },
    }
    result = Experiment(ExperimentConfig.model_validate(config)).run()
    [found] = result.runs
    assert found.status == "completed", found.error
    [metrics] = result.path.rglob("metrics.jsonl")
    lines = [json.loads(line) for line in metrics.read_text("utf-8").splitlines()]
    return found, lines


def test_sft_here_and_in_trl_go_through_the_same_losses(llama: str, tmp_path: Path) -> None:
    params = {"max_steps": 8, "batch_size": 4, "lora_rank": 8, "learning_rate": 3e-3, "warmup_steps": 2}
    _, our_lines = run("sft", llama, CHATS, tmp_path / "a", params)
    theirs, their_lines = run("local_sft", llama, CHATS, tmp_path / "b", params)
    found, expected = ([line["loss"] for line in lines if "loss" in line] for lines in (our_lines, their_lines))
    assert len(found) == 8
    assert found == pytest.approx(expected, rel=2e-2)
    assert found[-1] < 0.8 * found[0]
    assert [line["learning_rate"] for line in our_lines if "learning_rate" in line] == pytest.approx(
        [line["learning_rate"] for line in their_lines if "learning_rate" in line], rel=1e-5
    )
    norms = [[line["grad_norm"] for line in lines if "grad_norm" in line] for lines in (our_lines, their_lines)]
    assert norms[0] == pytest.approx(norms[1], rel=5e-2)
    assert theirs.extras["trainer"] == "SFTTrainer"
    assert Path(theirs.artifacts["final_checkpoint"]).is_dir()


def test_what_trl_has_trained_is_what_is_scored(llama: str, tmp_path: Path) -> None:
    params = {"max_steps": 120, "batch_size": 4, "lora_rank": 16, "learning_rate": 1e-2}
    scored = {"metrics": [{"kind": "exact_match"}], "eval_data": {"source_kind": "in_memory", "rows": CHATS[:4]}}
    trained, _ = run("local_sft", llama, CHATS[:4], tmp_path, params, eval=scored)
    assert trained.metrics["eval/exact_match"] == 1.0


def test_rl_in_trl_earns_more(tiny: Callable[[str], str], tmp_path: Path) -> None:
    @register_verifier_fn("vowels")
    def vowels(model_output: str, expected: Any, params: Any) -> float:
        return float(sum(letter in "aeiou" for letter in model_output[:6]) / 6)

    verifier = {"kind": "in_process", "fn_name": "vowels"}
    tasks = [{"task_id": str(n), "instruction": f"say aeiou {n}", "verifier": verifier} for n in range(2)]
    params = {
        "max_steps": 12,
        "batch_size": 2,
        "group_size": 16,
        "learning_rate": 0.02,
        "lora_rank": 8,
        "sampling": {"max_tokens": 6},
    }
    _, lines = run("local_rl", tiny("qwen3"), tasks, tmp_path, params)
    rewards = [line["reward/mean"] for line in lines if "reward/mean" in line]
    assert len(rewards) == 12
    assert sum(rewards[-3:]) / 3 > rewards[0] + 0.1


def test_what_trl_does_not_do_is_refused(llama: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'local_rl' does not take max_staleness.*use the algorithm 'rl'"):
        run("local_rl", llama, [], tmp_path, {"max_staleness": 1})
