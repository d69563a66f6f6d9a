"""A model in one line: the same calls that recipes train with, for loops of one's own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evsys_sdk
from evsys_sdk import Datum, Model, SamplingParams, numpy_loss
from evsys_sdk.backends import checks
from evsys_sdk.errors import BackendError, DataError


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    with evsys_sdk.open_model("tiny", backend="mock", folder=tmp_path, seed=1) as opened:
        yield opened


def test_prompts_are_texts_conversations_or_tokens(model: Model) -> None:
    conversation = [{"role": "user", "content": "Hi"}]
    answers = model.sample(["Hi", conversation, model.renderer.prompt(conversation)], n=2, max_tokens=4, seed=3)
    assert [len(group) for group in answers] == [2, 2, 2]
    flat = [answer for group in answers for answer in group]
    assert {tuple(answer.prompt_tokens) for answer in flat} == {tuple(model.encode("Hi"))}
    assert len({tuple(answer.tokens) for answer in flat}) > 3  # every prompt of a batch has its own random numbers
    again = model.sample(["Hi", conversation], n=2, max_tokens=4, seed=3)
    assert [[a.tokens for a in group] for group in again] == [[a.tokens for a in group] for group in answers[:2]]


def test_a_bias_changes_what_is_sampled_and_not_the_log_probabilities(model: Model) -> None:
    token = model.token("z")
    [[answer]] = model.sample(["a"], max_tokens=5, logit_bias={token: 50.0}, stop=[])
    assert answer.text == "zzzzz"
    assert answer.logprobs == pytest.approx(model.logprobs([answer])[0].tolist(), abs=1e-4)
    [[without]] = model.sample(["a"], max_tokens=40, logit_bias={t: float("-inf") for t in range(60)}, stop=[])
    assert min(without.tokens) >= 60


def test_processors_read_all_tokens_and_decide(model: Model) -> None:
    lengths: list[int] = []
    allowed = model.token("q")

    def only_q(tokens: Sequence[int], logprobs: Any) -> Any:
        lengths.append(len(tokens))
        changed = np.full_like(logprobs, -np.inf)
        changed[allowed] = 0
        return changed

    [[answer]] = model.sample(["a"], max_tokens=3, processors=[only_q], stop=[], top_logprobs=2)
    start = len(model.encode("a"))
    assert (answer.text, lengths) == ("qqq", [start, start + 1, start + 2])
    assert answer.top is not None
    assert answer.top.tokens.shape == (3, 2)


def test_a_stop_text_ends_an_answer_and_is_not_part_of_its_text(model: Model) -> None:
    bias = {model.token("z"): 40.0, model.token("!"): 40.0}
    [[answer]] = model.sample(["a"], max_tokens=64, logit_bias=bias, stop=["!"], seed=0)
    assert answer.stop_reason == "stop"
    assert set(answer.text) <= {"z"}
    assert model.tokenizer.decode(answer.tokens).endswith("!")


def test_a_schema_gives_answers_of_its_form(model: Model) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"], "additionalProperties": False}
    [[answer]] = model.sample(["a"], max_tokens=40, schema=schema)
    assert answer.text == '{"n": 7}'


def test_examples_of_every_form_train_the_same(model: Model) -> None:
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
    forms = [messages, {"messages": messages}, ("Q", "A"), (messages[:1], "A")]
    datums = [model.datums([form])[0] for form in forms]
    by_tokens = model.datums([(model.encode("Q"), [*datums[0].target_tokens[datums[0].weights > 0]])])[0]
    for datum in [*datums, by_tokens, *model.datums([datums[0]])]:
        assert datum.tokens.tolist() == datums[0].tokens.tolist()
        assert datum.weights.tolist() == datums[0].weights.tolist()


def test_a_step_learns_and_the_base_stays(model: Model) -> None:
    pair = ("Say yes", "yes!")
    before = float(model.logprobs([pair])[0].sum())
    losses = [model.train([pair], learning_rate=0.01).loss for _ in range(30)]
    assert losses[-1] < losses[0] / 4
    assert float(model.logprobs([pair])[0].sum()) > before + 5
    assert float(model.base.logprobs([pair])[0].sum()) == pytest.approx(before, abs=1e-4)
    [[answer]] = model.sample(["Say yes"], temperature=0.0)
    assert answer.text == "yes!"


def test_a_learning_rate_of_zero_changes_nothing(model: Model) -> None:
    before = model.logprobs([("a", "b")])[0]
    model.train([("a", "b")], learning_rate=0.0)
    assert np.array_equal(model.logprobs([("a", "b")])[0], before)


def test_accumulated_gradients_are_one_step(tmp_path: Path) -> None:
    pairs = [("a", "x"), ("b", "yy")]

    def trained(folder: str, together: bool) -> list[float]:
        with evsys_sdk.open_model("tiny", backend="mock", folder=tmp_path / folder) as model:
            if together:
                model.train(pairs, learning_rate=0.01, reduce="sum")
            else:
                model.backward(pairs[:1], reduce="sum")
                model.backward(pairs[1:], reduce="sum")
                model.step(0.01)
            return [float(row.sum()) for row in model.logprobs(pairs)]

    assert trained("one", True) == pytest.approx(trained("two", False), abs=1e-5)


def test_every_named_loss_and_one_of_ones_own_train(model: Model) -> None:
    [answers] = model.sample(["a"], n=4, max_tokens=4, stop=[])
    data = [answer.datum(advantage) for answer, advantage in zip(answers, (1.0, -1.0, 0.5, -0.5), strict=True)]
    for loss in sorted(model.capabilities.losses):
        assert "grad_norm" in model.train(data, loss).metrics

    @numpy_loss
    def squared(data: Sequence[Datum], logprobs: Sequence[Any]) -> Any:
        return sum(float((lp**2).sum()) for lp in logprobs) / 2, {"mine": 1.0}, list(logprobs)

    assert model.train(data, squared).metrics["mine"] == 1.0


def test_distillation_towards_changed_logits_moves_the_model_there(model: Model) -> None:
    token = model.token("z")
    [answers] = model.sample(["a"], n=8, max_tokens=3, stop=[], seed=0)
    probability = float(np.exp(model.logprobs([(answers[0].prompt_tokens, [token])])[0][0]))
    for _ in range(40):
        model.train(model.base.distil(answers, k=64, logit_bias={token: 4.0}), learning_rate=0.02)
    expected = probability * np.e**4 / (probability * np.e**4 + 1 - probability)
    value = float(np.exp(model.logprobs([(answers[0].prompt_tokens, [token])])[0][0]))
    assert value == pytest.approx(expected, abs=0.15)
    assert value > 5 * probability


def test_adapters_on_one_base_learn_by_themselves(model: Model) -> None:
    other = model.adapter("other", seed=1)
    assert model.adapter("other") is other
    other.train([("a", "b")], learning_rate=0.05)
    assert model.logprobs([("a", "b")])[0].tolist() == model.base.logprobs([("a", "b")])[0].tolist()
    assert other.logprobs([("a", "b")])[0][0] > model.logprobs([("a", "b")])[0][0]


def test_saved_weights_come_back_and_are_exported(model: Model, tmp_path: Path) -> None:
    model.train([("a", "b")], learning_rate=0.05)
    saved, there = model.save("one"), model.logprobs([("a", "b")])[0].tolist()
    model.train([("a", "c")], learning_rate=0.05)
    model.load(saved)
    assert model.logprobs([("a", "b")])[0].tolist() == there
    assert any((model.export(tmp_path / "exported")).iterdir())


def test_all_of_it_can_be_awaited(model: Model) -> None:
    async def loop() -> tuple[float, int]:
        [answers] = await model.sample_async(["a"], n=3, max_tokens=4)
        first, second = model.train_async(answers), model.train_async(answers)  # submitted before either is awaited
        return (await first).loss - (await second).loss, len(await model.logprobs_async(answers))

    better, count = asyncio.run(loop())
    assert better > 0
    assert count == 3


def shorten(tokens: Sequence[int], logprobs: Any) -> Any:
    return logprobs[:3]


@pytest.mark.parametrize(
    ("method", "arguments", "options", "message"),
    [
        ("sample", ["Hi"], {}, r"prompts must be a list .*Write"),
        ("sample", [["Hi"]], {"logit_bais": {}}, r"sample\(\) has no option 'logit_bais'. Did you mean 'logit_bias'"),
        ("train", [[("a", "b")]], {"lr": 1.0}, r"train\(\) has no option 'lr'. Did you mean 'learning_rate'"),
        ("sample", [["Hi"]], {"logit_bias": {-1: 1.0}}, r"logit_bias: tokens.* is -1, which is not in the vocabulary"),
        ("sample", [["Hi"]], {"logit_bias": {1: np.nan}}, "logit_bias of token 1 is nan. Use a number"),
        ("sample", [["Hi"]], {"processors": [shorten]}, r"shorten returned an array of shape \(3,\)"),
        ("sample", [["Hi"]], {"stop": "END"}, r"stop must be a list \(got 'END'\)"),
        ("sample", [["Hi"]], {"max_tokens": 0}, "max_tokens must be 1 or more"),
        ("token", ["two"], {}, "'two' is 3 tokens"),
        ("train", [[("a", "b", "c")]], {}, r"examples: \['a', 'b', 'c'\] is not an example. Give a flat list"),
        ("train", [[[("a", "b")]]], {}, "Give a flat list"),
        ("train", [[("a", "b")], "cross-entropy"], {}, "no loss called 'cross-entropy'. Did you mean"),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(
    model: Model, method: str, arguments: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises((BackendError, DataError), match=message):
        getattr(model, method)(*arguments, **options)


def test_a_backend_that_cannot_change_logits_names_the_alternative(model: Model) -> None:
    from dataclasses import replace

    hosted = replace(model.capabilities, backend="tinker", filters=False)
    with pytest.raises(BackendError, match=r"'tinker' cannot change logits.*Use mock or local"):
        checks.check_sampling([1], 1, SamplingParams(4, logit_bias={3: 1.0}), hosted)
