"""Which of many lines deserve a closer look: one pass over the bytes of all instead of dozens over each.

Nearly every line holds neither a secret nor anything personal. Here are necessary conditions of both, worked out with
numpy for some thousand lines at once; a line that meets one is then judged by the patterns themselves. Whatever
`redact.is_suspicious` or `personal.is_perhaps_personal` says yes to is found here, too.
"""

from __future__ import annotations

import functools
import itertools
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...redact import SECRET_FRAGMENTS, holds_environment_secret

type Bytes = NDArray[np.uint8]
type Flags = NDArray[np.bool_]
type Places = NDArray[np.int64]

_ASCII_IN_LOWER_CASE = ("\u212a", "\u0130")
"""The letters outside of ASCII whose lower case has a letter of ASCII: the sign of Kelvin, and I with a dot."""


def find_suspicious(lines: Sequence[bytes]) -> list[int]:
    """Indexes of lines that may hold a secret."""
    whole = b"\n".join(lines)
    found: list[int] = []
    if holds_environment_secret(whole.decode("utf-8", "replace")):
        found = [at for at, line in enumerate(lines) if holds_environment_secret(line.decode("utf-8", "replace"))]
    places = _secret_needles().find(np.frombuffer(whole.lower(), np.uint8))
    return sorted({*found, *_lines_at(places, lines)})


def find_perhaps_personal(lines: Sequence[bytes]) -> list[int]:
    """Indexes of lines that may hold something personal."""
    whole = np.frombuffer(b"\n".join(lines), np.uint8)
    digit, upper, counts = (table[whole] for table in _classes())
    started = _all_of(counts, 7) & digit[: max(0, len(whole) - 6)]
    coded = _one_after_another(upper, upper, digit, digit)
    colons = np.flatnonzero(whole == ord(":"))
    near = colons[:-1][np.diff(colons) <= 5]
    signs = np.flatnonzero(whole == ord("@"))
    other_digits = _digit_needles().find(whole)
    places = np.concatenate([signs, np.flatnonzero(started), np.flatnonzero(coded), near, other_digits])
    return _lines_at(places, lines)


def _lines_at(places: Places, lines: Sequence[bytes]) -> list[int]:
    """Which of the joined lines some places lie in."""
    ends = np.fromiter(itertools.accumulate(len(line) + 1 for line in lines), np.int64, len(lines))
    return np.unique(np.searchsorted(ends, places, side="right")).tolist()


def _all_of(flags: Flags, width: int) -> Flags:
    """Where so many neighbours in a row are set, at the first of them."""
    have = 1
    while have < width:
        step = min(have, width - have)
        flags, have = flags[: max(0, len(flags) - step)] & flags[step:], have + step
    return flags


def _one_after_another(*flags: Flags) -> Flags:
    """Where the first is set, the second one further on, and so on."""
    length = max(0, len(flags[0]) - len(flags) + 1)
    found = flags[0][:length].copy()
    for shift, one in enumerate(flags[1:], 1):
        found &= one[shift : shift + length]
    return found


@functools.cache
def _classes() -> tuple[Flags, Flags, Flags]:
    """By byte: digits, capital letters, and what numbers are written with."""
    tables = [np.zeros(256, np.bool_) for _ in range(3)]
    for table, members in zip(tables, (b"0123456789", bytes(range(65, 91)), b"0123456789 ().+-"), strict=True):
        table[list(members)] = True
    digit, upper, counts = tables
    return digit, upper, counts


@dataclass(frozen=True, slots=True)
class _Needles:
    """Many short texts to look for at once: by their first two bytes, then by all."""

    pairs: Flags
    by_pair: dict[int, list[bytes]]

    @classmethod
    def of(cls, needles: Iterable[bytes]) -> _Needles:
        pairs, by_pair = np.zeros(1 << 16, np.bool_), dict[int, list[bytes]]()
        for needle in needles:
            pair = int.from_bytes(needle[:2], sys.byteorder)
            pairs[pair] = True
            by_pair.setdefault(pair, []).append(needle)
        return cls(pairs, by_pair)

    def find(self, data: Bytes) -> Places:
        """Where any of them begins."""
        found: list[Places] = []
        for start in (0, 1):  # pairs that begin at even places, and those at odd ones
            length = max(0, len(data) - start) // 2 * 2
            read = data[start : start + length].view(np.uint16)
            at = np.flatnonzero(self.pairs[read])
            found += self._verify(data, at * 2 + start, read[at])
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def _verify(self, data: Bytes, places: Places, pairs: NDArray[np.uint16]) -> list[Places]:
        order = np.argsort(pairs, kind="stable")
        places, pairs = places[order], pairs[order]
        found: list[Places] = []
        for pair, needles in self.by_pair.items():
            low, high = np.searchsorted(pairs, [pair, pair + 1])
            for needle in needles if high > low else ():
                here = places[low:high]
                here = here[here + len(needle) <= len(data)]
                for shift, byte in enumerate(needle[2:], 2):
                    here = here[data[here + shift] == byte]
                found.append(here)
        return found


@functools.cache
def _secret_needles() -> _Needles:
    return _Needles.of(one.encode() for one in (*SECRET_FRAGMENTS, *_ASCII_IN_LOWER_CASE))


@functools.cache
def _digit_needles() -> _Needles:
    """The digits of other scripts, which patterns take for digits."""
    points = range(0x80, 0x20000)  # there are none beyond
    return _Needles.of(chr(point).encode() for point in points if unicodedata.category(chr(point)) == "Nd")
