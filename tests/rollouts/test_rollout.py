"""What a rollout says about itself."""

from collections.abc import Callable
from typing import Any

import pytest

from evsys_sdk.data.types import HarborTask
from evsys_sdk.rollouts.rollout import Rollout, Turn, opening, text_of


def turn(text: Any, **numbers: Any) -> Turn:
    return Turn({"role": "assistant", "content": text}, **numbers)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("yes", "yes"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "image", "image": "x"}, {"type": "text", "text": "b"}], "ab"),
    ],
)
def test_the_text_of_a_message(content: Any, text: str) -> None:
    assert text_of({"role": "assistant", "content": content}) == text


def test_the_completion_is_the_last_answer_and_empty_without_one() -> None:
    assert Rollout("t", 0, "ok", 1.0, [turn("a"), turn("b")]).completion == "b"
    assert Rollout("t", 0, "infra", None).completion == ""


def test_tokens_and_cost_are_sums_and_a_cost_that_is_not_known_is_not_a_sum() -> None:
    priced = [turn("a", input_tokens=3, output_tokens=2, cost_usd=0.5), turn("b", input_tokens=4, cost_usd=0.25)]
    assert Rollout("t", 0, "ok", 1.0, priced).tokens == 9
    assert Rollout("t", 0, "ok", 1.0, priced).cost_usd == 0.75
    assert Rollout("t", 0, "ok", 1.0, [*priced, turn("c")]).cost_usd is None
    assert Rollout("t", 0, "infra", None).cost_usd is None


def test_a_task_opens_with_its_context(make_task: Callable[..., HarborTask]) -> None:
    context = [{"role": "system", "content": "be brief"}]
    task = make_task(instruction="hello", context_messages=context)
    assert opening(task) == [*context, {"role": "user", "content": "hello"}]
    opening(task).append({"role": "assistant", "content": "hi"})
    assert len(opening(task)) == 2, "agents extend their own copy"
