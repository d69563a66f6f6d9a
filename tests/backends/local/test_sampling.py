"""Sampling: batches that requests join and leave, limits, stops, seeds, and agreement with transformers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local

from evsys_sdk.backends.client import AdamParams, SamplingParams  # noqa: E402
from evsys_sdk.backends.datum import Datum  # noqa: E402
from evsys_sdk.backends.local.base import products  # noqa: E402
from evsys_sdk.backends.local.sampling import batch, decoding, fused_decoding  # noqa: E402
from evsys_sdk.backends.local.sampling.lanes import choose  # noqa: E402
from evsys_sdk.errors import BackendError  # noqa: E402

from .conftest import save_tiny  # noqa: E402

type MakeClient = Callable[..., Any]


def train(client: Any, steps: int = 2) -> None:
    ids = client.tokenizer.encode("some text to learn from")
    for _ in range(steps):
        client.forward_backward([Datum.supervised(ids, [1.0] * len(ids))], "cross_entropy").result()
        client.optim_step(AdamParams(3e-3)).result()


@pytest.mark.parametrize("arch", ["llama", "qwen3", "mistral", "gemma3_text"])
def test_greedy_samples_equal_those_of_generate(arch: str, tiny: Callable[[str], str], make_client: MakeClient) -> None:
    from transformers import AutoModelForCausalLM

    client = make_client(name=tiny(arch))
    sampler = client.sampler().result()
    prompts = [client.tokenizer.encode(text) for text in ("Hello", "A longer prompt than that", "x")]
    pending = [sampler.sample(p, 1, SamplingParams(24, temperature=0.0, stop=[])) for p in prompts]
    model = AutoModelForCausalLM.from_pretrained(tiny(arch), dtype=torch.float32)
    for prompt, operation in zip(prompts, pending, strict=True):
        own = model.generate(
            torch.tensor([prompt]), max_new_tokens=24, min_new_tokens=24, do_sample=False, pad_token_id=0
        )
        [sample] = operation.result()
        assert len(sample.tokens) == 24
        # generate suppresses the end-of-text token to reach its minimum; up to there both must agree
        ours = sample.tokens
        end = ours.index(258) if 258 in ours else len(ours)
        assert ours[:end] == own[0, len(prompt) :].tolist()[:end]


@pytest.mark.parametrize("params", [{}, {"merge_samplers": False}])
def test_samples_do_not_depend_on_their_company(params: dict[str, Any], make_client: MakeClient) -> None:
    client = make_client(params=params)
    train(client)
    sampler = client.sampler().result()
    prompts = [client.tokenizer.encode(f"prompt number {number} {'x' * number}") for number in range(6)]
    options = [SamplingParams(5 + 7 * n, seed=n, stop=[]) for n in range(6)]
    alone = [sampler.sample(p, 2, o).result() for p, o in zip(prompts, options, strict=True)]
    together = [sampler.sample(p, 2, o) for p, o in zip(prompts, options, strict=True)]
    for expected, operation in zip(alone, together, strict=True):
        for first, other in zip(expected, operation.result(), strict=True):
            assert first.tokens == other.tokens
            np.testing.assert_allclose(first.logprobs, other.logprobs, atol=1e-4)


@pytest.mark.parametrize("params", [{"samples_at_once": 3}, {"cached_tokens": 64}, {"tokens_at_once": 20}])
def test_narrow_limits_change_how_not_what_is_sampled(params: dict[str, Any], make_client: MakeClient) -> None:
    samples: list[list[list[int]]] = []
    for chosen in ({}, params):
        client = make_client(params=chosen)
        sampler = client.sampler().result()
        prompts = [client.tokenizer.encode(text) for text in ("first prompt", "second", "the third prompt", "second")]
        pending = [sampler.sample(p, 4, SamplingParams(9, seed=n)) for n, p in enumerate(prompts)]
        samples.append([sample.tokens for operation in pending for sample in operation.result()])
    assert samples[0] == samples[1]


def test_a_late_request_joins_the_running_batch(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = client.sampler().result()
    sampler.sample([1], 1, SamplingParams(1)).result()  # a base tries out its decoders first
    widths: list[int] = []
    halfway = threading.Event()
    real = decoding.TokenDecoder.step

    def step(self: Any, tokens: Any, positions: Any) -> Any:
        widths.append(len(tokens))
        if len(widths) == 20:
            halfway.set()
        if len(widths) > 20:
            joined.wait(60)
        return real(self, tokens, positions)

    joined = threading.Event()
    monkeypatch.setattr(decoding.TokenDecoder, "step", step)
    first = sampler.sample(client.tokenizer.encode("a"), 1, SamplingParams(60, seed=1, stop=[]))
    assert halfway.wait(60)
    late = sampler.sample(client.tokenizer.encode("another one"), 1, SamplingParams(5, seed=2, stop=[]))
    joined.set()
    assert len(late.result().pop().tokens) == 5
    assert len(first.result().pop().tokens) == 60
    assert widths[0] == 1
    assert 2 in widths
    assert widths[-1] == 1, "the first goes on alone after the second has left"


def test_equal_prompts_are_read_once(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = client.sampler().result()
    sampler.sample([1], 1, SamplingParams(1)).result()  # a base tries out its decoders first
    read: list[int] = []
    real = decoding.TokenDecoder.prefill

    def prefill(self: Any, prompts: Any, slots: Any, known: Any) -> Any:
        read.extend(map(len, prompts))
        return real(self, prompts, slots, known)

    monkeypatch.setattr(decoding.TokenDecoder, "prefill", prefill)
    prompt = client.tokenizer.encode("the same prompt")
    pending = [sampler.sample(prompt, 2, SamplingParams(30, seed=seed, stop=[])) for seed in range(4)]
    texts = {tuple(sample.tokens) for operation in pending for sample in operation.result()}
    assert len(texts) == 8
    assert read == [len(prompt)]


def test_stops_may_be_texts_that_span_tokens(client: Any) -> None:
    sampler = client.sampler().result()
    prompt = client.tokenizer.encode("x")
    free = sampler.sample(prompt, 1, SamplingParams(40, seed=11, stop=[])).result()[0].tokens
    text = client.tokenizer.decode(free[10:13])
    assert "�" not in text or len(text) >= 3
    stopped = sampler.sample(prompt, 1, SamplingParams(40, seed=11, stop=[text])).result()[0]
    assert stopped.tokens == free[: len(stopped.tokens)]
    assert text in client.tokenizer.decode(stopped.tokens)
    assert text not in client.tokenizer.decode(stopped.tokens[:-1])
    assert stopped.stop_reason == "stop"


def test_the_end_of_text_is_a_stop_by_default_and_by_its_text(client: Any) -> None:
    sampler = client.sampler().result()
    prompt = client.tokenizer.encode("y")
    params = {"temperature": 3.0, "seed": 4}
    default = sampler.sample(prompt, 32, SamplingParams(400, **params)).result()
    ended = [sample for sample in default if sample.stop_reason == "stop"]
    assert ended
    assert all(sample.tokens[-1] == 258 and 258 not in sample.tokens[:-1] for sample in ended)
    by_text = sampler.sample(prompt, 32, SamplingParams(400, stop=["<|im_end|>"], **params)).result()
    assert [sample.tokens for sample in by_text] == [sample.tokens for sample in default]


def test_tokens_are_drawn_from_the_tempered_and_truncated_distribution() -> None:
    logprobs = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()[None]
    uniform = (torch.arange(4000) + 0.5) / 4000

    def shares(**options: Any) -> list[float]:
        params = [SamplingParams(1, **options)] * len(uniform)
        drawn = choose(logprobs.expand(len(uniform), -1), params, uniform.double())
        return (torch.bincount(drawn, minlength=4) / len(uniform)).tolist()

    assert shares() == pytest.approx([0.5, 0.25, 0.15, 0.1], abs=2e-3)
    squared = np.array([0.25, 0.0625, 0.0225, 0.01])
    assert shares(temperature=0.5) == pytest.approx(squared / squared.sum(), abs=2e-3)
    assert shares(top_k=2) == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=2e-3)
    assert shares(top_p=0.7) == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=2e-3)
    assert shares(top_p=0.76, top_k=-1) == pytest.approx([0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0], abs=2e-3)
    assert shares(temperature=0.0) == [1, 0, 0, 0]


def test_training_and_sampling_take_turns(client: Any) -> None:
    """A long sample of an old snapshot continues while the weights are trained, and is not touched by it."""
    sampler = client.sampler().result()
    prompt = client.tokenizer.encode("start")
    expected = sampler.sample(prompt, 4, SamplingParams(120, seed=3, stop=[])).result()
    running = sampler.sample(prompt, 4, SamplingParams(120, seed=3, stop=[]))
    train(client, steps=5)
    during = [sample.tokens for sample in running.result()]
    assert during == [sample.tokens for sample in expected]
    after = client.sampler().result().sample(prompt, 4, SamplingParams(120, seed=3, stop=[])).result()
    assert [sample.tokens for sample in after] != during


@pytest.mark.parametrize("targets", [None, ["q_proj", "up_proj"], ["o_proj"]])
def test_the_fused_decoder_computes_what_the_plain_one_does(
    targets: list[str] | None, tiny: Callable[[str], str], make_client: MakeClient
) -> None:
    for arch in ("llama", "qwen3", "qwen2", "mistral"):
        client = make_client(name=tiny(arch), params={"lora_targets": targets})
        train(client)
        base = client._base
        before = client.forward([Datum.supervised([1, 2, 3], [1.0] * 3)]).result().loss
        logits: list[Any] = []
        for fused in (False, True):
            with torch.inference_mode():
                merged = client._state.adapter.copy().merge(base.switch)
                decoder = decoding.TokenDecoder(base, merged)
                if fused:
                    layers = fused_decoding.prepare_layers(base, merged)
                    decoder = fused_decoding.FusedDecoder(base, merged, layers)
                decoder.cache.reserve(2, 32)
                decoder.prefill([list(range(20)), [7, 8]], [0, 1])
                logits.append(torch.stack([decoder.step([5, 6], [20 + n, 2 + n]) for n in range(3)]))
        assert torch.allclose(logits[0], logits[1], atol=1e-3)
        assert client.forward([Datum.supervised([1, 2, 3], [1.0] * 3)]).result().loss == before
        train(client, steps=1)


def test_without_the_kernels_of_the_fused_decoder_the_plain_one_is_used(
    tmp_path: Path, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such operator, on purpose")

    monkeypatch.setattr(products.Product, "of", missing)
    client = make_client(name=save_tiny(tmp_path / "own"))
    assert client.sampler().result().sample([1, 2], 2, SamplingParams(4, stop=[])).result()
    assert client._base.fusible is False


def test_merged_and_separate_adapters_sample_alike(make_client: MakeClient) -> None:
    samples: list[Any] = []
    for merge in (True, False):
        client = make_client(params={"merge_samplers": merge})
        train(client)
        samples.append(client.sampler().result().sample([1, 2, 3], 1, SamplingParams(10, seed=1, stop=[])).result()[0])
    assert samples[0].tokens == samples[1].tokens
    np.testing.assert_allclose(samples[0].logprobs, samples[1].logprobs, atol=1e-4)


def test_running_out_of_memory_samples_fewer_at_once(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = client.sampler().result()
    prompt = client.tokenizer.encode("memory")
    params = SamplingParams(12, seed=5, stop=[])
    expected = sampler.sample(prompt, 8, params).result()
    real = decoding.TokenDecoder.step

    def step(self: Any, tokens: Any, positions: Any) -> Any:
        if len(tokens) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory, on purpose")
        return real(self, tokens, positions)

    monkeypatch.setattr(decoding.TokenDecoder, "step", step)
    got = sampler.sample(prompt, 8, params).result()
    assert [sample.tokens for sample in got] == [sample.tokens for sample in expected]


def test_one_sample_that_does_not_fit_says_what_to_change(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = client.sampler().result()

    def never(self: Any, tokens: Any, positions: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory, on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(decoding.TokenDecoder, "step", never)
        with pytest.raises(BackendError, match=r"does not fit into the memory of cpu.*max_tokens"):
            sampler.sample([1, 2], 3, SamplingParams(5)).result()
    assert sampler.sample([1, 2], 3, SamplingParams(5, stop=[])).result()


def test_a_fault_fails_its_requests_and_the_thread_lives_on(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = client.sampler().result()

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(batch, "advance", broken)
        with pytest.raises(ZeroDivisionError):
            sampler.sample([1, 2], 1, SamplingParams(5)).result()
    assert sampler.sample([1, 2], 1, SamplingParams(5, stop=[])).result()


def test_closing_gives_up_what_is_being_sampled(client: Any) -> None:
    sampler = client.sampler().result()
    running = sampler.sample([1], 16, SamplingParams(500, stop=[]))
    client.close()
    with pytest.raises(BackendError, match="closed"):
        running.result()
    with pytest.raises(BackendError, match="closed"):
        sampler.sample([1], 1, SamplingParams(5))


def test_texts_are_scored_together_and_in_order(client: Any) -> None:
    sampler = client.sampler().result()
    texts = [client.tokenizer.encode(text) for text in ("one text", "another text", "y", "one text and more")]
    pending = [sampler.logprobs(tokens) for tokens in texts]
    best = [sampler.topk_logprobs(tokens, 5) for tokens in texts]
    for tokens, scores, top in zip(texts, pending, best, strict=True):
        logprobs, alternatives = scores.result(), top.result()
        assert logprobs.shape == (len(tokens),)
        assert np.isnan(logprobs[0])
        assert np.isnan(alternatives.logprobs[0]).all()
        if len(tokens) > 1:
            datum = Datum.supervised(tokens, [1.0] * len(tokens))
            np.testing.assert_allclose(logprobs[1:], client.forward([datum]).result().logprobs[0], atol=1e-4)
            assert (alternatives.logprobs[1:, 0] >= logprobs[1:] - 1e-4).all()


@pytest.mark.parametrize("size", [7, 256, 1000])
def test_a_token_is_found_where_the_distribution_function_says(size: int) -> None:
    rng = np.random.default_rng(size)
    mass = rng.random((50, size)) * (rng.random((50, size)) < 0.3)
    mass[:, size // 2] += 0.1
    uniform = np.concatenate([[0.0, 1 - 2**-53], rng.random(48)])
    logprobs = torch.from_numpy(np.log(mass / mass.sum(1, keepdims=True), where=mass > 0, out=np.full_like(mass, -1e9)))
    drawn = choose(logprobs.float(), [SamplingParams(1)] * 50, torch.from_numpy(uniform)).numpy()
    assert (mass[np.arange(50), drawn] > 0).all()
    cumulative = mass.cumsum(1) / mass.sum(1, keepdims=True)
    above = cumulative[np.arange(50), drawn]
    below = np.where(drawn > 0, cumulative[np.arange(50), drawn - 1], 0.0)
    assert (below - 1e-6 <= uniform).all()
    assert (uniform <= above + 1e-6).all()


def even_only(tokens: Any, logprobs: Any) -> Any:
    logprobs[1::2] = -np.inf
    return logprobs


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.4},
        {"temperature": 0.0},
        {"top_k": 3, "top_p": 0.8},
        {"logit_bias": {7: 4.0, 9: -np.inf}},
        {"processors": (even_only,)},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_logprob_of_a_token_is_that_among_its_own_alternatives(
    dtype: str, options: dict[str, Any], make_client: MakeClient
) -> None:
    client = make_client(params={"dtype": dtype})
    every, sampler = client.capabilities.vocab_size, client.sampler().result()
    sampling_params = SamplingParams(8, stop=[], seed=3, top_logprobs=every, **options)
    for sample in sampler.sample([1, 2, 3], 3, sampling_params).result():
        for at, token in enumerate(sample.tokens):
            alternatives = dict(zip(sample.top.tokens[at].tolist(), sample.top.logprobs[at].tolist(), strict=True))
            assert sample.logprobs[at] == pytest.approx(alternatives[token], abs=1e-6)
    text = [1, 2, 3, *sample.tokens]
    scored = sampler.topk_logprobs(text, every).result()
    for at in range(1, len(text)):
        alternatives = dict(zip(scored.tokens[at].tolist(), scored.logprobs[at].tolist(), strict=True))
        assert scored.given[at] == pytest.approx(alternatives[text[at]], abs=1e-6)
