"""What only a GPU has: the fused body, captured graphs, and the places in memory that they share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = [pytest.mark.local, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

from evsys_sdk.backends.client import AdamParams, SamplingParams  # noqa: E402
from evsys_sdk.backends.datum import Datum  # noqa: E402

GPU = {"device": "cuda", "dtype": "bfloat16", "exact": False}


def some_data(seed: int = 0, *, shared: int = 20) -> list[Datum]:
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 256, shared).tolist()
    data: list[Datum] = []
    for length in (5, 23, 40, 31, 12):
        ids = [*start, *rng.integers(0, 256, length).tolist()]
        data.append(Datum.supervised(ids, [0.0] * shared + [1.0] * length))
    return data


def randomise(client: Any, seed: int = 5, size: float = 0.05) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, b in client._state.adapter.weights.values():
            b.copy_(torch.randn(b.shape, generator=generator) * size)


def gradient(client: Any) -> Any:
    return torch.cat([tensor.flatten().double().cpu() for tensor in client._state.optimizer._gradient])


def alike(one: Any, other: Any) -> float:
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("shared", [0, 20])
def test_the_fused_body_has_the_gradient_of_float32_on_a_cpu(
    arch: str, shared: int, tiny: Callable[[str], str], make_client: Callable[..., Any]
) -> None:
    gradients: list[Any] = []
    logprobs: list[Any] = []
    for params in ({}, GPU, {**GPU, "lora_dropout": 1e-9}):  # the last goes through the model's own modules
        client = make_client(name=tiny(arch), params=params)
        randomise(client)
        logprobs.append(
            np.concatenate(client.forward_backward(some_data(shared=shared), "cross_entropy").result().logprobs)
        )
        gradients.append(gradient(client))
    assert client._base.gpu_layers, "the fused body is not in use"
    exact, fused, own = gradients
    assert alike(fused, exact) > 0.99
    assert alike(fused, exact) > alike(own, exact) - 0.002
    assert abs(float(fused.norm() / exact.norm()) - 1) < 0.03
    assert np.abs(logprobs[1] - logprobs[0]).mean() < 0.1


def test_a_captured_pass_has_the_gradient_of_the_one_before_it(make_client: Callable[..., Any]) -> None:
    client = make_client(params=GPU)
    randomise(client)
    losses: dict[int, list[float]] = {0: [], 1: []}
    gradients: dict[int, list[Any]] = {0: [], 1: []}
    for seed in (0, 1, 0, 1):  # the first is read as it is, and from the second on the shape is known
        losses[seed].append(client.forward_backward(some_data(seed, shared=0), "cross_entropy").result().loss)
        gradients[seed].append(gradient(client))
        client._state.optimizer.forget_gradient()
    assert len(client._state.graphs._passes) == 1
    for seed in (0, 1):
        assert losses[seed][0] == pytest.approx(losses[seed][1], rel=1e-3)
        assert alike(*gradients[seed]) > 0.999
    assert alike(gradients[0][0], gradients[1][0]) < 0.9
    client.forward_backward(some_data(0, shared=0), "cross_entropy")
    client.optim_step(AdamParams(1e-3)).result()
    after = client.forward_backward(some_data(0, shared=0), "cross_entropy").result().loss
    assert after < losses[0][0]
    client._state.graphs.forget()
    assert client.forward_backward(some_data(0, shared=0), "cross_entropy").result().loss == pytest.approx(
        after, rel=1e-3
    )


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ["k_proj", "up_proj", "down_proj"]])
def test_an_adapter_of_some_layers_only(targets: list[str], make_client: Callable[..., Any]) -> None:
    gradients: list[Any] = []
    for params in ({}, GPU):
        client = make_client(params={**params, "lora_targets": targets})
        randomise(client)
        client.forward_backward(some_data(), "cross_entropy").result()
        gradients.append(gradient(client))
    assert alike(*gradients) > 0.99
    check_logprobs(client, client.sampler().result())


def check_logprobs(client: Any, sampler: Any, *, allowed: float = 0.1) -> None:
    """Samples have the log-probabilities that training gives them, and every one of a batch its own."""
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, 256, length).tolist() for length in (3, 40, 17, 130, 9)]
    lengths = (40, 3, 25, 90, 12)
    pending = [
        sampler.sample(prompt, 3, SamplingParams(count, seed=number, stop=[]))
        for number, (prompt, count) in enumerate(zip(prompts, lengths, strict=True))
    ]
    for prompt, count, operation in zip(prompts, lengths, pending, strict=True):
        for sample in operation.result():
            assert len(sample.tokens) == count
            datum = Datum.supervised([*prompt, *sample.tokens], [0.0] * len(prompt) + [1.0] * count)
            [again] = client.forward([datum]).result().logprobs
            assert np.abs(again[-count:] - np.array(sample.logprobs)).mean() < allowed


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "mistral"])
def test_sampled_logprobs_are_those_of_training(
    arch: str, tiny: Callable[[str], str], make_client: Callable[..., Any]
) -> None:
    client = make_client(name=tiny(arch), params=GPU)
    check_logprobs(client, client.sampler().result())
    randomise(client)
    check_logprobs(client, client.sampler().result())


def test_prompts_of_a_known_shape_are_computed_by_a_graph(make_client: Callable[..., Any]) -> None:
    client = make_client(params=GPU)
    for seed in range(3):
        randomise(client, seed)
        sampler = client.sampler().result()  # a new one has cached no prompts
        check_logprobs(client, sampler)
    assert sampler._snapshot.prepared.space.prompt_graphs._passes


def test_a_sampler_keeps_its_weights_while_others_come_and_go(make_client: Callable[..., Any]) -> None:
    client = make_client(params=GPU)
    greedy = SamplingParams(24, temperature=0, stop=[])
    randomise(client, 1)
    first = client.sampler().result()
    before = first.sample([1, 2, 3], 1, greedy).result()
    for seed in range(2, 6):
        randomise(client, seed)
        other = client.sampler().result()
        assert other.sample([1, 2, 3], 1, greedy).result() != before
        if seed % 2:
            assert first.sample([1, 2, 3], 1, greedy).result() == before
    assert first.sample([1, 2, 3], 1, greedy).result() == before


def test_a_seed_repeats_its_samples_and_truncation_works_next_to_it(make_client: Callable[..., Any]) -> None:
    client = make_client(params=GPU)
    randomise(client)
    sampler = client.sampler().result()
    params = SamplingParams(20, seed=4, stop=[])
    assert sampler.sample([5, 6], 4, params).result() == sampler.sample([5, 6], 4, params).result()
    best = sampler.sample([5, 6], 1, SamplingParams(20, temperature=0, stop=[])).result()
    narrow = sampler.sample([5, 6], 2, dataclasses.replace(params, top_k=1)).result()
    assert [sample.tokens for sample in narrow] == [best[0].tokens] * 2


def test_more_samples_than_run_at_once(make_client: Callable[..., Any]) -> None:
    client = make_client(params={**GPU, "samples_at_once": 5})
    samples = client.sampler().result().sample([1, 2, 3], 23, SamplingParams(9, seed=0, stop=[])).result()
    assert len({tuple(sample.tokens) for sample in samples}) == 23


def test_training_and_sampling_at_the_same_time(make_client: Callable[..., Any]) -> None:
    client = make_client(params=GPU)
    randomise(client)
    sampler = client.sampler().result()
    params = SamplingParams(60, seed=1, temperature=0, stop=[])
    alone = sampler.sample([7, 8, 9], 1, params).result()
    losses: list[float] = []
    pending = [sampler.sample([7, 8, 9], 1, params) for _ in range(3)]
    for _ in range(12):
        output = client.forward_backward(some_data(), "cross_entropy")
        client.optim_step(AdamParams(5e-3))
        losses.append(output.result().loss)
    assert [operation.result() for operation in pending] == [alone] * 3
    assert losses[-1] < losses[0] * 0.8


def test_running_out_of_memory_while_sampling_continues_with_fewer(
    make_client: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from evsys_sdk.backends.local.gpu import graph_decoding

    client = make_client(params=GPU)
    reserve = graph_decoding.StackedCache.reserve

    def little(self: Any, slots: int, length: int) -> None:
        if slots > 4:
            raise torch.OutOfMemoryError("no memory")
        reserve(self, slots, length)

    monkeypatch.setattr(graph_decoding.StackedCache, "reserve", little)
    samples = client.sampler().result().sample([1, 2, 3], 16, SamplingParams(6, seed=0, stop=[])).result()
    assert [len(sample.tokens) for sample in samples] == [6] * 16


def test_rows_with_shared_prefixes_are_captured_too(make_client: Callable[..., Any]) -> None:
    client, exact = make_client(params=GPU), make_client()
    randomise(client)
    randomise(exact)
    exact.forward_backward(some_data(0), "cross_entropy").result()
    gradients: dict[int, list[Any]] = {0: [], 1: []}
    for seed in (0, 1, 0, 1):
        client.forward_backward(some_data(seed), "cross_entropy").result()
        gradients[seed].append(gradient(client))
        client._state.optimizer.forget_gradient()
    [shape] = client._state.graphs._passes
    assert shape.keys
    for seed in (0, 1):
        assert alike(*gradients[seed]) > 0.999
    assert alike(gradients[0][1], gradient(exact)) > 0.99
    assert alike(gradients[0][0], gradients[1][0]) < 0.9


def test_samples_of_one_prompt_read_it_in_one_place(
    make_client: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some end earlier than others, the one whose slot the prompt is read from among them."""
    from evsys_sdk.backends.local.gpu import graph_decoding

    places: list[Any] = []
    shared_prompts = graph_decoding._find_shared_prompts
    monkeypatch.setattr(
        graph_decoding, "_find_shared_prompts", lambda lanes: places.append(shared_prompts(lanes)) or places[-1]
    )
    client = make_client(params=GPU)
    randomise(client)
    sampler = client.sampler().result()
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 256, length).tolist() for length in (100, 70, 100)]
    pending = [
        (prompt, length, sampler.sample(prompt, count, SamplingParams(length, seed=length, stop=[])))
        for prompt in prompts
        for count, length in ((1, 10), (10, 40), (3, 25))
    ]
    data: list[Datum] = []
    logprobs: list[Any] = []
    for prompt, length, operation in pending:
        for sample in operation.result():
            data.append(Datum.supervised([*prompt, *sample.tokens], [0.0] * len(prompt) + [1.0] * length))
            logprobs.append(np.array(sample.logprobs))
    for again, sampled in zip(client.forward(data).result().logprobs, logprobs, strict=True):
        assert np.abs(again[-len(sampled) :] - sampled).mean() < 0.1
    assert any(home != slot for place in places for slot, home in enumerate(place[0])), "no prompt was shared"
    assert {70.0, 100.0} == {length for place in places for length in place[1]}
    alone = sampler.sample(prompts[0], 10, SamplingParams(40, seed=40, stop=[])).result()
    assert alone == sampler.sample(prompts[0], 10, SamplingParams(40, seed=40, stop=[])).result()


