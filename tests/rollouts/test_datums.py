"""What is trained on is what was sampled: token for token, with its own log-probability, and nothing else."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.backends.client import SamplingParams, TrainingClient
from evsys_sdk.inference.renderer import get_renderer
from evsys_sdk.rollouts.datums import merge_turns, rollout_datums
from evsys_sdk.rollouts.policy import SamplerPolicy
from evsys_sdk.rollouts.rollout import Rollout, Turn

TOKENS = st.lists(st.integers(0, 5), min_size=1, max_size=4)


@st.composite
def conversations(draw: st.DrawFn) -> list[Turn]:
    """Turns whose prompts mostly extend what came before, and sometimes do not."""
    turns: list[Turn] = []
    history: list[int] = draw(TOKENS)
    for _ in range(draw(st.integers(1, 5))):
        completion = draw(TOKENS)
        logprobs = draw(st.lists(st.floats(-9, -0.125, width=32), min_size=len(completion), max_size=len(completion)))
        turns.append(Turn({"role": "assistant", "content": ""}, history, completion, logprobs))
        history = [*history, *completion, *draw(st.lists(st.integers(0, 5), max_size=3))]
        if draw(st.booleans()) and draw(st.booleans()):
            history = draw(TOKENS)
    return turns


def sampled_in(datum: Any) -> list[tuple[int, float]]:
    chosen = datum.weights > 0
    return list(zip(datum.target_tokens[chosen].tolist(), datum.logprobs[chosen].tolist(), strict=True))


@given(conversations(), st.floats(-3, 3, width=32).filter(bool))
def test_every_sampled_token_is_trained_on_exactly_once(turns: list[Turn], advantage: float) -> None:
    data = rollout_datums(Rollout("t", 0, "ok", 1.0, turns), advantage)
    expected = [pair for turn in turns for pair in zip(turn.completion_tokens, turn.logprobs, strict=True)]
    assert sorted(pair for datum in data for pair in sampled_in(datum)) == sorted(expected)
    for datum in data:
        assert set(datum.weights.tolist()) <= {0.0, 1.0}
        np.testing.assert_array_equal(datum.advantages, datum.weights * np.float32(advantage))
        assert not datum.logprobs[datum.weights == 0].any()
        np.testing.assert_array_equal(datum.tokens[1:], datum.target_tokens[:-1])


@given(conversations())
def test_a_sampled_token_is_predicted_from_exactly_what_the_model_had_read(turns: list[Turn]) -> None:
    predictions: list[tuple[list[int], int]] = []
    for datum in rollout_datums(Rollout("t", 0, "ok", 1.0, turns), 1.0):
        positions = np.flatnonzero(datum.weights)
        predictions += [(datum.tokens[: i + 1].tolist(), int(datum.target_tokens[i])) for i in positions]
    assert predictions == [
        ([*turn.prompt_tokens, *turn.completion_tokens[:i]], token)
        for turn in turns
        for i, token in enumerate(turn.completion_tokens)
    ]


@given(conversations())
def test_a_new_stretch_begins_exactly_where_the_prompt_was_rewritten(turns: list[Turn]) -> None:
    stretches = merge_turns(turns)
    assert [turn for stretch in stretches for turn in stretch] == turns
    for stretch in stretches:
        for before, after in pairwise(stretch):
            read = [*before.prompt_tokens, *before.completion_tokens]
            assert after.prompt_tokens[: len(read)] == read
    for first, other in pairwise(stretches):
        read = [*first[-1].prompt_tokens, *first[-1].completion_tokens]
        assert other[0].prompt_tokens[: len(read)] != read


def test_two_answers_to_one_prompt_are_two_datums() -> None:
    turns = [Turn({}, [1, 2], [3], [-0.5]), Turn({}, [1, 2], [4], [-0.25])]
    assert [sampled_in(datum) for datum in rollout_datums(Rollout("t", 0, "ok", 1.0, turns), 1.0)] == [
        [(3, -0.5)],
        [(4, -0.25)],
    ]


def test_a_policy_that_only_speaks_text_leaves_nothing_to_train_on() -> None:
    assert rollout_datums(Rollout("t", 0, "ok", 1.0, [Turn({"content": "yes"}), Turn({"content": "no"})]), 1.0) == []


async def test_the_policy_has_not_moved_when_it_is_trained_on_its_own_samples(
    make_client: Callable[..., TrainingClient],
) -> None:
    client = make_client()
    policy = SamplerPolicy(await client.sampler(), get_renderer(client.tokenizer), SamplingParams(12), 4096)
    data = []
    for seed in range(4):
        messages: list[Any] = [{"role": "user", "content": "choose one of: red, green, blue"}]
        turns: list[Turn] = []
        for _ in range(3):
            turns.append(await policy.with_seed(seed).act(messages))
            messages += [turns[-1].message, {"role": "user", "content": "once more"}]
        data += rollout_datums(Rollout("t", seed, "ok", 1.0, turns), 1.0)
    output = await client.forward_backward(data, "importance_sampling")
    assert output.metrics["policy/kl"] == pytest.approx(0, abs=1e-8)
    assert output.metrics["policy/ratio"] == pytest.approx(1, abs=1e-5)


def test_branches_that_take_turns_are_one_datum_each() -> None:
    def turn(prompt: list[int], completion: list[int]) -> Turn:
        return Turn({"role": "assistant", "content": ""}, prompt, completion, [-1.0] * len(completion))

    main, child = [1, 2], [7, 8]
    turns = [turn(main, [3]), turn(child, [9]), turn([*main, 3, 4], [5]), turn([*child, 9, 1], [2])]
    assert merge_turns(turns) == [[turns[0], turns[2]], [turns[1], turns[3]]]
