"""Losses and gradients against plain torch in float64: padded batches, full logits, autograd, no adapter classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local

from evsys_sdk.backends.datum import Datum  # noqa: E402
from evsys_sdk.backends.losses import LOSSES, numpy_loss  # noqa: E402

ARCHS = ["llama", "qwen3", "mistral", "gemma3_text"]
GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))
DEVICES = ["cpu", GPU]


def reference_logprobs(folder: str, client: Any, data: Sequence[Datum]) -> tuple[Any, list[Any], list[Any]]:
    """Log-probabilities of all targets with autograd: an unpacked model whose weights are W + scale * B A."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="sdpa")
    adapter = client._state.adapter
    parameters: list[Any] = []
    replaced: dict[str, Any] = {}
    for name, (a, b) in adapter.weights.items():
        a, b = (matrix.detach().cpu().double().requires_grad_() for matrix in (a, b))
        parameters += [a, b]
        replaced[f"{name}.weight"] = model.get_parameter(f"{name}.weight").detach() + adapter.scale * (b @ a)
    width = max(len(datum) for datum in data)
    ids = torch.zeros(len(data), width, dtype=torch.long)
    mask = torch.zeros(len(data), width, dtype=torch.long)
    for row, datum in enumerate(data):
        ids[row, : len(datum)] = torch.from_numpy(datum.tokens)
        mask[row, : len(datum)] = 1
    output = torch.func.functional_call(model, replaced, (), {"input_ids": ids, "attention_mask": mask})
    full = output.logits.log_softmax(-1)
    logprobs = []
    for row, datum in enumerate(data):
        targets = torch.from_numpy(datum.target_tokens.reshape(len(datum), -1))
        logprobs.append(full[row, : len(datum)].gather(1, targets).reshape(datum.target_tokens.shape))
    return model, parameters, logprobs


def reference_loss(name: str, data: Sequence[Datum], logprobs: Sequence[Any]) -> Any:
    """The named losses in torch, written for this test alone."""
    total = torch.zeros((), dtype=torch.float64)
    for datum, lp in zip(data, logprobs, strict=True):
        weights = torch.from_numpy(datum.weights)
        if name == "cross_entropy":
            total = total - (weights * lp).sum()
            continue
        assert datum.advantages is not None
        assert datum.logprobs is not None
        advantage, old = torch.from_numpy(datum.advantages), torch.from_numpy(datum.logprobs)
        ratio = torch.exp(lp - old)
        sampled = weights != 0
        if name == "importance_sampling":
            total = total - (ratio * advantage).sum()
        elif name == "ppo":
            total = total - torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum()
        elif name == "cispo":
            total = total - (ratio.clamp(0.0, 4.0).detach() * advantage * lp).sum()
        elif name == "dro":
            total = total - (lp * advantage - 0.025 * sampled * (lp - old) ** 2).sum()
        elif name == "gspo":
            whole = torch.exp((lp - old)[sampled].mean()).detach() * torch.exp(lp - lp.detach())
            total = total - torch.minimum(whole * advantage, whole.clamp(1 - 3e-4, 1 + 4e-4) * advantage).sum()
    return total


