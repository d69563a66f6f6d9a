"""One run on several devices: two processes on a CPU give what one gives, and the end of one is the end of the run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local

from evsys_sdk.backends.client import AdamParams, SamplingParams  # noqa: E402
from evsys_sdk.backends.datum import Datum  # noqa: E402
from evsys_sdk.backends.local import parallel  # noqa: E402
from evsys_sdk.backends.local.backend import LocalBackend  # noqa: E402
from evsys_sdk.backends.local.parallel import split_evenly  # noqa: E402
from evsys_sdk.errors import BackendError  # noqa: E402

type MakeClient = Callable[..., Any]
PATIENCE_S = 120
TOLERANCE = 1e-5
"""Of losses, and of the adapter's matrices by their norm, relative: float32 adds up in another order."""


def batch(step: int) -> list[Datum]:
    """Sequences of different lengths; each pair shares its beginning."""
    rng = np.random.default_rng(step)
    data: list[Datum] = []
    for length in (40, 11, 25):
        prompt = rng.integers(0, 250, 8).tolist()
        for _ in range(2):
            answer = rng.integers(0, 250, length).tolist()
            logprobs = (-rng.random(length) * 3).tolist()
            data.append(Datum.policy(prompt, answer, logprobs, rng.normal(size=length).tolist()))
    return data


def pairwise(data: Any, logprobs: Any) -> Any:
    """A loss that depends on several sequences at once."""
    sums = torch.stack([logprob.sum() for logprob in logprobs])
    loss = -torch.nn.functional.logsigmoid((sums[0] - sums[1:]) / 50).sum()
    return loss, {"first": float(sums[0].detach())}


def train(client: Any, steps: range) -> list[float]:
    losses: list[float] = []
    for step in steps:
        data = batch(step)
        passes = [
            client.forward_backward(data, "cross_entropy"),
            client.forward_backward(data, "ppo", {"clip_high_threshold": 1.3}),
            client.forward_backward_custom(data, pairwise),
            client.forward_backward(data[:1], "cross_entropy"),  # fewer sequences than ranks
        ]
        stepped = client.optim_step(AdamParams(learning_rate=1e-2, grad_clip_norm=1.0))
        losses += [one.result(PATIENCE_S).loss for one in passes] + [stepped.result(PATIENCE_S).metrics["grad_norm"]]
    return losses


def adapter_of(folder: str) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(Path(folder) / "adapter_model.safetensors")


def test_two_ranks_give_the_losses_the_adapter_and_the_samples_of_one(make_client: MakeClient, tmp_path: Path) -> None:
    outcomes: dict[int, Any] = {}
    for devices in (1, 2):
        client = make_client(run_dir=tmp_path / str(devices), params={"devices": devices})
        losses = train(client, range(3))
        folder = client.save_state("end").result(PATIENCE_S)
        forward = client.forward(batch(9)).result(PATIENCE_S)
        sampler = client.sampler().result(PATIENCE_S)
        # With seeds of the client and of the request, split over ranks or not, and with a function that stays here.
        pending = [sampler.sample([1, 2, 3 + n], n, SamplingParams(12, stop=[])) for n in (1, 9, 2, 1)]
        pending.append(sampler.sample([5], 8, SamplingParams(6, stop=[], seed=4, logit_bias={7: 2.0})))
        pending.append(sampler.sample([5], 8, SamplingParams(6, stop=[], processors=[lambda _, row: row * 2])))
        samples = [sample for operation in pending for sample in operation.result(PATIENCE_S)]
        scored = [sampler.logprobs(list(range(n, n + 20))).result(PATIENCE_S)[1:] for n in range(3)]
        outcomes[devices] = losses, adapter_of(folder), forward, samples, scored
    first, two = outcomes[1], outcomes[2]
    assert two[0] == pytest.approx(first[0], rel=TOLERANCE)
    for name, tensor in first[1].items():
        # By norm: Adam divides by the size of a gradient, so that single numbers with next to none follow its rounding.
        assert float((two[1][name] - tensor).norm()) <= TOLERANCE * float(tensor.norm()), name
    assert two[2].loss == pytest.approx(first[2].loss, rel=TOLERANCE)
    assert all(np.allclose(a, b, atol=1e-4) for a, b in zip(first[2].logprobs, two[2].logprobs, strict=True))
    assert [sample.tokens for sample in two[3]] == [sample.tokens for sample in first[3]]
    assert all(np.allclose(a, b, atol=1e-4) for a, b in zip(first[4], two[4], strict=True))


