"""Clients that break the protocol in one way each, as real servers do: the mock model with something done to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from evsys_sdk.backends.client import AdamParams, Capabilities, SamplingParams
from evsys_sdk.backends.datum import Datum
from evsys_sdk.backends.future import Operation
from evsys_sdk.backends.mock.client import MockSettings, MockTrainingClient
from evsys_sdk.errors import BackendError


def scaled(datum: Datum, factor: float) -> Datum:
    return dataclasses.replace(datum, weights=datum.weights * np.float32(factor))


class Averages(MockTrainingClient):
    """Divides by the number of data."""

    def forward_backward(self, data: Sequence[Datum], loss_fn: str, loss_fn_config: Any = None) -> Any:
        return super().forward_backward([scaled(datum, 1 / self.size(data)) for datum in data], loss_fn, loss_fn_config)

    def size(self, data: Sequence[Datum]) -> float:
        return len(data)


class AveragesTokens(Averages):
    """Divides by the number of tokens."""

    def size(self, data: Sequence[Datum]) -> float:
        return sum(len(datum) for datum in data)


class Normalises(MockTrainingClient):
    """Divides each sequence by its weights, then by the number of data."""

    def forward_backward(self, data: Sequence[Datum], loss_fn: str, loss_fn_config: Any = None) -> Any:
        divided = [scaled(datum, 1 / max(float(datum.weights.sum()), 1e-9) / len(data)) for datum in data]
        return super().forward_backward(divided, loss_fn, loss_fn_config)


class LiveSampler:
    """Answers from whatever the weights are when it is asked."""

    def __init__(self, client: MockTrainingClient) -> None:
        self._client, self.ref, self.tokenizer = client, "", client.tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(MockTrainingClient.sampler(self._client).result(), name)


class LiveSamplers(MockTrainingClient):
    def sampler(self, name: str | None = None) -> Any:
        return Operation.done(LiveSampler(self))


class UndoesTraining(MockTrainingClient):
    """Sampling puts the sampler's weights back into training."""

    def sampler(self, name: str | None = None) -> Any:
        snapshot, client = super().sampler(name).result(), self

        class Undoing:
            ref, tokenizer = snapshot.ref, snapshot.tokenizer
            logprobs, topk_logprobs = snapshot.logprobs, snapshot.topk_logprobs

            def sample(self, *args: Any) -> Any:
                client._state.weights = dict(snapshot._weights)
                return snapshot.sample(*args)

        return Operation.done(Undoing())


class _Patched:
    """A sampler with one method replaced."""

    def __init__(self, inner: Any, **methods: Any) -> None:
        self._inner = inner
        self.__dict__ |= methods

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class IgnoresSeeds(MockTrainingClient):
    def sampler(self, name: str | None = None) -> Any:
        inner = super().sampler(name).result()
        calls = [0]

        def sample(prompt: Sequence[int], num_samples: int, params: SamplingParams) -> Any:
            calls[0] += 1
            return inner.sample(prompt, num_samples, dataclasses.replace(params, seed=calls[0]))

        return Operation.done(_Patched(inner, sample=sample))


class ShiftedLogprobs(MockTrainingClient):
    """Reports each token's log-probability one place too early."""

    def sampler(self, name: str | None = None) -> Any:
        inner = super().sampler(name).result()
        return Operation.done(
            _Patched(inner, logprobs=lambda tokens: inner.logprobs(tokens).then(lambda row: np.roll(row, -1)))
        )


class NoTopK(MockTrainingClient):
    def sampler(self, name: str | None = None) -> Any:
        def refuse(tokens: Sequence[int], k: int) -> Any:
            raise BackendError("this server reports no alternatives. Ask for none.")

        return Operation.done(_Patched(super().sampler(name).result(), topk_logprobs=refuse))


class ForgetsToClip(MockTrainingClient):
    def optim_step(self, adam: AdamParams) -> Any:
        return super().optim_step(dataclasses.replace(adam, grad_clip_norm=0.0))


class ForgetsOptimizer(MockTrainingClient):
    def load_state(self, ref: str, *, with_optimizer: bool = True) -> Any:
        return super().load_state(ref, with_optimizer=False)


class ReportsNoNorm(MockTrainingClient):
    """Keeps the protocol, but says nothing about gradients."""

    def optim_step(self, adam: AdamParams) -> Any:
        return super().optim_step(adam).then(lambda output: dataclasses.replace(output, metrics={}))


class NormalisesSilently(Normalises, ReportsNoNorm):
    pass


class WrongBackend:
    """A backend around one of these clients, which declares what `evsys doctor` would have found out about it."""

    name: ClassVar[str] = "wrong"
    client: ClassVar[type[MockTrainingClient]] = MockTrainingClient
    declared: ClassVar[dict[str, Any]] = {}

    def prepare(self, *, model: Any, run_dir: Path) -> dict[str, Any]:
        client = self.client(MockSettings(model.name, getattr(model, "seed", 0)), Path(run_dir))
        known: Capabilities = client.capabilities
        client.capabilities = dataclasses.replace(known, backend="wrong", **self.declared)
        return {"training_client": client, "tokenizer": client.tokenizer, "model_name": model.name}

    def teardown(self, handles: dict[str, Any]) -> None:
        handles["training_client"].close()
