"""A small language model in numpy: hashed features -> hidden layer -> logits, plus a copy head over the context.

    z = sum of active n-gram rows + pooled rows of the context's words + pooled rows of the previous message's words
    h = silu(layer_norm(z) * gain + shift)
    logits = OUTPUT_SCALE * (h @ output + bias) + copy head

It is trained with its exact gradient, written by hand below and tested against finite differences. It learns a task in
seconds on one core; its results do not transfer to large models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import copying, features
from .features import Features
from .packing import Ints, Packed
from .weights import COPY_SCALE, OUTPUT_SCALE, TABLE, Floats, Weights

# From active table rows to the model's input vectors, and the gradient back to the rows.
#
# The words of the context are pooled as a running sum per sequence, those of the previous message as one sum per
# message; both are divided by the square root of their number, so that long prompts do not drown the rest.

_CONTEXT_SHARE = 0.5
_MESSAGE_SHARE = 6.0


def embed(table: Floats, features: Features, packed: Packed, queries: Ints) -> Floats:
    """The input vectors at `queries`, positions of `packed`."""
    words = features.words
    running = _sum_prefixes(table[words.context_row], _word_bounds(features, packed))
    # An additional zero row, which index -1 ("no previous message") selects.
    per_message = _sum_groups(table[words.message_row], words.message, len(packed.message_starts) + 1)
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
    grad_running = _sum_groups(grad_z * context_scale, place, count + len(packed.starts))
    previous = features.previous[active]
    follows = previous >= 0
    grad_message = _sum_groups((grad_z * message_scale)[follows], previous[follows], len(packed.message_starts))

    sources = np.concatenate((grad_z, _sum_prefixes_backward(grad_running, bounds), grad_message[words.message]))
    ngrams = features.ngram_rows[active]
    rows = np.concatenate((ngrams.ravel(), words.context_row, words.message_row))
    of_ngrams = np.repeat(np.arange(len(grad_z)), ngrams.shape[1])
    source = np.concatenate((of_ngrams, len(grad_z) + np.arange(2 * count)))
    # Sorted, so that each table row is summed contiguously in a fixed order.
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
    shown, received = features.shown - features.first, in_message[features.previous]
    share = np.where(features.previous < 0, _MESSAGE_SHARE, _CONTEXT_SHARE)  # plain text has no previous message
    context, message = share / np.sqrt(1.0 + shown), _MESSAGE_SHARE / np.sqrt(1.0 + received)
    return context.astype(like.dtype)[:, None], message.astype(like.dtype)[:, None]


def _word_bounds(features: Features, packed: Packed) -> Ints:
    """Index of the first word of each sequence, and one past the last word."""
    return np.append(np.searchsorted(features.words.shown_at, packed.starts), len(features.words.shown_at))


def _sum_prefixes(vectors: Floats, bounds: Ints) -> Floats:
    """Per sequence: zero, then the sum after each of its words. One row more per sequence than it has words."""
    sums = np.zeros((len(vectors) + len(bounds) - 1, vectors.shape[1]), vectors.dtype)
    for number, (begin, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        np.cumsum(vectors[begin:end], axis=0, out=sums[begin + number + 1 : end + number + 1])
    return sums


def _sum_prefixes_backward(grad_sums: Floats, bounds: Ints) -> Floats:
    grad = np.empty((len(grad_sums) - len(bounds) + 1, grad_sums.shape[1]), grad_sums.dtype)
    for number, (begin, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        np.cumsum(grad_sums[begin + number + 1 : end + number + 1][::-1], axis=0, out=grad[begin:end][::-1])
    return grad


def _sum_groups(vectors: Floats, group: Ints, groups: int) -> Floats:
    """Sum the vectors of each group; `group` is ascending."""
    sums = np.zeros((groups, vectors.shape[1]), vectors.dtype)
    if len(group):
        first = _first_of_runs(group)
        sums[group[first]] = np.add.reduceat(vectors, first, axis=0)
    return sums


def _first_of_runs(values: Ints) -> Ints:
    return np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))


_ROWS_AT_ONCE = 8192
_SINGLE_THREADED = 1 << 18
"""Matrix products with no more multiplications than this run on one thread in OpenBLAS."""
_OUTER_ROWS = 1024
_NORM_EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of a loss: dense for every parameter but the table, of which only some rows are touched."""

    dense: Weights
    rows: Ints
    """Distinct table rows with a gradient, ascending."""
    row_values: Floats


@dataclass(frozen=True, slots=True)
class Hidden:
    """The hidden layer at some positions and what its backward pass needs."""

    normed: Floats
    inverse_deviation: Floats
    activation: Floats


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass over packed sequences, kept until its backward pass."""

    packed: Packed
    queries: Ints
    features: features.Features
    matches: copying.Matches
    hidden: Hidden

    def logits(self, weights: Weights, queries: Ints | None = None) -> Floats:
        """Logits at all query positions, or at the given ones (indices into the queries)."""
        hidden = self.hidden.activation if queries is None else self.hidden.activation[queries]
        logits = OUTPUT_SCALE * (_matmul(hidden, weights["output"]) + weights["bias"])
        matches = self.matches if queries is None else self.matches.among(queries, len(self.queries))
        copying.propose(matches, *_copy_weights(weights), len(logits)).add_to(logits)
        return logits


def forward(weights: Weights, sequences: Sequence[Ints], *, last_only: bool = False) -> Pass:
    """Run the model at every position of `sequences`, or only at the last position of each."""
    packed = Packed.of(sequences)
    queries = packed.ends - 1 if last_only else np.arange(len(packed))
    extracted = features.extract(packed, queries)
    z = embed(weights[TABLE], extracted, packed, queries)
    return Pass(packed, queries, extracted, copying.find_matches(packed, queries), _activate(z, weights))


def target_logprobs(weights: Weights, run: Pass, targets: Ints) -> Floats:
    """Log-probabilities of `targets`, (positions,) or (positions, K), in the weights' precision."""
    out = np.empty(targets.shape, weights["output"].dtype)
    for begin in range(0, len(targets), _ROWS_AT_ONCE):
        rows = np.arange(begin, min(begin + _ROWS_AT_ONCE, len(targets)))
        logprobs = log_softmax(run.logits(weights, rows))
        out[rows] = np.take_along_axis(logprobs, targets[rows].reshape(len(rows), -1), axis=1).reshape(
            targets[rows].shape
        )
    return out


