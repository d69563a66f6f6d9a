"""The model's features: the active rows of its hashed embedding table at each position.

Three groups, all of them causal and none of them crossing from one sequence into another:
- the last 1 to 6 tokens, the current line so far and its length (where in the text are we),
- the words of the whole context so far (what is it about),
- the words of the message before the current one (what was just asked).

A word is known by its first letters, so that inflections share a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ..seeds import Hashes, mix
from .packing import Ints, Packed, SpanHashes
from .tokenizer import VOCABULARY

TABLE_ROWS: Final = 1 << 15
WORD_ROWS: Final = slice(TABLE_ROWS // 2, TABLE_ROWS)
"""The part of the table that holds words."""

_ORDERS: Final = (1, 2, 3, 4, 6)
_BEFORE_TEXT: Final = VOCABULARY
"""Placeholder of tokens before the first one."""
_STEM: Final = 6
_LONGEST_LINE: Final = 64


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a packed batch, in order. A word counts from the position after its end."""

    shown_at: Ints
    message: Ints
    context_row: Ints
    """Row for "somewhere in the context"."""
    message_row: Ints
    """Row for "in the previous message"."""


@dataclass(frozen=True, slots=True)
class Features:
    """The active table rows at the positions `queries` of a packed batch."""

    ngram_rows: Ints
    """(queries, 7)"""
    words: Words
    shown: Ints
    """Per query, the index of the first word of the batch that is not yet visible."""
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
            columns.append(_rows(key, salt=back))
    line_starts = _line_starts(packed)[queries]
    columns.append(_rows(SpanHashes(packed.tokens).of(line_starts, queries + 1), salt=10))
    columns.append(_rows(np.minimum(queries + 1 - line_starts, _LONGEST_LINE).astype(np.uint64), salt=11))
    return np.stack(columns, axis=1)


def _line_starts(packed: Packed) -> Ints:
    """The start of the line that the next token continues."""
    after_break = np.concatenate(([True], _BREAKS_LINE[packed.tokens[:-1]])) | (packed.offset == 0)
    position = np.arange(len(packed))
    starts = np.maximum.accumulate(np.where(after_break, position, 0))
    return np.where(_BREAKS_LINE[packed.tokens], position + 1, starts)


def _words(packed: Packed) -> Words:
    tokens = packed.tokens
    in_word = _IN_WORD[tokens]
    follows_word = np.concatenate(([False], in_word[:-1])) & (packed.offset > 0)
    begins = in_word & (~follows_word | _OWN_WORD[tokens])
    boundaries = np.flatnonzero(begins | ~in_word | (packed.offset == 0))
    begin = np.flatnonzero(begins)
    next_boundary = np.searchsorted(boundaries, begin, side="right")
    end = np.append(boundaries, len(tokens))[next_boundary]
    # A word at the end of a sequence may continue, so it does not count yet.
    complete = end < packed.ends[packed.sequence[begin]]
    begin, end = begin[complete], end[complete]

    stems = SpanHashes(_LOWER[tokens]).of(begin, np.minimum(begin + _STEM, end))
    return Words(
        shown_at=end,
        message=packed.message[end - 1],
        context_row=_rows(stems, salt=0, words=True),
        message_row=_rows(stems, salt=1, words=True),
    )


def _rows(keys: Hashes, *, salt: int, words: bool = False) -> Ints:
    """Hash keys to table rows: n-grams into the first half, words into the second."""
    salted = keys * np.uint64(2) + np.uint64((2 * salt + 1) * 0xD1342543DE82EF95 % (1 << 64))
    half = TABLE_ROWS // 2
    return (mix(salted) % np.uint64(half)).astype(np.int64) + (half if words else 0)


def _is_word_byte(token: int) -> bool:
    return chr(token).isalnum() if token < 128 else token < 256


_IN_WORD: Final = np.array([_is_word_byte(token) for token in range(VOCABULARY)])
_OWN_WORD: Final = np.array([0xE0 <= token < 256 for token in range(VOCABULARY)])
"""First bytes of the scripts that mostly write no spaces: each of their characters is its own word."""
_LOWER: Final = np.array([ord(chr(token).lower()) if token < 128 else token for token in range(VOCABULARY)], np.int64)
_BREAKS_LINE: Final = np.array([token == ord("\n") or token >= 256 for token in range(VOCABULARY)])
