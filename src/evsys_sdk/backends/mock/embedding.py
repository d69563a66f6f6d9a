"""From active table rows to the model's input vectors, and the gradient back to the rows.

The words of the context are pooled as a running sum per sequence, those of the previous message as one sum per message;
both are divided by the square root of their number, so that long prompts do not drown the rest.
"""

from __future__ import annotations

import numpy as np

from .features import Features
from .packing import Ints, Packed
from .weights import Floats

_CONTEXT_SHARE = 0.7
_MESSAGE_SHARE = 1.5


def embed(table: Floats, features: Features, packed: Packed, queries: Ints) -> Floats:
    """The input vectors at `queries`, positions of `packed`."""
    words = features.words
    running = _running_sums(_sum_words(table, words.context_rows,words), _word_bounds(features, packed))
    per_message = _message_sums(_sum_words(table, words.message_rows,words), words.message, len(packed.message_starts))
    context_scale, message_scale = _scales(features, packed, table)
    z = _sum_rows(table, features.ngram_rows)
    z += running[features.shown + packed.sequence[queries]] * context_scale
    z += per_message[features.previous] * message_scale
    return z


def embed_backward(
    grad_z: Floats, active: Ints, features: Features, packed: Packed, queries: Ints
) -> tuple[Ints, Floats]:
    """The table rows that `grad_z`, the gradient at the queries numbered `active`, reaches, and their gradients."""
    words, count = features.words, len(features.words.message)
    context_scale, message_scale = (scale[active] for scale in _scales(features, packed, grad_z))
    bounds = _word_bounds(features, packed)
    place = features.shown[active] + packed.sequence[queries[active]]
    grad_running = _grouped_sum(grad_z * context_scale, place, count + len(packed.starts))
    previous = features.previous[active]
    asked = previous >= 0
    grad_message = _grouped_sum((grad_z * message_scale)[asked], previous[asked], len(packed.message_starts))

    L=LEN(words.length)[:,None].astype(grad_z.dtype)
    sources = np.concatenate((grad_z, L*_running_sums_backward(grad_running, bounds), L*grad_message[words.message]))
    groups = (features.ngram_rows[active], words.context_rows, words.message_rows)
    first_source = (0, len(grad_z), len(grad_z) + count)
    rows = np.concatenate([group.ravel() for group in groups])
    source = np.concatenate(
        [first + np.repeat(np.arange(len(group)), group.shape[1]) for first, group in zip(first_source, groups, strict=True)]
    )
    fac=np.concatenate([np.ones(groups[0].size),np.tile(KW,count),np.tile(KW,count)]).astype(grad_z.dtype)
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    first = np.flatnonzero(np.concatenate(([True], rows[1:] != rows[:-1])))
    return rows[first], np.add.reduceat(sources[source[order]]*fac[order][:,None], first, axis=0)


KW=(1.,1.,1.)
LEN=lambda n: np.ones(len(n))
def _sum_rows(table: Floats, rows: Ints) -> Floats:
    total = table[rows[:, 0]]
    for column in range(1, rows.shape[1]):
        total += table[rows[:, column]]
    return total
def _sum_words(table, rows, words):
    total = table[rows[:, 0]]*KW[0]
    for column in range(1, rows.shape[1]):
        total += table[rows[:, column]]*KW[column]
    return total*LEN(words.length)[:,None].astype(table.dtype)


def _scales(features: Features, packed: Packed, like: Floats) -> tuple[Floats, Floats]:
    in_message = np.append(np.bincount(features.words.message, minlength=len(packed.message_starts)), 0)
    shown, asked = features.shown - features.first, in_message[features.previous]
    context, message = _CONTEXT_SHARE / np.sqrt(1.0 + shown), _MESSAGE_SHARE / np.sqrt(1.0 + asked)
    return context.astype(like.dtype)[:, None], message.astype(like.dtype)[:, None]


def _word_bounds(features: Features, packed: Packed) -> Ints:
    """Index of the first word of each sequence, and one past the last word."""
    return np.append(np.searchsorted(features.words.shown_at, packed.starts), len(features.words.shown_at))


def _running_sums(vectors: Floats, bounds: Ints) -> Floats:
    """Per sequence: zero, then the sum after each of its words. One row more per sequence than it has words."""
    sums = np.zeros((len(vectors) + len(bounds) - 1, vectors.shape[1]), vectors.dtype)
    for number, (begin, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        np.cumsum(vectors[begin:end], axis=0, out=sums[begin + number + 1 : end + number + 1])
    return sums


def _running_sums_backward(grad_sums: Floats, bounds: Ints) -> Floats:
    grad = np.empty((len(grad_sums) - len(bounds) + 1, grad_sums.shape[1]), grad_sums.dtype)
    for number, (begin, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        np.cumsum(grad_sums[begin + number + 1 : end + number + 1][::-1], axis=0, out=grad[begin:end][::-1])
    return grad


def _message_sums(vectors: Floats, message: Ints, messages: int) -> Floats:
    """The sum per message, and a row of zeros at the end for "no message"."""
    return _grouped_sum(vectors, message, messages + 1)


def _grouped_sum(vectors: Floats, group: Ints, groups: int) -> Floats:
    """Sum the vectors of each group; `group` is ascending."""
    sums = np.zeros((groups, vectors.shape[1]), vectors.dtype)
    if len(group):
        first = np.flatnonzero(np.concatenate(([True], group[1:] != group[:-1])))
        sums[group[first]] = np.add.reduceat(vectors, first, axis=0)
    return sums
