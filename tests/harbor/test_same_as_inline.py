"""The engine is a detail: the same rows give the same tokens and the same rewards through either."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import Experiment, ExperimentConfig
from evsys_sdk.backends.client import ModelSpec, SamplingParams
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.data.types import HarborTask, InProcessVerifier
from evsys_sdk.eval.verifier import verify_rollout
from evsys_sdk.inference.renderer import get_renderer
from evsys_sdk.rollouts.engine import EngineLimits, InlineEngine, RolloutRequest
from evsys_sdk.rollouts.harness import build_harness
from evsys_sdk.rollouts.policy import SamplerPolicy

pytest.importorskip("harbor", reason="needs the extra harbor; run make test-harbor")
pytestmark = pytest.mark.harbor


@pytest.fixture
def policy(tmp_path: Path) -> Iterator[SamplerPolicy]:
    backend = MockBackend()
    handles = backend.prepare(model=ModelSpec("tiny", seed=3), run_dir=tmp_path)
    client = handles["training_client"]
    params = SamplingParams(max_tokens=6, temperature=1.0)
    yield SamplerPolicy(client.sampler().result(), get_renderer(client.tokenizer), params, 512, seed=7)
    backend.teardown(handles)


def test_tokens_and_rewards_are_those_of_the_inline_engine(
    policy: SamplerPolicy, make_engine: Callable[..., Any]
) -> None:
    tasks = [HarborTask(f"t{i}", f"What is {i} + 1?", InProcessVerifier("contains", expected="e")) for i in range(12)]
    harness, verify = build_harness(), verify_rollout

    def requests() -> list[RolloutRequest]:
        return [
            RolloutRequest(task, sample, policy.with_seed(task.task_id, sample), harness, verify)
            for task in tasks
            for sample in range(3)
        ]

    inline, harbor = InlineEngine(EngineLimits()), make_engine(concurrency=8)
    ours, theirs = inline.submit(requests()).result(), harbor.submit(requests()).result()
    inline.close()
    assert len({tuple(rollout.turns[0].completion_tokens) for rollout in ours}) > 10
    assert {rollout.reward for rollout in ours} == {0.0, 1.0}
    for a, b in zip(ours, theirs, strict=True):
        assert (a.task_id, a.sample, a.status, a.reward, a.error) == (b.task_id, b.sample, b.status, b.reward, b.error)
        assert a.turns == b.turns
        assert a.messages == b.messages
        assert a.info == b.info


def scored_by(engine: str, folder: Path) -> tuple[dict[str, float], list[tuple[Any, ...]]]:
    """Train a little and score a benchmark through an engine, as a YAML file asks for it."""
    config = ExperimentConfig.model_validate(
        {
            "name": engine,
            "output_dir": str(folder / "outputs"),
            "metadata": {
                "benchmark": {
                    "name": "letters",
                    "path": str(folder / "tasks.jsonl"),
                    "split": "test",
                    "engine": engine,
                    "samples": 3,
                    "max_tokens": 6,
                    "metrics": ["pass@1", "mean_reward"],
                }
            },
            "run": {
                "name": "r",
                "data": {"source_kind": "in_memory", "rows": [{"messages": CHAT}]},
                "model": {"name": "tiny"},
                "algorithm": {"kind": "sft", "params": {"max_steps": 2}},
                "backend": {"kind": "mock"},
            },
        }
    )
    result = Experiment(config).run()
    [run] = result.runs
    assert (run.status, run.notes.unscored) == ("completed", None)
    [journal] = (result.path / "r" / "benchmarks").rglob("*.jsonl")
    lines = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    attempts = [line for line in lines if "task_id" in line]
    rewards = sorted((attempt["task_id"], attempt["sample"], attempt["reward"]) for attempt in attempts)
    return {name: value for name, value in run.metrics.items() if name.startswith("test/")}, rewards


CHAT = [{"role": "user", "content": "say e"}, {"role": "assistant", "content": "e"}]


def test_a_benchmark_entry_with_the_engine_harbor_gives_the_rewards_of_inline(tmp_path: Path) -> None:
    verifier = {"kind": "in_process", "fn_name": "contains", "expected": "e"}
    tasks = [{"task_id": f"t{n}", "instruction": f"What is {n} + 1?", "verifier": verifier} for n in range(8)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")
    metrics, rewards = scored_by("inline", tmp_path)
    assert {reward for _, _, reward in rewards} == {0.0, 1.0}
    assert len(rewards) == 24
    assert scored_by("harbor", tmp_path) == (metrics, rewards)
