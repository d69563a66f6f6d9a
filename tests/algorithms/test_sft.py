"""SFT learns exactly the tokens it should, in an order that the seed decides, and says what it left out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evsys_sdk.algorithms.sft import SFT
from evsys_sdk.backends.client import TrainingClient
from evsys_sdk.errors import DataError

TWO_TURNS = {
    "messages": [
        {"role": "user", "content": "q1"},
        {"role": "assistant", "content": "a1"},
        {"role": "user", "content": "q2"},
        {"role": "assistant", "content": "a2"},
    ]
}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
QUESTION = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def supervised_text(algorithm: SFT, client: TrainingClient) -> list[str]:
    """What the model is trained to say: the targets that carry loss."""
    return [client.tokenizer.decode(example.target_tokens[example.weights > 0]) for example in algorithm.examples]


@pytest.mark.parametrize(
    ("supervise", "expected"),
    [("all_assistant", "a1<|im_end|>a2<|im_end|>"), ("last_assistant", "a2<|im_end|>")],
)
async def test_loss_is_on_the_chosen_turns_and_their_ends_only(
    supervise: str, expected: str, prepared: Callable[..., Any], client: TrainingClient
) -> None:
    algorithm = await prepared(SFT(supervise=supervise), [TWO_TURNS])
    assert supervised_text(algorithm, client) == [expected]


async def test_a_position_reads_what_precedes_the_token_it_predicts(
    prepared: Callable[..., Any], client: TrainingClient
) -> None:
    [example] = (await prepared(SFT(), [TWO_TURNS])).examples
    assert np.array_equal(example.tokens[1:], example.target_tokens[:-1])
    first = int(np.flatnonzero(example.weights)[0])
    assert client.tokenizer.decode(example.tokens[: first + 1]) == QUESTION.format("q1")
    assert set(example.weights.tolist()) == {0.0, 1.0}


async def test_the_loss_of_a_batch_is_the_mean_over_its_supervised_tokens(
    prepared: Callable[..., Any], client: TrainingClient, chats: list[dict[str, Any]]
) -> None:
    algorithm = await prepared(SFT(batch_size=5), chats)
    batch = await algorithm.build_batch(0)
    weights = np.concatenate([datum.weights for datum in batch.data])
    assert weights.sum() == pytest.approx(1.0)
    assert len(set(weights[weights > 0].tolist())) == 1  # long answers do not count less per token than short ones
    assert batch.metrics["supervised_tokens"] == np.count_nonzero(weights)
    untouched = np.concatenate([example.weights for example in algorithm.examples])
    assert set(untouched.tolist()) == {0.0, 1.0}


async def test_an_epoch_visits_every_row_once_and_the_seed_decides_the_order(
    prepared: Callable[..., Any], chats: list[dict[str, Any]]
) -> None:
    async def visited(seed: int) -> list[bytes]:
        algorithm = await prepared(SFT(batch_size=5), chats, seed=seed)
        batches = [await algorithm.build_batch(step) for step in range(algorithm.total_steps())]
        return [datum.tokens.tobytes() for batch in batches for datum in batch.data]

    first, again, other = await visited(1), await visited(1), await visited(2)
    assert len(set(first)) == len(chats)
    assert first == again
    assert first != other
    assert sorted(first) == sorted(other)


async def test_a_row_that_is_too_long_is_named_with_its_length_and_the_remedies(prepared: Callable[..., Any]) -> None:
    rows = [TWO_TURNS, {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "x" * 300}]}]
    with pytest.raises(DataError, match=r"row 2 has 3\d\d tokens, more than the 256 allowed.*too_long.*skip.*truncate"):
        await prepared(SFT(), rows)


async def test_skipping_long_rows_says_how_many_and_trains_on_the_rest(
    prepared: Callable[..., Any], chats: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    long = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "x" * 300}]}
    with caplog.at_level(logging.WARNING, logger="evsys_sdk"):
        algorithm = await prepared(SFT(too_long="skip", batch_size=4), [long, *chats, long])
    assert algorithm.n_examples() == len(chats)
    assert algorithm.total_steps() == 3
    assert "2 examples were skipped" in caplog.text


async def test_truncation_keeps_the_beginning_and_drops_what_it_leaves_without_loss(
    prepared: Callable[..., Any], client: TrainingClient, caplog: pytest.LogCaptureFixture
) -> None:
    long_answer = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "x" * 300}]}
    long_question = {"messages": [{"role": "user", "content": "q" * 300}, {"role": "assistant", "content": "a"}]}
    with caplog.at_level(logging.WARNING, logger="evsys_sdk"):
        algorithm = await prepared(SFT(too_long="truncate", max_length=100), [long_answer, long_question])
    [example] = algorithm.examples
    assert len(example.tokens) == 99  # the last of 100 tokens is only ever a target
    assert set(supervised_text(algorithm, client)[0]) == {"x"}
    assert "1 examples were skipped" in caplog.text


@pytest.mark.parametrize("cut", range(-2, 3))
async def test_cutting_around_the_first_supervised_token_never_gives_a_batch_without_loss(
    cut: int, prepared: Callable[..., Any], client: TrainingClient
) -> None:
    prompt = len(client.tokenizer.encode(QUESTION.format("q1")))
    algorithm = SFT(too_long="truncate", max_length=prompt + cut, supervise="last_assistant")
    row = {"messages": TWO_TURNS["messages"][:2]}
    if cut <= 0:
        with pytest.raises(DataError, match="no row gives anything to learn from"):
            await prepared(algorithm, [row])
        return
    await prepared(algorithm, [row])
    batch = await algorithm.build_batch(0)
    assert batch.metrics["supervised_tokens"] == cut
    assert np.isfinite((await client.forward(batch.data)).loss)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": [{"role": "user", "content": "hello"}]}, "row 2: no assistant turn to train on"),
        ({"messages": [{"role": "user", "content": [IMAGE]}, {"role": "assistant", "content": "a cat"}]},
         "row 2 holds an image, but tiny on this backend reads only text.*vision"),
        ({"text": "no conversation"}, "row 2"),
    ],
    ids=["no answer", "image", "not a chat"],
)  # fmt: skip
async def test_a_row_that_cannot_be_learned_from_is_named(
    row: dict[str, Any], message: str, prepared: Callable[..., Any], chats: list[dict[str, Any]]
) -> None:
    with pytest.raises(DataError, match=message):
        await prepared(SFT(), [chats[0], row])


def test_the_defaults_are_a_good_run(train: Callable[..., Any], chats: list[dict[str, Any]]) -> None:
    """No param set, and the model learns: the loss at the end is a small part of that at the start."""
    trained = train("sft", chats * 48)
    assert trained.result.status == "completed"
    losses = trained.curve("loss")
    assert len(losses) == 36
    assert losses[-1] < 0.2 * losses[0]
    assert "shout" in (trained.run_dir / "rendered_examples.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("what", ["order", "init"])
def test_a_seed_repeats_a_run_and_another_seed_does_not(
    what: str, train: Callable[..., Any], chats: list[dict[str, Any]]
) -> None:
    # One batch that holds every row leaves nothing to the order: what differs then is the initialisation.
    params = {"max_steps": 4, "batch_size": 3 if what == "order" else len(chats)}
    curves = [train("sft", chats, params=params, seed=seed).curve("loss") for seed in (5, 5, 6)]
    assert curves[0] == curves[1]
    assert curves[0] != curves[2]


def test_eval_every_without_anything_to_score_is_not_ignored_silently(
    train: Callable[..., Any], chats: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="evsys_sdk"):
        assert train("sft", chats, params={"max_steps": 2, "eval_every": 1}).result.status == "completed"
    assert "eval_every is set for 'sft', but `eval` has nothing to score" in caplog.text


def test_scores_on_training_rows_may_not_select_a_checkpoint() -> None:
    with pytest.raises(ValueError, match="training rows must not choose a checkpoint"):
        SFT(selection_metric="train_fit/exact_match")
