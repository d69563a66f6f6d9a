"""A training sequence: tokens with targets and weights per position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError

type Ints = NDArray[np.int64]
type Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Datum:
    """One sequence. Position i, given tokens[0..i], predicts target_tokens[i]."""

    tokens: Ints
    """Input tokens, (N,)."""
    target_tokens: Ints
    """Targets, (N,); or (N, K) for soft targets."""
    weights: Floats
    """Loss weights, shaped like the targets; 0 where nothing is trained."""
    advantages: Floats | None = None
    """(N,), for policy-gradient losses."""
    logprobs: Floats | None = None
    """(N,), log-probabilities of the targets at sampling time, for policy-gradient losses."""

    @classmethod
    def supervised(cls, tokens: Sequence[int], weights: Sequence[float]) -> Datum:
        """A datum of a whole sequence with a weight per token, shifted by one position."""
        if len(tokens) != len(weights) or len(tokens) < 2:
            raise DataError(
                f"{len(tokens)} tokens and {len(weights)} weights: a sequence needs two tokens or more, "
                "each with a weight."
            )
        full = np.asarray(tokens, dtype=np.int64)
        return cls(full[:-1], full[1:], np.asarray(weights[1:], dtype=np.float32))

    @classmethod
    def policy(
        cls,
        prompt: Sequence[int],
        completion: Sequence[int],
        logprobs: Sequence[float],
        advantage: float | Sequence[float],
    ) -> Datum:
        """A datum of a prompt and its sampled completion; prompt positions have weight 0."""
        if not len(prompt) or not len(completion):
            raise DataError(
                f"a prompt of {len(prompt)} and a completion of {len(completion)} tokens: both need one token or more."
            )
        full = np.asarray([*prompt, *completion], dtype=np.int64)
        # Position i predicts token i + 1.
        sampled = slice(len(prompt) - 1, None)
        n = len(full) - 1

        def over_completion(values: Any) -> Floats:
            array = np.zeros(n, dtype=np.float32)
            array[sampled] = values
            return array

        return cls(full[:-1], full[1:], over_completion(1.0), over_completion(advantage), over_completion(logprobs))

    def soften(self, tokens: Ints, logprobs: Floats, *, renormalise: bool = True) -> Datum:
        """Replace targets with loss by soft targets: tokens (N, K) weighted by their probabilities.

        Without `renormalise`, the weights of the K tokens may sum to less than 1.
        """
        probabilities = np.exp(logprobs)
        if renormalise:
            probabilities = probabilities / probabilities.sum(axis=1, keepdims=True)
        counts = (self.weights != 0)[:, None]
        targets = np.where(counts, tokens, self.target_tokens[:, None])
        return replace(self, target_tokens=targets, weights=np.where(counts, probabilities * self.weights[:, None], 0))

    def __len__(self) -> int:
        return len(self.tokens)


def mean_per_token(data: Sequence[Datum]) -> list[Datum]:
    """The data divided by the number of tokens with loss, which turns the backend's sum into a mean.

    Divides the advantages if all data have them, else the weights.
    """
    if all(datum.advantages is not None for datum in data):
        count = np.float32(sum(int((datum.weights != 0).sum()) for datum in data) or 1)
        return [replace(datum, advantages=cast("Floats", datum.advantages) / count) for datum in data]
    total = np.float32(sum(float(datum.weights.sum()) for datum in data) or 1)
    return [replace(datum, weights=datum.weights / total) for datum in data]
