"""The model handle on the engine: changed logits, distillation and several adapters on one base."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evsys_sdk
from evsys_sdk import Model

pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local


@pytest.fixture
def model(llama: str, tmp_path: Path) -> Iterator[Model]:
    with evsys_sdk.open_model(llama, backend="local", folder=tmp_path, exact=True, device="cpu") as opened:
        yield opened


def test_a_bias_is_exact_in_sampling_and_in_scoring(model: Model) -> None:
    sampler: Any = model.client.sampler().result()
    tokens, token = model.encode("abc"), model.token("z")
    plain = sampler.topk_logprobs(tokens, 259).result()
    biased = sampler.topk_logprobs(tokens, 259, {token: 3.0}).result()
    for at in range(1, len(tokens)):
        before = dict(zip(plain.tokens[at].tolist(), plain.logprobs[at].tolist(), strict=True))
        after = dict(zip(biased.tokens[at].tolist(), biased.logprobs[at].tolist(), strict=True))
        total = np.log(sum(np.exp(value + 3.0 * (one == token)) for one, value in before.items()))
        assert after[token] == pytest.approx(before[token] + 3.0 - total, abs=1e-4)
    [answers] = model.sample(["abc"], n=200, max_tokens=1, logit_bias={token: 3.0}, stop=[], seed=0)
    first = model.base.distil([(answers[0].prompt_tokens, [token])], 259, logit_bias={token: 3.0})[0]
    row = first.weights[-1]
    expected = float(row[first.target_tokens[-1] == token][0])
    share = sum(answer.tokens == [token] for answer in answers) / 200
    assert share == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 200) ** 0.5 + 1e-3)
    assert answers[0].logprobs == pytest.approx(model.logprobs([answers[0]])[0].tolist(), abs=1e-4)


def test_requests_with_and_without_changes_share_a_batch(model: Model) -> None:
    token = model.token("q")

    def only_q(tokens: Sequence[int], logprobs: Any) -> Any:
        changed = np.full_like(logprobs, -np.inf)
        changed[token] = 0
        return changed

    plain = model.sample_async(["a", "b"], n=3, max_tokens=6, stop=[], seed=1)
    processed = model.sample_async(["a"], n=2, max_tokens=6, stop=[], processors=[only_q])
    biased = model.sample_async(["b"], n=2, max_tokens=6, stop=[], logit_bias={token: 80.0})
    assert {answer.text for group in (*processed.result(), *biased.result()) for answer in group} == {"qqqqqq"}
    alone = model.sample(["a", "b"], n=3, max_tokens=6, stop=[], seed=1)
    assert [[a.tokens for a in g] for g in plain.result()] == [[a.tokens for a in g] for g in alone]


def test_distillation_towards_a_bias_moves_the_model_there(model: Model) -> None:
    token = model.token("z")
    [answers] = model.sample(["a"], n=8, max_tokens=3, stop=[], seed=0)
    pair = (answers[0].prompt_tokens, [token])
    before = float(model.logprobs([pair])[0][0])
    data = model.base.distil(answers, k=259, logit_bias={token: 4.0})
    first = model.train(data, learning_rate=5e-3).loss
    losses = [model.train(data, learning_rate=5e-3).loss for _ in range(30)]
    assert losses[-1] < first
    assert float(model.logprobs([pair])[0][0]) > before + 1.5
    assert float(model.base.logprobs([pair])[0][0]) == pytest.approx(before, abs=1e-4)


def test_adapters_of_several_ranks_share_the_base(model: Model) -> None:
    small, large = model.adapter("small", lora_rank=2, seed=1), model.adapter("large", lora_rank=16, seed=2)
    assert small.client._base is large.client._base is model.client._base  # pyright: ignore[reportAttributeAccessIssue]
    small.train([("a", "b")], learning_rate=1e-2)
    assert small.logprobs([("a", "b")])[0][0] > large.logprobs([("a", "b")])[0][0]
    assert large.logprobs([("a", "b")])[0].tolist() == pytest.approx(model.logprobs([("a", "b")])[0].tolist(), abs=1e-5)


def test_an_exported_adapter_is_one_that_peft_loads(model: Model, llama: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    model.train([("a", "b")], learning_rate=1e-2)
    folder = model.export(tmp_path / "out")
    loaded = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(llama), folder)
    assert loaded.peft_config["default"].r == 32
    assert (folder / "tokenizer.json").is_file()
