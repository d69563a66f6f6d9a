"""On-policy distillation: a student that approaches a stored teacher."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from evsys_sdk.algorithms.opd import OPD
from evsys_sdk.backends.client import AdamParams, TrainingClient
from evsys_sdk.backends.datum import Datum
from evsys_sdk.errors import ConfigError, DataError, EvsysError
from evsys_sdk.inference.renderer import get_renderer

type MakeClient = Callable[..., TrainingClient]
type SetUp = Callable[..., Awaitable[OPD]]
type TakeStep = Callable[..., Awaitable[dict[str, float]]]

ROWS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": f"colour of {thing}?"}, {"role": "assistant", "content": colour}]}
    for thing, colour in (("grass", "green"), ("blood", "red"), ("the sky", "blue"), ("snow", "white"))
]
SMALL: dict[str, Any] = {"batch_size": 16, "sampling": {"max_tokens": 8}}


async def trained_teacher(client: TrainingClient) -> str:
    """A checkpoint of a model that knows the answers."""
    renderer = get_renderer(client.tokenizer)
    rendered = [renderer.render(row["messages"])[0] for row in ROWS]
    data = [Datum.supervised(one.tokens, [weight / 24 for weight in one.weights]) for one in rendered]
    for _ in range(30):
        await client.forward_backward(data, "cross_entropy")
        await client.optim_step(AdamParams(learning_rate=2e-3))
    return await client.save_state("teacher")


async def gaps_to_the_teacher(
    make_client: MakeClient, set_up: SetUp, take_step: TakeStep, *, steps: int, seed: int = 0, **params: Any
) -> list[float]:
    teacher = await trained_teacher(make_client())
    algorithm = await set_up(OPD(**SMALL, **params, teacher=teacher), make_client(seed), ROWS * 4, seed=seed)
    return [(await take_step(algorithm, step, 3e-3))["teacher/reverse_kl"] for step in range(steps)]


@pytest.mark.parametrize("seed", [0, 1, 2])
async def test_by_default_the_student_comes_to_agree_with_the_teacher(
    seed: int, make_client: MakeClient, set_up: SetUp, take_step: TakeStep
) -> None:
    gaps = await gaps_to_the_teacher(make_client, set_up, take_step, steps=30, seed=seed)
    assert gaps[0] > 5
    assert max(gaps[-6:]) < 0.1


@pytest.mark.parametrize(("divergence", "steps"), [("sampled", 40), ("reverse", 30), ("jsd", 30)])
async def test_other_divergences_bring_it_at_least_halfway_there(
    divergence: str, steps: int, make_client: MakeClient, set_up: SetUp, take_step: TakeStep
) -> None:
    gaps = await gaps_to_the_teacher(make_client, set_up, take_step, steps=steps, divergence=divergence)
    assert sum(gaps[-6:]) / 6 < 0.5 * gaps[0]


async def test_a_student_that_is_its_own_teacher_has_nothing_to_learn(make_client: MakeClient, set_up: SetUp) -> None:
    client = make_client()
    teacher = await client.save_state("self")
    algorithm = await set_up(OPD(**SMALL, teacher=teacher, divergence="sampled"), client, ROWS)
    batch = await algorithm.build_batch(0)
    assert batch.metrics["teacher/reverse_kl"] == pytest.approx(0, abs=1e-5)
    assert all(abs(datum.advantages).max() < 1e-4 for datum in batch.data if datum.advantages is not None)


async def test_tasks_and_conversations_are_both_questions(make_client: MakeClient, set_up: SetUp) -> None:
    verifier = {"kind": "in_process", "fn_name": "exact_match", "expected": "x"}
    task = {"task_id": "t", "instruction": "say x", "verifier": verifier}
    client = make_client()
    open_question = {"messages": [{"role": "user", "content": "hm?"}]}
    algorithm = await set_up(
        OPD(**SMALL, teacher=await client.save_state("self")), client, [ROWS[0], task, open_question]
    )
    assert [prompt[-1]["content"] for prompt in algorithm.questions] == ["colour of grass?", "say x", "hm?"]
    assert all(prompt[-1]["role"] == "user" for prompt in algorithm.questions)


async def test_what_cannot_work_is_refused_at_the_start(make_client: MakeClient, set_up: SetUp) -> None:
    client = make_client()
    teacher = await client.save_state("self")
    with pytest.raises(ConfigError, match="top_k"):
        await set_up(OPD(**SMALL, teacher=teacher, divergence="forward", top_k=10_000), client, ROWS)
    with pytest.raises(EvsysError, match="nowhere"):
        await set_up(OPD(**SMALL, teacher="nowhere"), client, ROWS)
    with pytest.raises(DataError, match="row 1 has an answer but no question"):
        await set_up(OPD(**SMALL, teacher=teacher), client, [{"messages": [{"role": "assistant", "content": "hello"}]}])


async def test_a_question_without_room_for_an_answer_is_left_out_and_counted(
    make_client: MakeClient, set_up: SetUp
) -> None:
    client = make_client(context_length=128)
    long = {"messages": [{"role": "user", "content": "a" * 300}]}
    algorithm = await set_up(OPD(**SMALL, teacher=await client.save_state("self")), client, [*ROWS, long])
    batch = await algorithm.build_batch(0)
    assert (len(batch.data), batch.metrics["answers/no_room"]) == (4, 1)