def test_the_end_of_a_rank_ends_the_run_and_a_resumed_one_repeats_it(make_client: MakeClient, tmp_path: Path) -> None:
    client = make_client(run_dir=tmp_path / "whole", params={"devices": 2})
    whole = train(client, range(2))
    middle = client.save_state("middle").result(PATIENCE_S)
    whole += train(client, range(2, 4))
    end = adapter_of(client.save_state("end").result(PATIENCE_S))
    sampler = client.sampler().result(PATIENCE_S)
    expected = sampler.sample([1, 2], 8, SamplingParams(10, stop=[])).result(PATIENCE_S)

    [rank] = client._ranks.processes
    waiting = sampler.sample([1], 64, SamplingParams(400, stop=[]))
    os.kill(rank.process.pid, signal.SIGKILL)
    with pytest.raises(BackendError, match=r"rank 1 of 2 .* was ended by signal 9.*resumes from its last checkpoint"):
        train(client, range(4, 6))
    with pytest.raises(BackendError, match="rank 1 of 2"):
        waiting.result(PATIENCE_S)
    with pytest.raises(BackendError, match="an earlier call has failed"):
        client.optim_step(AdamParams()).result(PATIENCE_S)
    client.close()

    again = make_client(run_dir=tmp_path / "again", params={"devices": 2}, load_checkpoint_path=middle)
    assert train(again, range(2, 4)) == whole[len(whole) // 2 :]
    repeated = adapter_of(again.save_state("end").result(PATIENCE_S))
    assert all(torch.equal(repeated[name], tensor) for name, tensor in end.items())
    resampled = again.sampler().result(PATIENCE_S)
    assert resampled.sample([1, 2], 8, SamplingParams(10, stop=[])).result(PATIENCE_S) == expected
    again.load_state(middle).result(PATIENCE_S)
    assert train(again, range(2, 4)) == whole[len(whole) // 2 :]


def test_what_follows_a_sample_of_another_rank_may_train_and_close(make_client: MakeClient) -> None:
    client = make_client(params={"devices": 2})
    sampler = client.sampler().result(PATIENCE_S)

    def use(_: Any) -> float:
        return client.forward_backward(batch(0), "cross_entropy").result(PATIENCE_S).loss

    pending = [sampler.sample([1], 1, SamplingParams(3, stop=[])).then(use) for _ in range(2)]
    assert all(operation.result(PATIENCE_S) > 0 for operation in pending)
    assert sampler.sample([1], 8, SamplingParams(3, stop=[])).then(lambda _: client.close()).result(PATIENCE_S) is None


def test_a_rank_that_cannot_load_is_named_and_none_is_left(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes: list[Any] = []
    real = parallel.RankProcess.call

    def call(self: Any, name: str, *args: Any) -> Any:
        processes.append(self)
        if name == "prepare":
            params, model, run_dir = args
            args = params, replace(model, name="/no/such/model"), run_dir
        return real(self, name, *args)

    monkeypatch.setattr(parallel.RankProcess, "call", call)
    with pytest.raises(BackendError, match=r"rank 1 of 2: .*there is no folder or GGUF file /no/such/model"):
        make_client(params={"devices": 2})
    assert processes[0].process.poll() is not None


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"device": "cuda:1"}, "set device to cuda"),
        ({"join_passes": "always"}, "join_passes"),
        ({"lora_dropout": 0.1}, "lora_dropout"),
        ({"devices": 0}, "greater than or equal to 1"),
    ],
)
def test_devices_that_cannot_work_are_refused(params: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        LocalBackend(**{"devices": 2, **params})


def test_shares_are_even_and_keep_their_order() -> None:
    assert split_evenly([10, 10, 10, 10], 2) == [slice(0, 2), slice(2, 4)]
    assert split_evenly([30, 5, 5], 2) == [slice(0, 1), slice(1, 3)]
    [first, second] = split_evenly([7], 2)
    assert (first.stop - first.start) + (second.stop - second.start) == 1