@pytest.mark.parametrize("count", [1, 7, 40, 100, 150])
def test_any_number_of_samples_has_the_logprobs_of_training(
    count: int, tiny: Callable[[str], str], make_client: Callable[..., Any]
) -> None:
    client = make_client(name=tiny("qwen3"), params=GPU)
    randomise(client)
    samples = client.sampler().result().sample([4, 5, 6], count, SamplingParams(12, seed=1, stop=[])).result()
    data = [Datum.supervised([4, 5, 6, *sample.tokens], [0.0] * 3 + [1.0] * 12) for sample in samples]
    again = np.array([lp[-12:] for lp in client.forward(data).result().logprobs])
    assert np.abs(again - np.array([sample.logprobs for sample in samples])).mean() < 0.1


def test_steps_are_launched_ahead_as_long_as_nothing_ends(
    make_client: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from evsys_sdk.backends.local.gpu.graph_decoding import GraphDecoder

    launched: list[bool] = []
    replayed = GraphDecoder._replay

    def noted(self: Any, *args: Any, after: Any = None) -> Any:
        launched.append(after is not None)
        return replayed(self, *args, after=after)

    monkeypatch.setattr(GraphDecoder, "_replay", noted)
    client = make_client(params=GPU)
    client.sampler().result().sample([1, 2, 3], 4, SamplingParams(40, seed=0, stop=[])).result()
    assert len(launched) == 39, "one step for each token but the first"
    assert sum(launched) >= 30


@pytest.mark.parametrize("vocabulary", [259, 5000])
def test_the_gpu_chooses_the_token_that_the_cpu_chooses(vocabulary: int) -> None:
    from evsys_sdk.backends.local.gpu.choice import pick
    from evsys_sdk.backends.local.sampling.lanes import choose

    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(64, vocabulary, generator=generator) * 3).bfloat16()
    uniform = torch.rand(64, dtype=torch.float64, generator=generator)
    params = [SamplingParams(1, temperature=(0, 0.6, 1, 1.7)[row % 4]) for row in range(64)]
    temperature = torch.tensor([p.temperature for p in params], dtype=torch.float64)
    biases, bias = torch.randn(1, vocabulary, generator=generator), torch.arange(64) // 4 % 2
    inputs = (logits, temperature, uniform, biases, bias.int())
    tokens, logprobs = pick(*(one.cuda() for one in inputs)).cpu()
    expected = logits.float().log_softmax(dim=1)
    drawn = choose(expected + bias[:, None] * biases, params, uniform)
    assert float((tokens.long() == drawn).float().mean()) > 0.98  # two sums of which rounding may decide
    assert torch.allclose(logprobs.float(), expected.gather(1, tokens.long()[:, None])[:, 0], atol=1e-4)


