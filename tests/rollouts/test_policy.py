"""A policy is asked with exactly what the renderer gives, and only whole answers are accepted from its sampler."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from evsys_sdk.backends.client import Sample, SamplingParams, TrainingClient
from evsys_sdk.backends.future import Operation
from evsys_sdk.errors import BackendError
from evsys_sdk.inference.renderer import get_renderer
from evsys_sdk.rollouts.engine import InlineEngine, RolloutRequest
from evsys_sdk.rollouts.policy import ContextFullError, RecordingPolicy, SamplerPolicy

QUESTION = [{"role": "user", "content": "say one of: yes, no"}]


@pytest.fixture
def client(make_client: Callable[..., TrainingClient]) -> TrainingClient:
    return make_client(context_length=256)


def policy_of(client: TrainingClient, sampler: Any = None, **changes: Any) -> SamplerPolicy:
    params = changes.pop("params", SamplingParams(16))
    sampler = sampler or client.sampler().result()
    context = client.capabilities.context_length
    return SamplerPolicy(sampler, get_renderer(client.tokenizer), params, context, **changes)


class FixedSampler:
    """Answers every request with the same samples and records its requests."""

    def __init__(self, *samples: Sample) -> None:
        self.samples, self.asked = list(samples), list[SamplingParams]()

    def sample(self, prompt: Sequence[int], num_samples: int, params: SamplingParams) -> Operation[list[Sample]]:
        self.asked.append(params)
        return Operation.done(self.samples)


async def test_a_turn_holds_the_tokens_and_the_probabilities_the_model_gives_them(client: TrainingClient) -> None:
    turn = await policy_of(client).act(QUESTION)
    recomputed = await (await client.sampler()).logprobs([*turn.prompt_tokens, *turn.completion_tokens])
    assert turn.logprobs == pytest.approx(recomputed[len(turn.prompt_tokens) :].tolist(), abs=1e-5)
    assert turn.prompt_tokens == get_renderer(client.tokenizer).prompt(QUESTION)
    assert (turn.input_tokens, turn.output_tokens) == (len(turn.prompt_tokens), len(turn.completion_tokens))


async def test_the_same_seed_and_conversation_give_the_same_answer_and_others_do_not(client: TrainingClient) -> None:
    policy = policy_of(client)
    tokens = [
        (await policy.with_seed("task", sample).act(QUESTION)).completion_tokens for sample in (0, 0, *range(1, 12))
    ]
    assert tokens[0] == tokens[1]
    assert len({tuple(token) for token in tokens}) > 2


async def test_conversations_of_one_length_do_not_share_their_random_numbers(client: TrainingClient) -> None:
    sampler = FixedSampler(Sample([5], [-0.1], "stop"))
    policy = policy_of(client, sampler)
    for text in ("ab", "ba", "ab"):
        await policy.act([{"role": "user", "content": text}])
    first, second, again = (params.seed for params in sampler.asked)
    assert first == again != second


async def test_an_answer_is_kept_within_the_context(client: TrainingClient) -> None:
    sampler = FixedSampler(Sample([5], [-0.1], "stop"))
    policy = policy_of(client, sampler, params=SamplingParams(200))
    prompt = get_renderer(client.tokenizer).prompt([{"role": "user", "content": "x" * 150}])
    await policy.act([{"role": "user", "content": "x" * 150}])
    assert sampler.asked[0].max_tokens == 256 - len(prompt)
    with pytest.raises(ContextFullError, match="context length is 256"):
        await policy.act([{"role": "user", "content": "x" * 300}])


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [Sample([1], [-0.1], "stop")] * 2,
        [Sample([1, 2], [-0.1], "stop")],
        [Sample([], [], "stop")],
        [Sample([1], [math.nan], "stop")],
        [Sample([1], [-math.inf], "stop")],
    ],
)
async def test_half_an_answer_is_refused(samples: list[Sample], client: TrainingClient) -> None:
    with pytest.raises(BackendError, match="the sampler returned"):
        await policy_of(client, FixedSampler(*samples)).act(QUESTION)


async def test_what_was_said_is_recorded_even_when_the_agent_changes_its_list_later() -> None:
    class Echo:
        async def act(self, messages: Any, *, tools: Any = None) -> Any:
            from evsys_sdk.rollouts.rollout import Turn

            return Turn({"role": "assistant", "content": messages[-1]["content"]})

    recorder, messages = RecordingPolicy(Echo()), [{"role": "user", "content": "a"}]
    await recorder.act(messages)
    messages[0]["content"] = "b"
    messages.clear()
    assert [message["content"] for message in recorder.messages] == ["a", "a"]


def test_rollouts_are_the_same_whatever_the_concurrency(
    client: TrainingClient, make_engine: Callable[..., InlineEngine], make_request: Callable[..., RolloutRequest]
) -> None:
    async def talk(task: Any, policy: Any, environment: Any) -> list[Any]:
        messages = [*QUESTION]
        for _ in range(3):
            messages += [(await policy.act(messages)).message, {"role": "user", "content": "again"}]
            await asyncio.sleep(hash(task.task_id) % 3 / 1000)
        return messages

    policy = policy_of(client, params=SamplingParams(8), seed=5)

    def tokens(concurrency: int) -> list[Any]:
        requests = [make_request(str(i), policy=policy.with_seed(i), run=talk) for i in range(6)]
        rollouts = make_engine(concurrency=concurrency).submit(requests).result(60)
        return [[(turn.completion_tokens, turn.logprobs) for turn in rollout.turns] for rollout in rollouts]

    alone, together = tokens(1), tokens(6)
    assert [[ids for ids, _ in turns] for turns in alone] == [[ids for ids, _ in turns] for turns in together]
    for first, other in zip(alone, together, strict=True):
        for (_, a), (_, b) in zip(first, other, strict=True):
            assert a == pytest.approx(b, abs=1e-5)
