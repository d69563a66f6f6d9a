"""TRL's trainers on the same rows are an independent check of the engine: same start, same order, same losses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("trl", reason="needs the extra local; run make test-local")
pytestmark = [
    pytest.mark.local,
    # What TRL and the libraries below it think of each other is not for us to repair.
    pytest.mark.filterwarnings("ignore"),
]

from evsys_sdk import ConfigError, ExperimentConfig, register_verifier_fn  # noqa: E402
from evsys_sdk.algorithms.rl import group_advantages, normalise_advantages  # noqa: E402
from evsys_sdk.backends.client import AdamParams  # noqa: E402
from evsys_sdk.backends.datum import Datum  # noqa: E402
from evsys_sdk.experiment import Experiment  # noqa: E402
from evsys_sdk.training.batch import Schedule  # noqa: E402

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
    [run_result] = result.runs
    assert run_result.status == "completed", run_result.error
    [metrics] = result.path.rglob("metrics.jsonl")
    lines = [json.loads(line) for line in metrics.read_text("utf-8").splitlines()]
    return run_result, lines


def adapter(checkpoint: str) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(Path(checkpoint) / "adapter_model.safetensors")


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """How far apart two adapters are."""
    assert set(one) == set(other)
    return float(sum(((one[name] - other[name]) ** 2).sum() for name in one)) ** 0.5


def curve(lines: list[dict[str, Any]], key: str) -> list[float]:
    return [line[key] for line in lines if key in line]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_sft_here_and_in_trl_go_the_same_way(llama: str, tmp_path: Path, schedule: str) -> None:
    """Rounding is all that may differ, and forty steps of Adam carry it on.

    What is left of it is measured against the way that the weights have gone: a thousandth part.
    """
    params = {"max_steps": 40, "batch_size": 4, "lora_rank": 8, "learning_rate": 3e-3, "warmup_steps": 2}
    params |= {"lr_schedule": schedule, "weight_decay": 0.01}
    ours, our_lines = run("sft", llama, CHATS, tmp_path / "a", params)
    theirs, their_lines = run("local_sft", llama, CHATS, tmp_path / "b", params)
    actual, expected = curve(our_lines, "loss"), curve(their_lines, "loss")
    assert len(actual) == 40
    assert actual[:5] == pytest.approx(expected[:5], rel=1e-4)
    assert actual == pytest.approx(expected, rel=1e-3)
    assert actual[-1] < 0.2 * actual[0]
    assert curve(our_lines, "learning_rate") == pytest.approx(curve(their_lines, "learning_rate"), rel=1e-5)
    assert curve(our_lines, "grad_norm") == pytest.approx(curve(their_lines, "grad_norm"), rel=1e-3)
    assert theirs.notes.trainer == "SFTTrainer"
    [start] = tmp_path.glob("b/**/trl-start-1/sampler")
    ended = [adapter(one.artifacts["final_checkpoint"]) for one in (ours, theirs)]
    assert distance(*ended) < 1e-3 * distance(adapter(str(start)), ended[1])


def test_what_trl_has_trained_is_what_is_scored(llama: str, tmp_path: Path) -> None:
    params = {"max_steps": 120, "batch_size": 4, "lora_rank": 16, "learning_rate": 1e-2}
    scored = {"metrics": [{"kind": "exact_match"}], "eval_data": {"source_kind": "in_memory", "rows": CHATS[:4]}}
    trained, _ = run("local_sft", llama, CHATS[:4], tmp_path, params, eval=scored)
    assert trained.metrics["eval/exact_match"] == 1.0


def vowels(model_output: str, expected: Any, params: Any) -> float:
    return float(sum(letter in "aeiou" for letter in model_output[:6]) / 6)


def mixed(model_output: str, expected: Any, params: Any) -> float:
    """A reward that tells any two answers apart, so that every group says something."""
    return sum(ord(letter) % 7 for letter in model_output[:6]) / 42


@pytest.fixture(autouse=True)
def verifiers() -> None:
    register_verifier_fn("vowels")(vowels)
    register_verifier_fn("mixed")(mixed)


def tasks(verifier: str) -> list[dict[str, Any]]:
    scored = {"kind": "in_process", "fn_name": verifier}
    return [{"task_id": str(i), "instruction": f"say aeiou {i}", "verifier": scored} for i in range(2)]


def test_rl_in_trl_earns_more(tiny: Callable[[str], str], tmp_path: Path) -> None:
    params = {
        "max_steps": 12,
        "batch_size": 2,
        "group_size": 16,
        "learning_rate": 0.02,
        "lora_rank": 8,
        "sampling": {"max_tokens": 6},
    }
    _, lines = run("local_rl", tiny("qwen3"), tasks("vowels"), tmp_path, params)
    rewards = [line["reward/mean"] for line in lines if "reward/mean" in line]
    assert len(rewards) == 12
    assert sum(rewards[-3:]) / 3 > rewards[0] + 0.1
    [log] = tmp_path.glob("**/logs/training/rollouts.jsonl")
    recorded = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    for step, mean in enumerate(rewards, start=1):
        of_step = [line for line in recorded if line["step"] == step]
        assert fmean(one["reward"] for one in of_step) == pytest.approx(mean, abs=1e-6), "what TRL has learned from"
    assert all(line["tokens"] > 0 for line in recorded)
    assert recorded[0]["messages"][-1]["role"] == "assistant"


@pytest.mark.parametrize("normalise", ["token", "sequence", "fixed"])
def test_from_the_same_attempts_rl_here_and_in_trl_learn_the_same(
    normalise: str, llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_client: Callable[..., Any]
) -> None:
    """TRL draws its own samples, so they are handed on: the same attempts, advantages, gradients and weights."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    attempts: list[dict[str, Any]] = []
    sampled = GRPOTrainer._generate_and_score_completions

    def overhear(self: Any, inputs: Any) -> Any:
        attempts.append(sampled(self, inputs))
        return attempts[-1]

    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", overhear)
    params = {
        "max_steps": 6,
        "batch_size": 2,
        "group_size": 8,
        "learning_rate": 0.02,
        "lora_rank": 8,
        "normalise": normalise,
        "sampling": {"max_tokens": 6},
    }
    theirs, lines = run("local_rl", llama, tasks("mixed"), tmp_path, params)
    [start] = tmp_path.glob("**/trl-start-1/sampler")
    client = make_client()
    client.load_state(str(start), with_optimizer=False).result()
    norms: list[float] = []
    for step, batch in enumerate(attempts):
        data = data_of(batch, client, normalise)
        client.forward_backward(data, "importance_sampling")
        rate = 0.02 * Schedule("linear").factor(step, 6)
        norms.append(client.optim_step(AdamParams(rate, grad_clip_norm=1.0)).result().metrics["grad_norm"])
    assert len(norms) == 6
    assert min(norms) > 0
    assert norms == pytest.approx(curve(lines, "grad_norm"), rel=1e-3)
    ended = [adapter(ref) for ref in (client.save_state("here").result(), theirs.artifacts["final_checkpoint"])]
    assert distance(*ended) < 1e-3 * distance(adapter(str(start)), ended[1])