def test_kernels_next_to_the_model_equal_plain_torch() -> None:
    from evsys_sdk.backends.local.gpu.row_kernels import Gather, merge, softmax_, store_rows

    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Any:
        return torch.randn(shape, generator=generator).cuda()

    logits = random(7, 9001).bfloat16()
    expected = logits.float()
    totals = softmax_(logits, replace=True)
    assert torch.allclose(totals, expected.logsumexp(dim=1), atol=1e-4)
    assert torch.equal(logits, (expected - totals[:, None]).exp().bfloat16())
    weight, a, b, merged = random(200, 136).bfloat16(), random(24, 136), random(200, 24), random(200, 136).bfloat16()
    merge(weight, a, b, 0.5, merged)
    assert float((merged.float() - (weight.float() + 0.5 * b @ a)).abs().max()) < 0.1
    rows = random(6, 2, 16).bfloat16()
    index = torch.tensor([0, 1, 0, 1, 2, 5, 0, 3], device="cuda")
    order, ends = index.argsort(stable=True), torch.tensor([0, 3, 5, 6, 7, 7, 8], device="cuda")
    slope = random(8, 2, 16).bfloat16()
    [found] = torch.autograd.grad(Gather.apply(rows.requires_grad_(), index, order, ends), rows, slope)
    rows = rows.detach()
    summed = torch.zeros(6, 2, 16, device="cuda").index_add_(0, index, slope.float())
    assert torch.allclose(found.float(), summed, atol=0.02)
    cache = torch.zeros(2, 3, 2, 9, 16, device="cuda", dtype=torch.bfloat16)
    slots, positions = torch.tensor([0, 2, 2], device="cuda"), torch.tensor([8, 0, 1], device="cuda")
    store_rows(rows, rows, (cache[0], cache[1]), slots, positions, slots + 1)
    assert torch.equal(cache[0][slots, :, positions], rows[slots + 1])
    assert torch.equal(cache[1][slots, :, positions], rows[slots + 1])
    assert int((cache != 0).sum()) == 2 * int((rows[slots + 1] != 0).sum())
