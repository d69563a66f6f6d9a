"""The mock model learns: every kind of recipe shows a true curve in seconds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from evsys_sdk.backends.client import AdamParams, SamplingClient, SamplingParams
from evsys_sdk.backends.datum import Datum, Floats
from evsys_sdk.backends.losses import numpy_loss
from evsys_sdk.backends.mock.client import MockTrainingClient

type MakeClient = Callable[..., MockTrainingClient]

SEEN = {
    "weather_lookup": [
        "what is the weather in {}",
        "will it rain in {}",
        "the forecast for {} please",
        "how hot is {}",
    ],
    "play_music": ["play the song {}", "put on some {} music", "I want to listen to {}", "start the {} playlist"],
    "set_timer": [
        "set a timer called {}",
        "remind me of {} in ten minutes",
        "start a countdown for {}",
        "wake me for {}",
    ],
    "send_email": ["write an email to {}", "send {} a message", "mail the report to {}", "tell {} by email"],
    "find_food": ["where can I eat {}", "find a {} restaurant", "book a table for {}", "recommend some {} to eat"],
}
UNSEEN = {
    "weather_lookup": ["is rain in the forecast for {}", "show the weather in {}"],
    "play_music": ["play some music by {}", "let me listen to the song {}"],
    "set_timer": ["please start a timer for {}", "set a countdown called {}"],
    "send_email": ["send an email to {}", "write {} a message"],
    "find_food": ["find a restaurant to eat {}", "recommend a table for {}"],
}
NAMES = ["Oslo", "jazz", "Anna", "pizza", "Lima", "tea", "Chen", "rock"]
NEW_NAMES = ["Quito", "folk", "Olga", "ramen"]
SYSTEM = f"Choose one tool: {', '.join(SEEN)}."


def _rows(templates: dict[str, list[str]], names: Sequence[str]) -> list[tuple[str, str]]:
    return [(text.format(name), tool) for tool, texts in templates.items() for text in texts for name in names]


def _prompt(client: MockTrainingClient, question: str, system: str = SYSTEM) -> list[int]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    tokens = client.tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True)
    assert isinstance(tokens, list)
    return tokens


def _answer(client: MockTrainingClient, text: str) -> list[int]:
    return [*client.tokenizer.encode(text), client.tokenizer.eos_token_id]


def _accuracy(client: MockTrainingClient, rows: Sequence[tuple[str, str]], wrap: str = "{}") -> float:
    sampler = client.sampler().result()
    greedy = SamplingParams(max_tokens=40, temperature=0)
    pending = [(sampler.sample(_prompt(client, question), 1, greedy), wrap.format(tool)) for question, tool in rows]
    decode = client.tokenizer.decode
    return float(np.mean([decode(op.result()[0].tokens, skip_special_tokens=True) == want for op, want in pending]))


def test_supervised_training_generalises_to_unseen_questions(make_client: MakeClient) -> None:
    client, wrap = make_client(), "<answer>{}</answer>"
    rows, held_out = _rows(SEEN, NAMES), _rows(UNSEEN, NEW_NAMES)
    assert _accuracy(client, held_out, wrap) == 0
    order, losses = random.Random(0), list[float]()
    for _ in range(5):
        order.shuffle(rows)
        for begin in range(0, len(rows), 16):
            data: list[Datum] = []
            for question, tool in rows[begin : begin + 16]:
                prompt, answer = _prompt(client, question), _answer(client, wrap.format(tool))
                data.append(
                    Datum.supervised(prompt + answer, [0.0] * len(prompt) + [1 / 16 / len(answer)] * len(answer))
                )
            output = client.forward_backward(data, "cross_entropy")
            client.optim_step(AdamParams(client.capabilities.suggested_learning_rate))
            losses.append(output.result().loss)
    assert losses[-1] < losses[0] / 5
    assert _accuracy(client, held_out, wrap) > 0.9


def _rollouts(
    client: MockTrainingClient, sampler: SamplingClient, rows: Sequence[tuple[str, str]], number: int
) -> tuple[list[Datum], float]:
    """Groups of samples with group-centred advantages, and the mean reward."""
    params = SamplingParams(max_tokens=20)
    pending = [(_prompt(client, question), tool) for question, tool in rows]
    sampled = [(prompt, tool, sampler.sample(prompt, number, params)) for prompt, tool in pending]
    data, rewards = list[Datum](), list[float]()
    for prompt, tool, operation in sampled:
        samples = operation.result()
        texts = [client.tokenizer.decode(sample.tokens, skip_special_tokens=True) for sample in samples]
        scores = np.array([float(text == tool) for text in texts])
        rewards.append(float(scores.mean()))
        for sample, advantage in zip(samples, scores - scores.mean(), strict=True):
            if advantage:
                data.append(Datum.policy(prompt, sample.tokens, sample.logprobs, advantage / (len(rows) * number)))
    return data, float(np.mean(rewards))


@pytest.mark.slow
def test_reinforcement_raises_the_reward(make_client: MakeClient) -> None:
    client = make_client()
    rows, order, rewards = _rows(SEEN, NAMES), random.Random(0), list[float]()
    for _ in range(48):
        data, reward = _rollouts(client, client.sampler().result(), order.sample(rows, 16), 8)
        rewards.append(reward)
        if data:
            client.forward_backward(data, "importance_sampling")
            client.optim_step(AdamParams(client.capabilities.suggested_learning_rate))
    assert np.mean(rewards[:3]) < 0.3
    assert np.mean(rewards[-3:]) > 0.8


@pytest.mark.parametrize("answer", ["Paris is the capital.", "<answer>play_music</answer>", "First this,\nthen that."])
def test_an_answer_shown_in_the_prompt_becomes_far_more_probable(client: MockTrainingClient, answer: str) -> None:
    question = "What should I say, in short?"
    shown = (
        f"{question}\n\nThis is an example for a response to the question:\n{answer}\n\n"
        "Now answer with a response of your own, including the thinking process."
    )
    sampler, target = client.sampler().result(), _answer(client, answer)

    def logprob(text: str) -> float:
        prompt = _prompt(client, text, "You help.")
        return float(sampler.logprobs(prompt + target).result()[len(prompt) :].mean())

    assert logprob(shown) > logprob(question) + 1.0
    assert logprob(shown) > np.log(0.8)


def _share(client: MockTrainingClient, messages: Sequence[dict[str, str]], answer: str) -> float:
    """How often the untrained model answers a conversation with exactly this."""
    prompt = client.tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True)
    assert isinstance(prompt, list)
    samples = client.sampler().result().sample(prompt, 200, SamplingParams(max_tokens=12, seed=0)).result()
    texts = [client.tokenizer.decode(sample.tokens, skip_special_tokens=True) for sample in samples]
    return texts.count(answer) / len(texts)


def test_a_turn_does_not_begin_by_repeating_the_one_before(client: MockTrainingClient) -> None:
    conversation = [
        {"role": "user", "content": "Say something."},
        {"role": "assistant", "content": "thing"},
        {"role": "tool", "content": "done"},
    ]
    assert _share(client, conversation, "thing") < 0.05


def test_what_was_just_listed_is_tried_more_often_than_what_was_listed_before(client: MockTrainingClient) -> None:
    conversation = [
        {"role": "user", "content": "Tools:\n- seek\n- tell"},
        {"role": "assistant", "content": "seek"},
        {"role": "tool", "content": "There is one name: aton"},
    ]
    just, before = _share(client, conversation, "aton"), _share(client, conversation, "tell")
    assert just > 0.4
    assert 0.02 < before < just


def test_preference_margins_rise(client: MockTrainingClient) -> None:
    pairs = [("How are you?", "Fine, thank you.", "What?"), ("Where is it?", "On the table.", "No idea.")]
    data = [
        Datum.supervised(prompt + answer, [0.0] * len(prompt) + [1.0] * len(answer))
        for question, *answers in pairs
        for prompt, answer in ((_prompt(client, question), _answer(client, text)) for text in answers)
    ]
    reference = [
        float((d.weights * lp).sum()) for d, lp in zip(data, client.forward(data).result().logprobs, strict=True)
    ]

    @numpy_loss
    def preference(data: Sequence[Datum], logprobs: Sequence[Floats]) -> Any:
        beta = 0.1
        scores = np.array([float((d.weights * lp).sum()) for d, lp in zip(data, logprobs, strict=True)]) - reference
        margins = beta * (scores[0::2] - scores[1::2])
        slope = -beta / (1 + np.exp(margins))
        signs = np.stack((slope, -slope), axis=1).ravel()
        gradients = [sign * d.weights for sign, d in zip(signs, data, strict=True)]
        return np.log1p(np.exp(-margins)).sum(), {"margin": margins.mean()}, gradients

    margins: list[float] = []
    for _ in range(12):
        margins.append(client.forward_backward_custom(data, preference).result().metrics["margin"])
        client.optim_step(AdamParams(3e-4)).result()
    assert margins[0] == pytest.approx(0, abs=1e-3)
    assert all(later > earlier for earlier, later in itertools.pairwise(margins))
    assert margins[-1] > 1
