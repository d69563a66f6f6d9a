"""Counter-based random numbers: every sample has its own stream, independent of its batch.

A stream is a 64-bit number derived from a seed and a number; its n-th value is computed directly. So a resumed or
differently batched run draws the same numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

type Hashes = NDArray[np.uint64]

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_UNDO_FIRST, _UNDO_SECOND = pow(_FIRST, -1, 1 << 64), pow(_SECOND, -1, 1 << 64)


def mix(values: Hashes) -> Hashes:
    """Scramble 64-bit values (the finaliser of splitmix64)."""
    values = values ^ (values >> np.uint64(30))  # a new array, which the rest changes in place
    values *= np.uint64(_FIRST)
    values ^= values >> np.uint64(27)
    values *= np.uint64(_SECOND)
    values ^= values >> np.uint64(31)
    return values


def stream_of(seed: int, number: int) -> int:
    """The stream of one of several items with the same seed."""
    # Mixed twice, so that neighbouring seeds and numbers have unrelated streams.
    scrambled = int(mix(np.array([int(seed) & _MASK], np.uint64))[0])
    return int(mix(np.array([(scrambled + number * _GOLDEN) & _MASK], np.uint64))[0])


def seed_of_later(seed: int, first: int) -> int:
    """The seed whose items 0, 1, ... have the streams of items `first`, `first` + 1, ... of `seed`.

    So a request can be split into pieces that draw the same samples.
    """
    scrambled = int(mix(np.array([int(seed) & _MASK], np.uint64))[0])
    return _unmix((scrambled + first * _GOLDEN) & _MASK)


def _unmix(value: int) -> int:
    """The inverse of `mix`."""
    # x ^ (x >> n) is undone by shifts of n, 2n, ... below 64 bits; a factor by its inverse.
    value ^= (value >> 31) ^ (value >> 62)
    value = value * _UNDO_SECOND & _MASK
    value ^= (value >> 27) ^ (value >> 54)
    value = value * _UNDO_FIRST & _MASK
    return value ^ (value >> 30) ^ (value >> 60)


def uniforms(streams: Sequence[int], places: Sequence[int]) -> NDArray[np.float64]:
    """A number in [0, 1) of each stream at its place; places count from 1."""
    counters = [(stream + place * _GOLDEN) & _MASK for stream, place in zip(streams, places, strict=True)]
    # The upper 53 bits, the precision of a float64, are never rounded up to 1.
    return (mix(np.array(counters, np.uint64)) >> np.uint64(11)).astype(np.float64) * 2.0**-53


class RequestSeeds:
    """Seeds of requests without one: counted, so that runs are reproducible and resumable."""

    def __init__(self, run_seed: int) -> None:
        self._run_seed, self.used, self._lock = run_seed, 0, threading.Lock()

    def next(self) -> int:
        with self._lock:
            self.used += 1
            return stream_of(self._run_seed, self.used)
