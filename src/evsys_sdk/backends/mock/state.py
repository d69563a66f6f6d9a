"""The mutable state of a model in training: weights, optimizer, accumulated gradient; and its storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..client import AdamParams, ForwardBackwardOutput
from ..datum import Datum, Floats
from ..losses import Loss
from . import model
from .packing import Ints
from .weights import TABLE, Weights, base_weights

# Adam on the model's weights, in time proportional to the table rows that were ever trained.
#
# Rows without gradients have zero moments and do not move, so skipping them changes nothing. Weight decay pulls the
# weights towards the base model, as for an adapter that starts at zero.


class GradientSum:
    """Gradients added up since the last optimiser step."""

    def __init__(self, like: Weights) -> None:
        self.values = {name: np.zeros_like(array) for name, array in like.items()}
        self.touched = np.zeros(len(like[TABLE]), bool)

    def add(self, gradient: model.Gradient) -> None:
        """Add one more gradient."""
        for name, value in gradient.dense.items():
            self.values[name] += value
        self.values[TABLE][gradient.rows] += gradient.row_values
        self.touched[gradient.rows] = True

    def norm(self) -> float:
        """The norm of the whole gradient."""
        parts = (self.values[TABLE][self.touched], *(value for name, value in self.values.items() if name != TABLE))
        return float(np.sqrt(sum(float(np.square(part, dtype=np.float64).sum()) for part in parts)))

    def clear(self) -> None:
        """Reset the sum."""
        for name, value in self.values.items():
            # Only the touched table rows: the table is by far the largest array.
            value[self.touched if name == TABLE else slice(None)] = 0
        self.touched[:] = False


class Adam:
    """The optimizer's state: step count and both moments of every weight."""

    def __init__(self, like: Weights) -> None:
        self.steps = 0
        self.first = {name: np.zeros_like(array) for name, array in like.items()}
        self.second = {name: np.zeros_like(array) for name, array in like.items()}

    def step(
        self,
        weights: Weights,
        base: Weights,
        gradient: GradientSum,
        trained: np.ndarray[tuple[int], np.dtype[np.bool_]],
        adam: AdamParams,
    ) -> tuple[Weights, dict[str, float]]:
        """New weights (the old arrays are left as they are) and metrics; `trained` marks table rows to look at."""
        norm = gradient.norm()
        clipped = adam.grad_clip_norm > 0 and norm > adam.grad_clip_norm
        scale = adam.grad_clip_norm / norm if clipped else 1.0
        self.steps += 1
        updated: Weights = {}
        for name, old in weights.items():
            rows = np.flatnonzero(trained) if name == TABLE else slice(None)
            updated[name] = new = old.copy()
            step = self._direction(name, rows, gradient.values[name][rows] * old.dtype.type(scale), adam)
            if adam.weight_decay:
                step += adam.weight_decay * (old[rows] - base[name][rows])
            new[rows] -= adam.learning_rate * step
        return updated, {"grad_norm": norm, "grad_clipped": float(clipped)}

    def _direction(
        self,
        name: str,
        rows: np.ndarray[tuple[int], np.dtype[np.int64]] | slice,
        gradient: NDArray[Any],
        adam: AdamParams,
    ) -> NDArray[Any]:
        first = self.first[name][rows] * adam.beta1 + gradient * (1 - adam.beta1)
        second = self.second[name][rows] * adam.beta2 + gradient * gradient * (1 - adam.beta2)
        self.first[name][rows], self.second[name][rows] = first, second
        first_mean, second_mean = first / (1 - adam.beta1**self.steps), second / (1 - adam.beta2**self.steps)
        return first_mean / (np.sqrt(second_mean) + adam.eps)


_POSITIONS_AT_ONCE = 1 << 14


@dataclass(frozen=True, slots=True)
class Identity:
    """The parameters that determine the base weights."""

    model: str
    seed: int
    hidden: int

    def weights(self) -> Weights:
        return base_weights(self.model, self.seed, hidden=self.hidden)


class MockState:
    """A model in training. Not thread-safe: one worker owns it."""

    def __init__(self, identity: Identity) -> None:
        self.identity: Identity = identity
        self.base: Weights = identity.weights()
        self.weights: Weights = dict(self.base)
        self.trained: NDArray[np.bool_] = np.zeros(len(self.base[TABLE]), bool)
        """Table rows that may differ from the base model's."""
        self.gradient, self.adam = GradientSum(self.base), Adam(self.base)

    def forward(self, data: Sequence[Datum], loss: Loss) -> ForwardBackwardOutput:
        """A pass without a gradient."""
        return self._run(data, loss, train=False)

    def forward_backward(self, data: Sequence[Datum], loss: Loss) -> ForwardBackwardOutput:
        """A pass whose gradient is added to the accumulated one."""
        return self._run(data, loss, train=True)

    forward_backward_whole = forward_backward
    """All data are always in memory."""

    def _run(self, data: Sequence[Datum], loss: Loss, *, train: bool) -> ForwardBackwardOutput:
        parts = list(_parts(data))
        # Keep all passes: a loss may depend on all data together.
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
        """Apply and reset the accumulated gradient."""
        self.trained |= self.gradient.touched
        self.weights, metrics = self.adam.step(self.weights, self.base, self.gradient, self.trained, adam)
        self.gradient.clear()
        return metrics

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of a checkpoint."""
        parts = {"weights": self.weights, "first": self.adam.first, "second": self.adam.second}
        return pack_arrays(parts, np.flatnonzero(self.trained))

    def restore(self, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any], *, with_optimizer: bool) -> None:
        """Restore a stored state; the accumulated gradient is dropped."""
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
    """The data in parts that fit into memory."""
    begin, positions = 0, 0
    for index, datum in enumerate(data):
        if index > begin and positions + len(datum) > _POSITIONS_AT_ONCE:
            yield data[begin:index]
            begin, positions = index, 0
        positions += len(datum)
    yield data[begin:]


def _stack[N: np.generic](arrays: Sequence[NDArray[N]]) -> NDArray[N]:
    """Stack arrays (N,) and (N, K), padded with zeros to the widest."""
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
