"""Adam on the model's weights, in time proportional to the table rows that were ever trained.

Rows no gradient has reached have no moments and would not move, so leaving them out changes nothing. Weight decay
draws the weights back to the base model, as it does with an adapter that starts at zero.
"""

from __future__ import annotations

import numpy as np

from ..client import AdamParams
from .model import Gradient
from .weights import TABLE, Floats, Weights


class GradientSum:
    """Gradients added up since the last optimiser step."""

    def __init__(self, like: Weights) -> None:
        self.values = {name: np.zeros_like(array) for name, array in like.items()}
        self.touched = np.zeros(len(like[TABLE]), bool)

    def add(self, gradient: Gradient) -> None:
        """Add one more gradient."""
        for name, value in gradient.dense.items():
            self.values[name] += value
        self.values[TABLE][gradient.rows] += gradient.row_values
        self.touched[gradient.rows] = True

    def norm(self) -> float:
        """The length of the whole gradient as one vector."""
        parts = (self.values[TABLE][self.touched], *(value for name, value in self.values.items() if name != TABLE))
        return float(np.sqrt(sum(float(np.square(part, dtype=np.float64).sum()) for part in parts)))

    def clear(self) -> None:
        """Forget everything added."""
        for name, value in self.values.items():
            value[self.touched if name == TABLE else slice(None)] = 0
        self.touched[:] = False


class Adam:
    """The optimizer's memory: how often it stepped, and both moments of every weight."""

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
        self, name: str, rows: np.ndarray[tuple[int], np.dtype[np.int64]] | slice, gradient: Floats, adam: AdamParams
    ) -> Floats:
        first = self.first[name][rows] * adam.beta1 + gradient * (1 - adam.beta1)
        second = self.second[name][rows] * adam.beta2 + gradient * gradient * (1 - adam.beta2)
        self.first[name][rows], self.second[name][rows] = first, second
        first_mean, second_mean = first / (1 - adam.beta1**self.steps), second / (1 - adam.beta2**self.steps)
        return first_mean / (np.sqrt(second_mean) + adam.eps)
