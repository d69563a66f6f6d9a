"""DPO widens the margin between chosen and rejected, measured against a reference that never moves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from evsys_sdk import register_callback
from evsys_sdk.algorithms.dpo import DPO, dpo_loss
from evsys_sdk.backends.client import AdamParams, TrainingClient
from evsys_sdk.backends.datum import Datum
from evsys_sdk.errors import DataError
from evsys_sdk.training.callback import Callback

USER = {"role": "user", "content": "shout amber"}


def answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_the_margin_rises_and_the_loss_falls_from_log_2(train: Callable[..., Any], pairs: list[dict[str, Any]]) -> None:
    trained = train("dpo", pairs, params={"num_epochs": 6, "batch_size": 4, "learning_rate": 2e-3})
    assert trained.result.status == "completed"
    margins, losses = trained.curve("dpo/margin"), trained.curve("loss")
    assert abs(margins[0]) < 1e-3  # the model is its own reference when it starts
    assert losses[0] == pytest.approx(np.log(2), abs=1e-3)
    assert margins[-1] > 0.5
    assert losses[-1] < 0.5 * losses[0]
    assert trained.curve("dpo/accuracy")[-1] == 1.0


async def test_the_reference_is_computed_once_and_is_untouched_by_training(
    prepared: Callable[..., Any], client: TrainingClient, pairs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    forwards: list[int] = []
    forward = client.forward
    monkeypatch.setattr(client, "forward", lambda data, *rest: (forwards.append(len(data)), forward(data, *rest))[1])
    algorithm = await prepared(DPO(batch_size=4), pairs)
    assert forwards == [2 * len(pairs)]
    reference = [pair.reference_margin for pair in algorithm.pairs]
    for step in range(4):
        batch = await algorithm.build_batch(step)
        client.forward_backward_custom(batch.data, batch.loss_fn)
        await client.optim_step(AdamParams(learning_rate=1e-2))
    assert [pair.reference_margin for pair in algorithm.pairs] == reference
    assert forwards == [2 * len(pairs)]
    again = await prepared(DPO(batch_size=4), pairs)  # the live weights have moved away from the reference
    assert [pair.reference_margin for pair in again.pairs] != pytest.approx(reference, abs=0.1)


def test_the_gradient_is_that_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    data = [Datum.supervised(list(range(6)), [0, 0, 1, 1, 0.5, 1]) for _ in range(6)]
    logprobs = [rng.normal(-1.0, 0.5, 5) for _ in data]
    loss: Any = dpo_loss(np.array([0.3, -0.2, 0.0]), beta=0.7)
    _, _, gradients = loss(data, logprobs)
    for datum in range(len(data)):
        for position in range(5):
            moved = [lp.copy() for lp in logprobs]
            values: list[float] = []
            for sign in (1, -1):
                moved[datum][position] = logprobs[datum][position] + sign * 1e-5
                values.append(loss(data, moved)[0])
            assert gradients[datum][position] == pytest.approx((values[0] - values[1]) / 2e-5, abs=1e-6)


def test_extreme_margins_stay_finite() -> None:
    data = [Datum.supervised([1, 2], [0, 1])] * 2
    for reference in (1e6, -1e6):
        loss, metrics, gradients = dpo_loss(np.array([reference]), 1.0)(data, [np.zeros(1), np.zeros(1)])
        assert np.isfinite([loss, *metrics.values(), *np.concatenate(gradients)]).all()


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "shout amber", "chosen": "AMBER", "rejected": "amber"},
        {"prompt": [USER], "chosen": [answer("AMBER")], "rejected": [answer("amber")]},
        {"prompt": "shout amber", "chosen": [USER, answer("AMBER")], "rejected": [USER, answer("amber")]},
        {"prompt": [USER], "chosen": "AMBER", "rejected": [USER, answer("amber")], "score": 3},
    ],
    ids=["texts", "messages", "prompt repeated in the answers", "mixed"],
)
async def test_texts_and_messages_mean_the_same(
    row: dict[str, Any], prepared: Callable[..., Any], client: TrainingClient
) -> None:
    [pair] = (await prepared(DPO(), [row])).pairs
    decode = client.tokenizer.decode
    shown = [
        (decode(datum.tokens[datum.weights == 0]), decode(datum.target_tokens[datum.weights > 0]))
        for datum in (pair.chosen, pair.rejected)
    ]
    assert [said for _, said in shown] == ["AMBER<|im_end|>", "amber<|im_end|>"]
    assert shown[0][0] == shown[1][0] == "<|im_start|>user\nshout amber<|im_end|>\n<|im_start|>assistant"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "p", "chosen": "c"}, "row 2: it has no 'rejected'; its keys are prompt, chosen"),
        ({"prompt": "p", "chosen": 5, "rejected": "r"}, r"row 2: messages\[1\]\.content must be text"),
        ({"prompt": "p", "chosen": [], "rejected": "r"}, "row 2: 'chosen' has no message after the prompt"),
        ({"prompt": "p", "chosen": [answer("a"), USER, answer("b")], "rejected": "r"},
         "row 2: 'chosen' has messages of assistant, user, assistant after the prompt. Move everything before"),
        ({"prompt": "p", "chosen": "c", "rejected": [USER]}, "row 2: 'rejected' has messages of user"),
        ({"prompt": "p", "chosen": ["c"], "rejected": "r"}, "row 2: 'chosen' has messages of c"),
        ({"prompt": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}], "chosen": "c",
          "rejected": "r"}, "row 2: .*is an image"),
    ],
    ids=["no rejected", "number", "empty", "several turns", "no answer", "texts in a list", "image"],
)  # fmt: skip
async def test_a_row_that_is_no_pair_is_named(
    row: dict[str, Any], message: str, prepared: Callable[..., Any], pairs: list[dict[str, Any]]
) -> None:
    with pytest.raises(DataError, match=message):
        await prepared(DPO(), [pairs[0], row])


@pytest.mark.parametrize("too_long", ["skip", "truncate"])
async def test_a_pair_is_kept_or_left_out_as_a_whole_and_counted(
    too_long: str, prepared: Callable[..., Any], pairs: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    # The prompt alone fills the context, so that even a truncated pair has nothing left to compare.
    hopeless = {"prompt": "q" * 300, "chosen": "a", "rejected": "b"}
    with caplog.at_level(logging.WARNING, logger="evsys_sdk"):
        algorithm = await prepared(DPO(too_long=too_long), [hopeless, *pairs])
    assert algorithm.n_examples() == len(pairs)
    assert "1 preference pairs were skipped" in caplog.text
    with pytest.raises(DataError, match="no row gives a preference pair"):
        await prepared(DPO(too_long=too_long), [hopeless])


def test_a_resumed_run_measures_against_the_model_it_started_from(
    train: Callable[..., Any], pairs: list[dict[str, Any]]
) -> None:
    """The margin continues from where it was, instead of falling back to zero against the trained weights."""
    from evsys_sdk.experiment import Experiment

    class StopOnce(Callback):
        name = "stop_once"
        stopped = False

        def on_run_start(self, info: Any, control: Any) -> None:
            self.control = control

        def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
            if step == 5 and not StopOnce.stopped:
                StopOnce.stopped = True
                self.control.stop("interrupted", interrupted=True)

    register_callback("stop_once")(StopOnce)
    params = {"max_steps": 12, "batch_size": 4, "learning_rate": 2e-3}
    whole = train("dpo", pairs, params=params)
    broken = train("dpo", pairs, params=params, callbacks=[{"kind": "stop_once"}])
    assert broken.result.status == "cancelled"
    [resumed] = Experiment(_config_of(broken)).run(resume=True).runs
    assert resumed.status == "completed"
    assert broken.curve("dpo/margin") == whole.curve("dpo/margin")
    assert resumed.metrics == whole.result.metrics


def _config_of(trained: Any) -> Any:
    import json

    from evsys_sdk import ExperimentConfig

    return ExperimentConfig.model_validate(
        json.loads((trained.run_dir.parent / "config.json").read_text(encoding="utf-8"))
    )
