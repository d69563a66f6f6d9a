"""The engine is a detail: the same rows give the same tokens and the same rewards through either."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.backends.client import ModelSpec, SamplingParams
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.data.types import HarborTask, InProcessVerifier
from evsys_sdk.eval.verifier import verify_with
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
    harness, verify = build_harness(), verify_with()

    def requests() -> list[RolloutRequest]:
        return [
            RolloutRequest(task, sample, policy.seeded(task.task_id, sample), harness, verify)
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
