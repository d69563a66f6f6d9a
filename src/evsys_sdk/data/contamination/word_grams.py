"""Hashes of runs of words, all words of many texts at once: what `contamination` finds its candidates with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from ..task_identity import visible_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    type Hashes = NDArray[np.uint64]
    type Numbers = NDArray[np.int64]

_MOST_FILTER_BITS, _SPARE_FILTER_BITS = 24, 8
"""As many places as turn nearly every n-gram away, and no more: of a few tasks, filling memory would be most of it."""
_UNSPACED = (
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0002fa1f])"
)
_FOREIGN, _FOREIGN_SIGNS = r"[^\x00-\x7f]+", r"[^\w\x00-\x7f]+"
"""Text, because they take milliseconds to compile and most projects need none of them."""


def normalize(text: str) -> str:
    """One spelling for texts that read the same; the case of a to z is kept, because names are told by it."""
    text = visible_text(text)
    if text.isascii():
        return text
    unspaced, foreign, signs = _patterns()
    text = unspaced.sub(r" \1 ", signs.sub(" ", text))
    return foreign.sub(lambda found: found[0].casefold(), text)


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    return re.compile(_UNSPACED), re.compile(_FOREIGN), re.compile(_FOREIGN_SIGNS)


def is_template_size(tasks: int) -> float:
    """How many tasks make what they share a template."""
    return max(3, 0.05 * tasks)


class GramTable:
    """The n-grams of some tasks, sorted by hash, behind a filter that turns nearly every other n-gram away."""

    def __init__(self, n: int, masked: bool, members: list[int], texts: Sequence[str], *, whole: bool) -> None:
        import numpy as np

        self._n, self._masked = n, masked
        words = hash_words([texts[at] for at in members])
        grams, rows = _ngrams(words, n, masked=masked)
        # Each n-gram once for each task: one that a task repeats is not one that many tasks share. By hand, because
        # `np.unique` of pairs takes much longer, and imports much more.
        order = np.lexsort((rows, grams))
        grams, rows = grams[order], rows[order]
        new = np.ones(len(grams), np.bool_)
        new[1:] = (grams[1:] != grams[:-1]) | (rows[1:] != rows[:-1])
        grams, rows = grams[new], rows[new]
        # What many tasks share is the benchmark's own template.
        counts = np.searchsorted(grams, grams, "right") - np.searchsorted(grams, grams, "left")
        kept = (counts < is_template_size(len(members))) | whole
        self._keys = grams[kept]
        self._tasks = np.asarray(members, np.int64)[rows[kept]]
        bits = min(_MOST_FILTER_BITS, len(self._keys).bit_length() + _SPARE_FILTER_BITS)
        self._shift = np.uint64(64 - bits)
        self._filter = np.zeros(1 << bits, np.bool_)
        self._filter[self._keys >> self._shift] = True  # the highest bits: they depend on all others

    def __len__(self) -> int:
        return len(self._keys)

    def lookup(self, words: Words) -> Iterator[tuple[int, int]]:
        """Row and task of every n-gram that both have."""
        import numpy as np

        grams, rows = _ngrams(words, self._n, masked=self._masked)
        passed = np.flatnonzero(self._filter[grams >> self._shift])
        grams, rows = grams[passed], rows[passed]
        low, high = np.searchsorted(self._keys, grams, "left"), np.searchsorted(self._keys, grams, "right")
        for at in np.flatnonzero(high > low):
            for task in self._tasks[low[at] : high[at]]:
                yield int(rows[at]), int(task)


@dataclass(frozen=True, slots=True)
class Words:
    """Every word of some texts: its hash, the same with numbers and names masked, and the text it stands in."""

    hashes: Hashes
    masked: Hashes
    hidden: NDArray[np.bool_]
    rows: Numbers


def hash_words(texts: Sequence[str]) -> Words:
    """Hash all words of all texts at once: a hash is a difference of prefix sums of a polynomial in the bytes."""
    import numpy as np

    encoded = [normalize(text).encode("utf-8", "replace") for text in texts]
    raw = np.frombuffer(b"\0".join(encoded) + b"\0", np.uint8)  # no word has this byte, nor goes on over it
    folded, letter = _byte_tables()
    data, inside = folded[raw], letter[raw]
    # Where a byte is inside a word and the one before it is not, or the other way round: starts and ends in turn.
    edges = np.flatnonzero(np.diff(inside.view(np.int8), prepend=np.int8(0)))
    if len(edges) == 0:
        nothing = np.zeros(0, np.uint64)
        return Words(nothing, nothing, np.zeros(0, np.bool_), np.zeros(0, np.int64))
    starts, ends = edges[0::2], edges[1::2]
    # To the next power of two: chunks differ a little in length, and the powers made for one serve the others.
    powers, inverses = _powers(1 << max(12, (len(raw) - 1).bit_length()))
    # sum(byte * base^position) over a word depends on where it stands; base^-start takes that out again. Everything
    # is modulo 2^64, which is how unsigned numbers overflow.
    sums = np.zeros(len(raw) + 1, np.uint64)
    np.cumsum(data * powers[: len(raw)], out=sums[1:])
    hashes = _mix((sums[ends] - sums[starts]) * inverses[starts])
    digits = np.zeros(len(raw) + 1, np.int32)
    np.cumsum((raw >= 48) & (raw <= 57), out=digits[1:])
    number = digits[ends] > digits[starts]
    name = (raw[starts] >= 65) & (raw[starts] <= 90)
    # All numbers have one hash here, and all names another; which ones they are does not matter.
    masked = np.where(number, np.uint64(0x9E3779B97F4A7C15), np.where(name, np.uint64(0xC2B2AE3D27D4EB4F), hashes))
    begins = np.concatenate([[0], np.cumsum([len(text) + 1 for text in encoded])])[:-1]
    rows = np.searchsorted(begins, starts, "right") - 1  # the last text that begins at or before the word
    return Words(hashes, masked, number | name, rows)


def _ngrams(words: Words, n: int, *, masked: bool) -> tuple[Hashes, Numbers]:
    """The hash of every n words in a row, and the text each stands in; masked ones must keep enough of their words."""
    import numpy as np

    hashes = words.masked if masked else words.hashes
    count = len(hashes) - n + 1
    if count <= 0:
        return np.zeros(0, np.uint64), np.zeros(0, np.int64)
    grams = np.zeros(count, np.uint64)
    for offset in range(n):
        grams *= np.uint64(0x100000001B3)
        grams += hashes[offset : offset + count]
    whole = words.rows[:count] == words.rows[n - 1 :]  # its first and last word stand in the same text
    if masked:
        hidden = np.concatenate([[0], np.cumsum(words.hidden)])
        covered = hidden[n:] - hidden[:count]
        whole &= (covered > 0) & (covered <= n // 2)  # without a masked word it was looked up before
    return _mix(grams[whole]), words.rows[:count][whole]


def _mix(hashes: Hashes) -> Hashes:
    """Spread the bits: products modulo 2^64 leave the low ones weak."""
    import numpy as np

    hashes = hashes ^ (hashes >> np.uint64(29))
    hashes = hashes * np.uint64(0xBF58476D1CE4E5B9)
    return hashes ^ (hashes >> np.uint64(32))


@lru_cache(maxsize=2)
def _powers(length: int) -> tuple[Hashes, Hashes]:
    """The powers of an odd base and of its inverse, modulo 2^64."""
    import numpy as np

    base = 0x9E3779B97F4A7C15 | 1  # only odd numbers have an inverse modulo a power of two
    inverse = pow(base, -1, 1 << 64)
    ones = np.ones(length, np.uint64)
    up, down = ones.copy(), ones.copy()
    up[1:], down[1:] = np.uint64(base), np.uint64(inverse)
    return np.multiply.accumulate(up), np.multiply.accumulate(down)


@lru_cache(maxsize=1)
def _byte_tables() -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """What each byte is in lower case, and whether it is part of a word; bytes of other scripts always are."""
    import numpy as np

    codes = np.arange(256)
    upper = (codes >= 65) & (codes <= 90)
    folded = np.where(upper, codes + 32, codes).astype(np.uint64) + np.uint64(1)
    letter = upper | ((codes >= 97) & (codes <= 122)) | ((codes >= 48) & (codes <= 57)) | (codes >= 128)
    return folded, letter