def data_of(batch: dict[str, Any], client: Any, normalise: Any) -> list[Datum]:
    """TRL's attempts as `rl` would have made data of them, with advantages of our own."""
    prompts, answers = (_without_padding(batch, part) for part in ("prompt", "completion"))
    rewards = [mixed(client.tokenizer.decode(answer, skip_special_tokens=True), None, None) for answer in answers]
    advantages = [
        advantage for at in range(0, len(rewards), 8) for advantage in group_advantages(rewards[at : at + 8], "mean")
    ]
    assert advantages == pytest.approx(batch["advantages"].tolist(), abs=1e-6)
    rollouts = [[_datum(*parts)] for parts in zip(prompts, answers, advantages, strict=True)]
    data = normalise_advantages(rollouts, normalise, 6)
    logprobs = client.forward(data).result().logprobs
    return [replace(datum, logprobs=lp) for datum, lp in zip(data, logprobs, strict=True)]


def _without_padding(batch: dict[str, Any], part: str) -> list[list[int]]:
    rows = zip(batch[f"{part}_ids"].tolist(), batch[f"{part}_mask"].tolist(), strict=True)
    return [[token for token, there in zip(ids, mask, strict=True) if there] for ids, mask in rows]


def _datum(prompt: list[int], answer: list[int], advantage: float) -> Datum:
    tokens = np.array([*prompt, *answer])
    weights = (np.arange(1, len(tokens)) >= len(prompt)).astype(np.float32)
    return Datum(tokens[:-1], tokens[1:], weights, advantages=weights * np.float32(advantage))


def test_what_trl_does_not_do_is_refused(llama: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'local_rl' does not support max_staleness.*use the algorithm 'rl'"):
        run("local_rl", llama, [], tmp_path, {"max_staleness": 1})
