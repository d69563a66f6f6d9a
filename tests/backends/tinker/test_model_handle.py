"""The handle on a Tinker server: the code that runs on mock gives the same, and what it cannot do is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import evsys_sdk
from evsys_sdk import Model
from evsys_sdk.errors import BackendError

from ...server.serving import ServerProcess

pytestmark = pytest.mark.tinker


def use(model: Model, folder: Path) -> list[Any]:
    """A little of everything; what it gave."""
    results: list[Any] = [[a.tokens for a in model.sample(["Hi"], n=2, max_tokens=4, seed=3)[0]]]
    results += [round(model.train([("a", "b")], learning_rate=0.02).loss, 4) for _ in range(3)]
    [answers] = model.sample(["a"], n=3, max_tokens=4, stop=[], seed=1)
    data = [answer.datum(advantage) for answer, advantage in zip(answers, (1.0, -1.0, 0.0), strict=True)]
    results.append(round(model.train(data, "importance_sampling", learning_rate=0.01).loss, 4))
    model.train(model.base.distil(answers, k=8))
    results.append([round(float(row.sum()), 3) for row in model.logprobs(answers)])
    results.append([round(float(row.sum()), 3) for row in model.base.logprobs(answers)])
    saved = model.save("here")
    model.train([("a", "c")], learning_rate=0.02)
    model.load(saved)
    results.append(round(float(model.logprobs([("a", "b")])[0][0]), 3))
    other = model.adapter("other", seed=1)
    results.append(round(other.train([("x", "y")], learning_rate=0.02).loss, 4))
    return results


def test_the_same_code_gives_the_same_as_on_mock(server: ServerProcess, tmp_path: Path) -> None:
    with evsys_sdk.open_model("tiny", backend="mock", seed=1, folder=tmp_path / "mock") as model:
        here = use(model, tmp_path)
    with evsys_sdk.open_model(
        "tiny", backend="tinker", seed=1, folder=tmp_path / "there", base_url=server.url
    ) as model:
        assert use(model, tmp_path) == here
        with pytest.raises(BackendError, match=r"cannot change logits.*Use mock or local"):
            model.sample(["a"], logit_bias={3: 1.0})
        with pytest.raises(BackendError, match=r"cannot change logits.*Use mock or local"):
            model.base.distil([("a", "b")], 4, logit_bias={3: 1.0})
        with pytest.raises(BackendError, match=r"on a server.*evsys deploy"):
            model.export(tmp_path / "out")
