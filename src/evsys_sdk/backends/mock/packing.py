"""Token sequences packed end to end, for vectorised passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..seeds import Hashes
from .tokenizer import MESSAGE_START

type Ints = NDArray[np.int64]

_BASE = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_powers: list[Hashes] = []


@dataclass(frozen=True)
class Packed:
    """Sequences end to end; no feature crosses a boundary."""

    tokens: Ints
    starts: Ints
    """First position of each sequence."""
    lengths: Ints

    @classmethod
    def of(cls, sequences: Sequence[Ints]) -> Packed:
        lengths = np.array([len(sequence) for sequence in sequences], np.int64)
        tokens = np.concatenate(sequences) if len(sequences) else np.zeros(0, np.int64)
        return cls(tokens, np.cumsum(lengths) - lengths, lengths)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def ends(self) -> Ints:
        """One past the last position of each sequence."""
        return self.starts + self.lengths

    @cached_property
    def sequence(self) -> Ints:
        """The sequence each position belongs to."""
        return np.repeat(np.arange(len(self.starts)), self.lengths)

    @cached_property
    def offset(self) -> Ints:
        """The offset of each position in its sequence."""
        return np.arange(len(self)) - self.starts[self.sequence]

    @cached_property
    def message(self) -> Ints:
        """The chat message each position belongs to, numbered through all sequences; plain text is one message."""
        return np.cumsum((self.tokens == MESSAGE_START) | (self.offset == 0)) - 1

    @cached_property
    def message_starts(self) -> Ints:
        """First position of each message."""
        return np.flatnonzero((self.tokens == MESSAGE_START) | (self.offset == 0))

    def split(self, flat: NDArray[np.generic]) -> list[NDArray[np.generic]]:
        """Per-position values back as one array per sequence."""
        return np.split(flat, self.ends[:-1])


class SpanHashes:
    """Hashes of any span of a symbol array in constant time each (a polynomial over the integers modulo 2**64)."""

    def __init__(self, symbols: Ints) -> None:
        self._power, self._inverse = _power_tables(len(symbols) + 1)
        self._prefix = np.zeros(len(symbols) + 1, np.uint64)
        np.cumsum((symbols + 1).astype(np.uint64) * self._power[: len(symbols)], out=self._prefix[1:])

    def of(self, begin: Ints, end: Ints) -> Hashes:
        """The hash of `symbols[begin:end]`, which does not depend on where the span lies."""
        return (self._prefix[end] - self._prefix[begin]) * self._inverse[begin]


def _power_tables(size: int) -> tuple[Hashes, Hashes]:
    if not _powers or len(_powers[0]) < size:
        # The base is odd, so it has an inverse modulo 2**64: a span is brought to the beginning by multiplying with it.
        inverse = pow(_BASE, -1, 1 << 64)
        grown = max(size, 1 << 14)
        _powers[:] = [_powers_of(_BASE, grown), _powers_of(inverse, grown)]
    return _powers[0], _powers[1]


def _powers_of(base: int, count: int) -> Hashes:
    factors = np.full(count, base & _MASK, np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)