def backward(weights: Weights, run: Pass, targets: Ints, grad_logprobs: Floats) -> Gradient:
    """The gradient of the loss whose derivative with respect to the targets' log-probabilities is given."""
    grad_logprobs = grad_logprobs.reshape(len(targets), -1).astype(weights["output"].dtype)
    active = np.flatnonzero(grad_logprobs.any(axis=1))
    if not len(active):
        dense = {name: np.zeros_like(value) for name, value in weights.items() if name != TABLE}
        return Gradient(dense, active, np.zeros((0, weights[TABLE].shape[1]), weights[TABLE].dtype))
    grad_logprobs, targets = grad_logprobs[active], targets.reshape(len(targets), -1)[active]
    grad_logits = -np.exp(log_softmax(run.logits(weights, active))) * grad_logprobs.sum(axis=1, keepdims=True)
    # np.add.at, because += would count repeated targets of a row only once.
    np.add.at(grad_logits, (np.arange(len(active))[:, None], targets), grad_logprobs)

    matches = run.matches.among(active, len(run.queries))
    proposals = copying.propose(matches, *_copy_weights(weights), len(active))
    grad_scores, grad_strengths = copying.backward(matches, proposals, grad_logits)
    scaled = OUTPUT_SCALE * grad_logits
    grad_hidden = _matmul(scaled, np.ascontiguousarray(weights["output"].T))
    hidden = Hidden(*(getattr(run.hidden, name)[active] for name in Hidden.__slots__))
    grad_z, grad_gain, grad_shift = _activate_backward(grad_hidden, hidden, weights)
    rows, row_values = embed_backward(grad_z, active, run.features, run.packed, run.queries)
    dense = {
        "gain": grad_gain,
        "shift": grad_shift,
        "output": _outer_sum(hidden.activation, scaled),
        "bias": scaled.sum(axis=0),
        "copy_scores": COPY_SCALE * grad_scores,
        "copy_strengths": COPY_SCALE * grad_strengths,
    }
    return Gradient(dense, rows, row_values)


def log_softmax(logits: Floats) -> Floats:
    """Numerically stable log-softmax by row."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _matmul(rows: Floats, matrix: Floats) -> Floats:
    """`rows @ matrix` in blocks too small for BLAS to spread over threads.

    Threads cost more than they save on a busy machine. With blocks of one shape, a row's result is bit-identical for
    any batch and number of BLAS threads.
    """
    fits = max(1, _SINGLE_THREADED // max(1, matrix.size))
    block = 1 << (fits.bit_length() - 1)
    missing = -len(rows) % block
    if missing:
        rows = np.concatenate((rows, np.zeros((missing, rows.shape[1]), rows.dtype)))
    product = np.matmul(rows.reshape(-1, block, rows.shape[1]), matrix).reshape(len(rows), matrix.shape[1])
    return product[: len(product) - missing]


def _outer_sum(left: Floats, right: Floats) -> Floats:
    """`left.T @ right`, summed over rows in a fixed order."""
    total = np.zeros((left.shape[1], right.shape[1]), left.dtype)
    for begin in range(0, len(left), _OUTER_ROWS):
        part = slice(begin, begin + _OUTER_ROWS)
        total += _matmul(np.ascontiguousarray(right[part].T), left[part]).T
    return total


def _copy_weights(weights: Weights) -> tuple[Floats, Floats]:
    return COPY_SCALE * weights["copy_scores"], COPY_SCALE * weights["copy_strengths"]


def _activate(z: Floats, weights: Weights) -> Hidden:
    centred = z - z.mean(axis=1, keepdims=True)
    inverse_deviation = 1 / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + z.dtype.type(_NORM_EPSILON))
    normed = centred * inverse_deviation
    a = normed * weights["gain"] + weights["shift"]
    return Hidden(normed, inverse_deviation, a * _sigmoid(a))


def _activate_backward(grad_h: Floats, hidden: Hidden, weights: Weights) -> tuple[Floats, Floats, Floats]:
    a = hidden.normed * weights["gain"] + weights["shift"]
    gate = _sigmoid(a)
    grad_a = grad_h * (gate * (1 + a * (1 - gate)))
    grad_normed = grad_a * weights["gain"]
    along = (grad_normed * hidden.normed).mean(axis=1, keepdims=True)
    grad_z = hidden.inverse_deviation * (grad_normed - grad_normed.mean(axis=1, keepdims=True) - hidden.normed * along)
    return grad_z, (grad_a * hidden.normed).sum(axis=0), grad_a.sum(axis=0)


def _sigmoid(values: Floats) -> Floats:
    # Equals 1 / (1 + exp(-x)) without its overflow for large negative x.
    return 0.5 * (1 + np.tanh(0.5 * values))
