"""Several runs on one base in joint passes: each has the numbers that it has alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local

from evsys_sdk.backends.client import AdamParams, SamplingParams  # noqa: E402
from evsys_sdk.backends.datum import Datum  # noqa: E402
from evsys_sdk.backends.local.training import joining  # noqa: E402
from evsys_sdk.errors import BackendError  # noqa: E402

from .test_architectures import FAMILIES, build  # noqa: E402

type MakeClient = Callable[..., Any]
ARMS, STEPS = 4, 4
PATIENCE_S = 60


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of a busy machine come late; here they are waited for."""
    monkeypatch.setattr(joining, "_LEAST_PATIENCE_S", 0.4)
    monkeypatch.setattr(joining, "_MOST_PATIENCE_S", 0.4)


def batch_of(arm: int, step: int) -> list[Datum]:
    """Texts of an arm's own, some of which begin alike; arms have batches of different sizes."""
    rng = np.random.default_rng(100 * arm + step)
    start = rng.integers(0, 250, 20).tolist()
    texts = [start + rng.integers(0, 250, 5 + 3 * arm + number).tolist() for number in range(3)]
    return [Datum.supervised(text, [0.0] * 4 + [1.0] * (len(text) - 4)) for text in texts]


def train(clients: list[Any], *, together: bool, steps: int = STEPS) -> list[list[float]]:
    """The losses of each client, trained side by side or one after another."""
    meet = threading.Barrier(len(clients)) if together else None

    def run(arm: int) -> list[float]:
        losses: list[float] = []
        for step in range(steps):
            if meet is not None:
                meet.wait(PATIENCE_S)
            passed = clients[arm].forward_backward(batch_of(arm, step), "cross_entropy")
            clients[arm].optim_step(AdamParams(1e-2)).result(PATIENCE_S)
            losses.append(passed.result(PATIENCE_S).loss)
        return losses

    with ThreadPoolExecutor(len(clients) if together else 1) as pool:
        return list(pool.map(run, range(len(clients))))


def arms_of(make_client: MakeClient, folder: Path, count: int = ARMS, *, join: str = "always", **others: Any) -> Any:
    params = {"join_passes": join, **others.pop("params", {})}
    return [make_client(seed=arm, run_dir=folder / f"{join}{arm}", params=params, **others) for arm in range(count)]


def joint_rows(clients: list[Any]) -> int:
    return clients[0]._state._joiner.joint_rows


def weights_of(client: Any) -> Any:
    return client._state.adapter.lay_flat().clone()


@pytest.mark.parametrize("arch", ["llama", "qwen3", "gemma3_text", "gpt2"])
def test_arms_trained_together_have_the_numbers_they_have_alone(
    arch: str, tiny: Callable[[str], str], make_client: MakeClient, tmp_path: Path
) -> None:
    together = arms_of(make_client, tmp_path, name=tiny(arch))
    apart = arms_of(make_client, tmp_path, join="never", name=tiny(arch))
    assert np.allclose(train(together, together=True), train(apart, together=False), rtol=1e-4)
    for first, other in zip(together, apart, strict=True):
        assert torch.allclose(weights_of(first), weights_of(other), atol=2e-4)
    assert joint_rows(together) >= ARMS * (STEPS - 1)


def test_adapters_of_another_rank_are_in_their_own_passes(make_client: MakeClient, tmp_path: Path) -> None:
    params = {"join_passes": "always"}
    ranks = [4, 8, 4, 8]
    mixed = [
        make_client(seed=arm, run_dir=tmp_path / str(arm), params=params, lora_rank=rank)
        for arm, rank in enumerate(ranks)
    ]
    apart = [
        make_client(seed=arm, run_dir=tmp_path / f"a{arm}", params={}, lora_rank=rank) for arm, rank in enumerate(ranks)
    ]
    before = joint_rows(mixed)
    assert np.allclose(train(mixed, together=True), train(apart, together=False), rtol=1e-4)
    assert joint_rows(mixed) > before


