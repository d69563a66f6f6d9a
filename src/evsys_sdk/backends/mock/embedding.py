"""From active table rows to the model's input vectors, and the gradient back to the rows.

The words of the context are pooled as a running sum per sequence, those of the previous message as one sum per message;
both are divided by the square root of their number, so that long prompts do not drown the rest.
"""

from __future__ import annotations

import numpy as np

from .features import Features
from .packing import Ints, Packed
from .weights import Floats

_CONTEXT_SHARE = 0.5
_MESSAGE_SHARE = 6.0


def embed(table: Floats, features: Features, packed: Packed, queries: Ints) -> Floats:
    """The input vectors at `queries`, positions of `packed`."""
    words = features.words
    running = _running_sums(table[words.context_row], _word_bounds(features, packed))
    per_message = _message_sums(table[words.message_row], words.message, len(packed.message_starts))
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

    sources = np.concatenate((grad_z, _running_sums_backward(grad_running, bounds), grad_message[words.message]))
    ngrams = features.ngram_rows[active]
    rows = np.concatenate((ngrams.ravel(), words.context_row, words.message_row))
    of_ngrams = np.repeat(np.arange(len(grad_z)), ngrams.shape[1])
    source = np.concatenate((of_ngrams, len(grad_z) + np.arange(2 * count)))
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    first = _first_of_runs(rows)
    return rows[first], np.add.reduceat(sources[source[order]], first, axis=0)


def _sum_rows(table: Floats, rows: Ints) -> Floats:
    total = table[rows[:, 0]]
    for column in range(1, rows.shape[1]):
        total += table[rows[:, column]]
    return total


def _scales(features: Features, packed: Packed, like: Floats) -> tuple[Floats, Floats]:
    in_message = np.append(np.bincount(features.words.message, minlength=len(packed.message_starts)), 0)
    shown, asked = features.shown - features.first, in_message[features.previous]
    share = np.where(features.previous < 0, _MESSAGE_SHARE, _CONTEXT_SHARE)  # plain text is its own question
    context, message = share / np.sqrt(1.0 + shown), _MESSAGE_SHARE / np.sqrt(1.0 + asked)
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
        first = _first_of_runs(group)
        sums[group[first]] = np.add.reduceat(vectors, first, axis=0)
    return sums


def _first_of_runs(values: Ints) -> Ints:
    return np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
