"""What the model looks at: which rows of its hashed embedding table are active at each position.

Three groups, all of them causal and none of them crossing from one sequence into another:
- the last 1 to 6 tokens (where in the text are we),
- the words of the whole context so far (what is it about),
- the words of the message before the current one (what was just asked).

A word contributes itself, its pair with the word before it and its first letters, so that unseen inflections and
phrasings share rows with seen ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from .packing import Hashes, Ints, Packed, SpanHashes, mixed
from .tokenizer import VOCABULARY

TABLE_BITS: Final = 15
TABLE_ROWS: Final = 1 << TABLE_BITS

_ORDERS: Final = (1, 2, 3, 4, 6)
_BEFORE_TEXT: Final = VOCABULARY
"""Stands for the tokens before the first one."""
_STEM: Final = 6


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a packed batch, in order. A word counts from the position that shows it has ended."""

    shown_at: Ints
    length: Ints
    message: Ints
    context_rows: Ints
    """(words, 3) rows for "somewhere in the context"."""
    message_rows: Ints
    """(words, 3) rows for "in the previous message"."""


@dataclass(frozen=True, slots=True)
class Features:
    """The active table rows at the positions `queries` of a packed batch."""

    ngram_rows: Ints
    """(queries, orders)"""
    words: Words
    shown: Ints
    """Per query, the index of the first word of the batch that is not shown yet."""
    first: Ints
    """Per query, the index of the first word of its sequence."""
    previous: Ints
    """Per query, the message before its own; -1 in the first message of a sequence."""


def extract(packed: Packed, queries: Ints) -> Features:
    """The features at `queries`, positions of `packed` in ascending order."""
    words = _words(packed)
    starts = packed.starts[packed.sequence[queries]]
    current = packed.message[queries]
    return Features(
        ngram_rows=_ngram_rows(packed, queries),
        words=words,
        shown=np.searchsorted(words.shown_at, queries, side="right"),
        first=np.searchsorted(words.shown_at, starts, side="left"),
        previous=np.where(packed.message_starts[current] > starts, current - 1, -1),
    )


def _ngram_rows(packed: Packed, queries: Ints) -> Ints:
    offsets = packed.offset[queries]
    columns: list[Ints] = []
    key = np.zeros(len(queries), np.uint64)
    for back in range(max(_ORDERS)):
        token = np.where(offsets >= back, packed.tokens[np.maximum(queries - back, 0)], _BEFORE_TEXT)
        key = key * np.uint64(1021) + (token + 1).astype(np.uint64)
        if back + 1 in _ORDERS:
            columns.append(_rows(key, salt=back + 1))
    message_starts = packed.message_starts[packed.message[queries]]
    columns.append(_rows(SpanHashes(packed.tokens).of(message_starts, queries + 1), salt=8))
    columns.append(_rows(np.minimum(queries - message_starts, 64).astype(np.uint64), salt=9))
    return np.stack(columns, axis=1)


def _words(packed: Packed) -> Words:
    tokens = packed.tokens
    in_word = _IN_WORD[tokens]
    follows_word = np.concatenate(([False], in_word[:-1])) & (packed.offset > 0)
    begins = in_word & (~follows_word | _OWN_WORD[tokens])
    boundaries = np.flatnonzero(begins | ~in_word | (packed.offset == 0))
    begin = np.flatnonzero(begins)
    next_boundary = np.searchsorted(boundaries, begin, side="right")
    end = np.append(boundaries, len(tokens))[next_boundary]
    complete = end < packed.ends[packed.sequence[begin]]
    begin, end = begin[complete], end[complete]

    hashes = SpanHashes(_LOWER[tokens])
    kinds=[hashes.of(begin, np.minimum(begin + _STEM, end))]
    return Words(
        shown_at=end,length=end-begin,
        message=packed.message[end - 1],
        context_rows=np.stack([_rows(kind, salt=10 + number) for number, kind in enumerate(kinds)], axis=1),
        message_rows=np.stack([_rows(kind, salt=20 + number) for number, kind in enumerate(kinds)], axis=1),
    )


def _rows(keys: Hashes, *, salt: int) -> Ints:
    half = TABLE_ROWS // 2
    salted = keys * np.uint64(2) + np.uint64((2 * salt + 1) * 0xD1342543DE82EF95 % (1 << 64))
    return (mixed(salted) >> np.uint64(65 - TABLE_BITS)).astype(np.int64) + (half if salt >= 10 else 0)


def _is_word_byte(token: int) -> bool:
    return chr(token).isalnum() if token < 128 else token < 256


_IN_WORD: Final = np.array([_is_word_byte(token) for token in range(VOCABULARY)])
_OWN_WORD: Final = np.array([0xE0 <= token < 256 for token in range(VOCABULARY)])
"""First bytes of the scripts that mostly write no spaces: each of their characters is a word of its own."""
_LOWER: Final = np.array([ord(chr(token).lower()) if token < 128 else token for token in range(VOCABULARY)], np.int64)
