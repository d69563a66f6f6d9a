"""Everything about a model in training that changes: weights, optimizer, accumulated gradient. And how it is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..client import AdamParams, ForwardBackwardOutput
from ..datum import Datum, Floats
from ..losses import LossResult
from . import model
from .optimizer import Adam, GradientSum
from .packing import Ints
from .weights import TABLE, Weights, base_weights

type Loss = Callable[[Sequence[Datum], Sequence[Floats]], LossResult]

_POSITIONS_AT_ONCE = 1 << 14


@dataclass(frozen=True, slots=True)
class Identity:
    """What the base weights follow from."""

    model: str
    seed: int
    hidden: int

    def weights(self) -> Weights:
        return base_weights(self.model, self.seed, hidden=self.hidden)


class TrainingState:
    """A model in training. Not thread-safe: one worker owns it."""

    def __init__(self, identity: Identity) -> None:
        self.identity: Identity = identity
        self.base: Weights = identity.weights()
        self.weights: Weights = dict(self.base)
        self.trained: NDArray[np.bool_] = np.zeros(len(self.base[TABLE]), bool)
        """Table rows that may differ from the base model's."""
        self.gradient, self.adam = GradientSum(self.base), Adam(self.base)

    def run(self, data: Sequence[Datum], loss: Loss, *, train: bool) -> ForwardBackwardOutput:
        """A forward pass and, to train, a backward pass whose gradient is added to the accumulated one."""
        parts = list(_parts(data))
        # All passes are kept: a loss may look at all data at once, and only then is there a gradient.
        passes = [model.forward(self.weights, [datum.tokens for datum in part]) for part in parts]
        logprobs: list[Floats] = []
        for part, forward in zip(parts, passes, strict=True):
            stacked = model.target_logprobs(self.weights, forward, _stack([datum.target_tokens for datum in part]))
            logprobs.extend(_unstack(stacked, part))
        value, metrics, gradients = loss(data, logprobs)
        remaining = iter(gradients if train else ())
        for part, forward in zip(parts, passes, strict=True) if train else ():
            stacked = _stack([next(remaining) for _ in part])
            targets = _stack([datum.target_tokens for datum in part])
            self.gradient.add(model.backward(self.weights, forward, targets, stacked))
        return ForwardBackwardOutput(value, logprobs, metrics)

    def step(self, adam: AdamParams) -> dict[str, float]:
        """Apply the accumulated gradient and forget it."""
        self.trained |= self.gradient.touched
        self.weights, metrics = self.adam.step(self.weights, self.base, self.gradient, self.trained, adam)
        self.gradient.clear()
        return metrics

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint stores."""
        parts = {"weights": self.weights, "first": self.adam.first, "second": self.adam.second}
        return pack_arrays(parts, np.flatnonzero(self.trained))

    def restore(self, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any], *, with_optimizer: bool) -> None:
        """Take over a stored state; the accumulated gradient is dropped."""
        identity = Identity(about["model"], about["seed"], about["hidden"])
        base = self.base if identity == self.identity else identity.weights()
        adam = Adam(base)
        if with_optimizer:
            adam.steps = int(about["steps"])
            adam.first, adam.second = (
                unpack_arrays(arrays, "first", adam.first),
                unpack_arrays(arrays, "second", adam.second),
            )
        self.identity, self.base, self.adam = identity, base, adam
        self.weights = unpack_arrays(arrays, "weights", base)
        self.trained = np.zeros(len(base[TABLE]), bool)
        self.trained[arrays["rows"]] = True
        self.gradient.clear()


def pack_arrays(parts: Mapping[str, Weights], rows: Ints) -> dict[str, NDArray[Any]]:
    """Weights-like dictionaries as flat names, with only the given rows of the table."""
    packed: dict[str, NDArray[Any]] = {"rows": rows}
    for part, weights in parts.items():
        packed |= {f"{part}.{name}": array[rows] if name == TABLE else array for name, array in weights.items()}
    return packed


def unpack_arrays(packed: Mapping[str, NDArray[Any]], part: str, base: Weights) -> Weights:
    """The inverse; table rows that were not stored are the base's."""
    weights = {name: packed[f"{part}.{name}"] for name in base}
    table = base[TABLE].copy()
    table[packed["rows"]] = weights[TABLE]
    return {**weights, TABLE: table}


def _parts(data: Sequence[Datum]) -> Iterator[Sequence[Datum]]:
    """The data in parts that fit into memory together."""
    begin, positions = 0, 0
    for index, datum in enumerate(data):
        if index > begin and positions + len(datum) > _POSITIONS_AT_ONCE:
            yield data[begin:index]
            begin, positions = index, 0
        positions += len(datum)
    yield data[begin:]


def _stack[N: np.generic](arrays: Sequence[NDArray[N]]) -> NDArray[N]:
    """Arrays (N,) and (N, K) one below the other, as wide as the widest, filled up with zeros."""
    columns = [array.reshape(len(array), -1) for array in arrays]
    width = max(array.shape[1] for array in columns)
    wide = [a if a.shape[1] == width else np.pad(a, ((0, 0), (0, width - a.shape[1]))) for a in columns]
    return np.concatenate(wide)


def _unstack(stacked: Floats, data: Sequence[Datum]) -> list[Floats]:
    ends = np.cumsum([len(datum) for datum in data])
    return [
        rows[:, : datum.target_tokens.shape[1] if datum.target_tokens.ndim == 2 else 1].reshape(
            datum.target_tokens.shape
        )
        for rows, datum in zip(np.split(stacked, ends[:-1]), data, strict=True)
    ]