def some_data(*, policy: bool, seed: int = 0, shared: int = 0) -> list[Datum]:
    """Sequences of different lengths, some with a common beginning."""
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 256, shared)
    data: list[Datum] = []
    for length in (5, 23, 40, 31, 12):
        full = np.concatenate([start, rng.integers(0, 256, length)])
        weights = (rng.random(len(full)) < 0.5).astype(np.float32) * rng.random(len(full)).astype(np.float32)
        weights[: shared // 2] = 0
        weights[-1] = 1.0
        datum = Datum.supervised(full.tolist(), weights.tolist())
        if policy:
            sampled = datum.weights != 0
            advantages = np.where(sampled, rng.normal(size=len(datum)), 0).astype(np.float32)
            old = np.where(sampled, -rng.exponential(3, len(datum)), 0).astype(np.float32)
            datum = dataclasses.replace(datum, advantages=advantages, logprobs=old)
        data.append(datum)
    return data


def near(data: Sequence[Datum], logprobs: Sequence[Any]) -> list[Datum]:
    """The same data with sampling log-probabilities close to the present ones, so that ratios are near 1."""
    rng = np.random.default_rng(1)
    return [
        dataclasses.replace(
            datum,
            logprobs=np.where(datum.weights != 0, lp + rng.normal(size=lp.shape) * 0.3, 0).astype(np.float32),
        )
        for datum, lp in zip(data, logprobs, strict=True)
    ]


def randomise(client: Any) -> None:
    """An adapter that changes something."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for _, b in client._state.adapter.weights.values():
            b.copy_(torch.randn(b.shape, generator=generator) * 0.05)


def gradient(client: Any) -> list[Any]:
    return [tensor.cpu().clone() for tensor in client._state.optimizer._gradient]


def assert_close(found: Sequence[Any], expected: Sequence[Any], tolerance: float = 1e-5) -> None:
    largest = max(float(tensor.abs().max()) for tensor in expected)
    assert largest > 0
    for first, other in zip(found, expected, strict=True):
        assert float((first - other).abs().max()) <= tolerance * largest


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("loss_fn", sorted(LOSSES))
def test_every_loss_and_its_gradient_equal_plain_torch(
    arch: str, loss_fn: str, device: str, tiny: Callable[[str], str], make_client: Callable[..., Any]
) -> None:
    client = make_client(name=tiny(arch), params={"device": device})
    randomise(client)
    data = some_data(policy=loss_fn != "cross_entropy", shared=20)
    if loss_fn != "cross_entropy":
        plain = [dataclasses.replace(datum, advantages=None, logprobs=None) for datum in data]
        data = near(data, client.forward(plain).result().logprobs)
    output = client.forward_backward(data, loss_fn).result()
    _, parameters, logprobs = reference_logprobs(tiny(arch), client, data)
    loss = reference_loss(loss_fn, data, logprobs)
    assert output.loss == pytest.approx(float(loss.detach()), rel=1e-5, abs=1e-5)
    for actual, expected, datum in zip(output.logprobs, logprobs, data, strict=True):
        counted = datum.weights != 0
        np.testing.assert_allclose(actual[counted], expected.detach().numpy()[counted], atol=1e-4)
    assert_close(gradient(client), torch.autograd.grad(loss, parameters))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("params", [{"share_prefixes": False}, {"tokens_at_once": 1}, {"tokens_at_once": 70}])
@pytest.mark.parametrize("shared", [0, 30])
def test_how_data_is_packed_changes_nothing(
    params: dict[str, Any], shared: int, device: str, make_client: Callable[..., Any]
) -> None:
    data = some_data(policy=False, shared=shared)
    gradients: list[list[Any]] = []
    outputs: list[Any] = []
    for chosen in ({}, params):
        client = make_client(params={"device": device, **chosen})
        randomise(client)
        outputs.append(client.forward_backward(data, "cross_entropy").result())
        gradients.append(gradient(client))
    assert outputs[0].loss == pytest.approx(outputs[1].loss, rel=1e-5)
    for first, other in zip(outputs[0].logprobs, outputs[1].logprobs, strict=True):
        np.testing.assert_allclose(first, other, atol=1e-4)
    assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("tokens_at_once", [4096, 60])
def test_a_custom_loss_of_torch_gets_the_gradient_of_autograd(
    tokens_at_once: int, llama: str, make_client: Callable[..., Any]
) -> None:
    """A pairwise loss: it needs the log-probabilities of all data at once, also where they are read in several rows."""
    data = some_data(policy=False)[:4]
    calls: list[int] = []

    def pairwise(data: Sequence[Datum], logprobs: Sequence[Any]) -> Any:
        calls.append(len(data))
        sums = [(torch.from_numpy(d.weights) * lp).sum() for d, lp in zip(data, logprobs, strict=True)]
        loss = -torch.nn.functional.logsigmoid(0.1 * (sums[0] - sums[1]))
        loss = loss - torch.nn.functional.logsigmoid(0.1 * (sums[2] - sums[3]))
        return loss, {"margin": float((sums[0] - sums[1]).detach())}

    client = make_client(params={"tokens_at_once": tokens_at_once})
    randomise(client)
    output = client.forward_backward_custom(data, pairwise).result()
    _, parameters, logprobs = reference_logprobs(llama, client, data)
    loss, metrics = pairwise(data, logprobs)
    assert calls == [4, 4]
    assert output.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    assert output.metrics["margin"] == pytest.approx(metrics["margin"], rel=1e-4)
    assert_close(gradient(client), torch.autograd.grad(loss, parameters))


def test_soft_targets_equal_plain_torch(llama: str, make_client: Callable[..., Any]) -> None:
    rng = np.random.default_rng(2)
    data: list[Datum] = []
    for datum in some_data(policy=False, shared=20):
        targets = rng.integers(0, 256, (len(datum), 3))
        weights = rng.random((len(datum), 3)).astype(np.float32) * (datum.weights != 0)[:, None]
        data.append(Datum(datum.tokens, targets, weights))
    data.append(some_data(policy=False)[0])
    client = make_client()
    randomise(client)
    output = client.forward_backward(data, "cross_entropy").result()
    _, parameters, logprobs = reference_logprobs(llama, client, data)
    loss = reference_loss("cross_entropy", data, logprobs)
    assert output.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    assert_close(gradient(client), torch.autograd.grad(loss, parameters))


def test_a_custom_loss_may_use_positions_without_weight(client: Any) -> None:
    [datum, *_] = some_data(policy=False)
    unweighted = dataclasses.replace(datum, weights=np.zeros_like(datum.weights))

    @numpy_loss
    def everything(data: Sequence[Datum], logprobs: Sequence[Any]) -> Any:
        return -float(logprobs[0].sum()), {}, [-np.ones_like(logprobs[0])]

    weighted = dataclasses.replace(datum, weights=np.ones_like(datum.weights))
    client.forward_backward_custom([unweighted], everything).result()
    tensors = gradient(client)
    client._state.optimizer.forget_gradient()
    client.forward_backward([weighted], "cross_entropy").result()
    assert_close(tensors, gradient(client))


def test_data_of_which_nothing_counts_leave_no_gradient(client: Any) -> None:
    data = [dataclasses.replace(d, weights=np.zeros_like(d.weights)) for d in some_data(policy=False)]
    output = client.forward_backward(data, "cross_entropy").result()
    assert output.loss == 0
    assert not any(bool(tensor.any()) for tensor in gradient(client))


def test_dropout_is_decided_by_the_seed_and_only_while_training(make_client: Callable[..., Any]) -> None:
    data = some_data(policy=False)
    losses: list[float] = []
    for seed, dropout in ((0, 0.5), (0, 0.5), (1, 0.5), (0, 0.0)):
        client = make_client(seed=0, params={"lora_dropout": dropout})
        client._state._seed = seed
        randomise(client)
        losses.append(client.forward_backward(data, "cross_entropy").result().loss)
        assert client.forward(data).result().loss == client.forward(data).result().loss
    assert losses[0] == losses[1]
    assert len(set(losses)) == 3
