"""Length limits, supervised sequences and the page that shows what was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.backends.client import TrainingClient
from evsys_sdk.errors import DataError
from evsys_sdk.inference.renderer import Rendered
from evsys_sdk.training.examples import LengthLimit, can_learn_from, in_row, to_datums, write_preview


def rendered(*weights: float) -> Rendered:
    return Rendered(list(range(len(weights))), list(weights))


def test_a_limit_is_never_above_what_the_model_can_take(client: TrainingClient) -> None:
    longest = client.capabilities.context_length
    assert LengthLimit.of(None, "error", client.capabilities).max_length == longest
    assert LengthLimit.of(10, "error", client.capabilities).max_length == 10
    assert LengthLimit.of(longest + 1, "error", client.capabilities).max_length == longest


async def test_an_example_at_the_limit_of_the_model_can_be_trained_on(client: TrainingClient) -> None:
    longest = client.capabilities.context_length
    example = LengthLimit.of(None, "error", client.capabilities).apply(rendered(*[1.0] * longest), 1)
    assert example is not None
    assert (await client.forward(to_datums([example]))).loss > 0


@pytest.mark.parametrize(
    ("weights", "expected"),
    [((0, 1), True), ((1, 0), False), ((1,), False), ((0, 0, 0), False), ((0, 0, 1), True), ((), False)],
)
def test_the_first_token_is_never_predicted_so_its_weight_teaches_nothing(
    weights: tuple[float, ...], expected: bool
) -> None:
    assert can_learn_from(rendered(*weights)) is expected


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=12), st.integers(2, 12))
def test_what_survives_truncation_has_loss_in_its_datum(weights: list[float], longest: int) -> None:
    example = LengthLimit(longest, "truncate").apply(rendered(*weights), 1)
    assert example is not None
    assert len(example.tokens) <= longest
    if can_learn_from(example):
        [datum] = to_datums([example])
        assert datum.weights.sum() > 0


def test_errors_inside_a_row_name_it() -> None:
    with pytest.raises(DataError, match=r"^row 7: bad\.$"), in_row(7):
        raise DataError("bad.")


def test_the_preview_shows_the_first_examples_and_marks_what_carries_loss(
    client: TrainingClient, tmp_path: Path
) -> None:
    def example(text: str, start: int) -> Rendered:
        tokens = client.tokenizer.encode(text)
        return Rendered(tokens, [0.0] * start + [1.0] * (len(tokens) - start))

    hostile: Any = "q\n```\n# not a heading\x1b[31m"
    examples = [example(hostile, 2), *[example(f"text {number}", 5) for number in range(9)]]
    write_preview(tmp_path, examples, client)
    page = (tmp_path / "rendered_examples.md").read_text(encoding="utf-8")
    assert page.count("## Example") == 3
    assert "| q↵" in page
    assert "\x1b" not in page
    assert not any(line.startswith(("```", "# not")) for line in page.splitlines())