def test_a_loss_that_fails_reaches_only_its_own_run(make_client: MakeClient, tmp_path: Path) -> None:
    arms = arms_of(make_client, tmp_path, 3)
    train(arms, together=True, steps=1)

    def broken(data: Any, logprobs: Any) -> Any:
        raise ValueError("no loss today")

    pending = [arm.forward_backward(batch_of(number, 0), "cross_entropy") for number, arm in enumerate(arms[:2])]
    failing = arms[2].forward_backward_custom(batch_of(2, 0), broken)
    with pytest.raises(Exception, match="no loss today"):
        failing.result(PATIENCE_S)
    assert all(np.isfinite(operation.result(PATIENCE_S).loss) for operation in pending)
    assert not arms[2]._state.optimizer.accumulated.any()
    assert all(arm._state.optimizer.accumulated.any() for arm in arms[:2])


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), RuntimeError("a kernel is broken")])
def test_when_a_joint_pass_fails_each_run_continues_alone(
    error: Exception, make_client: MakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(joining, "read_together", fail)
    together, apart = arms_of(make_client, tmp_path), arms_of(make_client, tmp_path, join="never")
    before = joint_rows(together)
    assert train(together, together=True, steps=2) == train(apart, together=False, steps=2)
    assert joint_rows(together) == before


def test_a_run_that_has_ended_is_not_waited_for(make_client: MakeClient, tmp_path: Path) -> None:
    arms = arms_of(make_client, tmp_path, 3)
    train(arms, together=True, steps=1)
    arms[0].close()
    train(arms[1:], together=True, steps=1)
    assert arms[1]._state._joiner.members == 2
    with pytest.raises(BackendError, match="closed"):
        arms[0].forward_backward(batch_of(0, 0), "cross_entropy")


class WaitingRow:
    """Like a row of a run that waits for a pass; also like its run."""

    def __init__(self, tokens: int) -> None:
        self.tokens, self.state = tokens, self
        self.base, self.form, self.slope_of = SimpleNamespace(device=torch.device("cpu")), 1, None
        self.fitting, self.is_large, self.is_taken = SimpleNamespace(tokens_at_once=224), False, False


def test_rows_that_do_not_fit_into_one_pass_are_divided_evenly() -> None:
    rows: list[Any] = [WaitingRow(60) for _ in range(4)]  # three of them fit
    joiner = joining.RowJoiner()
    joiner._waiting = list(rows)
    joiner._expected.update(rows)
    assert joiner._gather(rows[0]) == rows[:2]
    assert set(joiner._expected) == set(rows[2:])  # the second pass does not wait for those that were in the first
    assert joiner._gather(rows[2]) == rows[2:]
    assert set(joiner._expected) == set(rows[2:])


def test_rows_that_fill_a_pass_by_themselves_are_not_joined(make_client: MakeClient, tmp_path: Path) -> None:
    arms = arms_of(make_client, tmp_path, 2, params={"tokens_at_once": 64})
    before = joint_rows(arms)
    train(arms, together=True, steps=1)
    assert joint_rows(arms) == before


PROMPTS = [list(range(30, 60)), [*range(30, 50), 1, 2], [7, 8, 9]]


def draw(clients: list[Any], *, together: bool) -> list[Any]:
    """Samples and scores of each client, which all ask for the same prompts."""
    samplers = [client.sampler().result() for client in clients]
    samples: list[list[Any]] = [[] for _ in samplers]
    for turn in range(2):
        pending = []
        for arm, sampler in enumerate(samplers):
            params = SamplingParams(6 + 2 * arm, stop=[], seed=turn, temperature=0.0 if turn else 1.0)
            requests = [sampler.sample(prompt, 3, params) for prompt in PROMPTS]
            pending.append((requests, sampler.logprobs(PROMPTS[0])))
            if not together:
                [request.result(PATIENCE_S) for request in requests]
        for arm, (requests, scored) in enumerate(pending):
            samples[arm] += [sample for request in requests for sample in request.result(PATIENCE_S)]
            assert np.isfinite(scored.result(PATIENCE_S)[1:]).all()
    return samples


@pytest.mark.parametrize("family", ["Llama", "Qwen3.5", "GPT-2"])
def test_samples_drawn_together_are_those_drawn_alone(family: str, make_client: MakeClient, tmp_path: Path) -> None:
    arch, config = FAMILIES[family]
    folder = build(tmp_path / "model", arch, **config)
    together = arms_of(make_client, tmp_path, 3, name=folder)
    apart = arms_of(make_client, tmp_path, 3, join="never", name=folder)
    for clients in (together, apart):
        train(clients[:2], together=False, steps=3)  # the last one stays what the base is
    for first, other in zip(draw(together, together=True), draw(apart, together=False), strict=True):
        assert [sample.tokens for sample in first] == [sample.tokens for sample in other]
        for mine, alone in zip(first, other, strict=True):
            assert np.allclose(mine.logprobs, alone.logprobs, atol=1e-4)
    [batch] = together[0]._loop._thread._serving._batches.values()
    assert type(batch._decoder).__name__ == "JointDecoder"


def test_a_client_that_is_closed_gives_up_its_own_samples_only(make_client: MakeClient, tmp_path: Path) -> None:
    arms = arms_of(make_client, tmp_path, 2)
    samplers = [arm.sampler().result() for arm in arms]
    long, short = SamplingParams(400, stop=[]), SamplingParams(20, stop=[])
    given_up = samplers[0].sample(PROMPTS[0], 2, long)
    samples = samplers[1].sample(PROMPTS[0], 2, short)
    arms[0].close()
    with pytest.raises(BackendError, match="closed while it was sampling"):
        given_up.result(PATIENCE_S)
    assert [len(sample.tokens) for sample in samples.result(PATIENCE_S)] == [20, 20]
    assert len(samplers[1].sample(PROMPTS[1], 1, short).result(PATIENCE_S)[0].tokens) == 20
    with pytest.raises(BackendError, match="closed"):
        samplers[0].sample(PROMPTS[0], 1, short)
