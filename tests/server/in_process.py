"""The same thing without a wire: mock clients in this process, and their data as the `tinker` package takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from evsys_sdk.backends.client import ModelSpec
from evsys_sdk.backends.datum import Datum
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.backends.mock.client import MockTrainingClient

PROMPT = list(b"Once upon a time")


def mock_client(folder: Path, *, seed: int = 1) -> MockTrainingClient:
    """The model that the server makes for the same seed."""
    return MockBackend().prepare(model=ModelSpec("tiny", lora_rank=8, seed=seed), run_dir=folder)["training_client"]


def supervised(count: int = 5, length: int = 24) -> list[Datum]:
    random = np.random.default_rng(0)
    return [
        Datum.supervised(random.integers(0, 256, length + i).tolist(), random.uniform(0.1, 2, length + i).tolist())
        for i in range(count)
    ]


def soft(count: int = 3, length: int = 10, k: int = 4) -> list[Datum]:
    random = np.random.default_rng(1)
    return [
        Datum(
            random.integers(0, 256, length + i),
            random.integers(0, 256, (length + i, k + i)),
            random.uniform(0, 1, (length + i, k + i)).astype(np.float32),
        )
        for i in range(count)
    ]


def policy(client: Any, count: int = 5) -> list[Datum]:
    """Data that the model itself might have sampled some steps ago."""
    random = np.random.default_rng(2)
    data: list[Datum] = []
    for i in range(count):
        completion = random.integers(97, 123, 8 + i).tolist()
        plain = Datum.policy(PROMPT, completion, [0.0] * len(completion), 1.0)
        now = client.forward([plain]).result().logprobs[0][-len(completion) :]
        then = now + random.normal(0, 0.2, len(completion)).astype(np.float32)
        data.append(Datum.policy(PROMPT, completion, then.tolist(), float(random.normal())))
    return data


def as_tinker(datum: Datum) -> Any:
    """One of our data as the `tinker` package takes it."""
    from tinker import types

    inputs: dict[str, Any] = {"target_tokens": datum.target_tokens, "weights": datum.weights}
    if datum.advantages is not None and datum.logprobs is not None:
        inputs |= {"advantages": datum.advantages, "logprobs": datum.logprobs}
    return types.Datum(model_input=types.ModelInput.from_ints(datum.tokens.tolist()), loss_fn_inputs=inputs)
