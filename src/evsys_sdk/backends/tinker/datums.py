"""Converts datums to the SDK's, and results to arrays.

Numbers are sent as float32 and int64, the types of our datums, so nothing is rounded. Policy losses have no weights in
the protocol; an advantage of 0 has the same effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ...errors import BackendError
from ..datum import Datum, Floats
from ..probes.facts import LossReduction

_DATA_AT_ONCE: Final = 1024
_BYTES_AT_ONCE: Final = 2_500_000
"""The SDK sends requests up to this size whole and may split larger ones."""


def to_wire(types: Any, data: Sequence[Datum], loss_fn: str) -> list[Any]:
    """Datums for a request with this loss, in an SDK's classes."""
    return [_datum(types, datum, loss_fn) for datum in data]


def _datum(types: Any, datum: Datum, loss_fn: str) -> Any:
    inputs: dict[str, Any] = {"target_tokens": _contiguous(datum.target_tokens, np.int64)}
    if loss_fn == "cross_entropy":
        inputs["weights"] = _contiguous(datum.weights, np.float32)
    else:
        inputs["advantages"] = _contiguous(datum.advantages, np.float32)
        inputs["logprobs"] = _contiguous(datum.logprobs, np.float32)
    if loss_fn == "gspo":
        inputs["sequence_ratio_mask"] = (datum.weights != 0).astype(np.float32)
    tensors = {name: types.TensorData.from_numpy(array) for name, array in inputs.items()}
    return types.Datum(model_input=types.ModelInput.from_ints(datum.tokens.tolist()), loss_fn_inputs=tensors)


def _contiguous(values: Any, dtype: Any) -> Any:
    array = np.ascontiguousarray(values, dtype)
    return array if array.flags.writeable else array.copy()


def logprobs_of(output: Any, data: Sequence[Datum], where: str) -> list[Floats]:
    """The log-probabilities of the targets from the result of a pass."""
    values = [record.get("logprobs") for record in output.loss_fn_outputs]
    if len(values) != len(data) or any(value is None for value in values):
        raise BackendError(
            f"{where}: {len(data)} data were sent and {sum(value is not None for value in values)} came back with "
            "log-probabilities. This server does not keep the protocol; ask it with `evsys doctor`."
        )
    logprobs = [np.asarray(value.to_numpy(), np.float32) for value in values]
    for index, (lp, datum) in enumerate(zip(logprobs, data, strict=True)):
        if lp.size != datum.target_tokens.size:
            raise BackendError(
                f"{where}: datum {index} has {datum.target_tokens.size} targets and got {lp.size} log-probabilities. "
                "This server does not keep the protocol; ask it with `evsys doctor`."
            )
        if not np.isfinite(lp).all():
            raise BackendError(
                f"{where}: datum {index} got a log-probability that is not finite. The weights on the server are "
                "broken, or its vocabulary is smaller than the tokenizer's."
            )
    return [lp.reshape(datum.target_tokens.shape) for lp, datum in zip(logprobs, data, strict=True)]


def undo_mean(data: Sequence[Datum], reduction: LossReduction | None) -> list[Datum]:
    """Rescale data so that the server's averaged loss is the requested sum, if possible."""
    factor = {
        "mean_data": float(len(data)),
        "mean_tokens": float(sum(len(datum) for datum in data)),
    }.get(reduction or "sum", 1.0)
    if factor == 1.0:
        return list(data)
    # The parts of a split request are averaged separately, which one factor cannot undo.
    size = sum(4 * len(datum) + 12 * datum.target_tokens.size for datum in data)
    if len(data) > _DATA_AT_ONCE or size > _BYTES_AT_ONCE:
        raise BackendError(
            f"{len(data)} data of {size} bytes would be sent in several requests, each averaged by itself, and this "
            "server averages. Make batch_size smaller, or use a server that sums."
        )
    return [_scale(datum, np.float32(factor)) for datum in data]


def _scale(datum: Datum, factor: np.float32) -> Datum:
    advantages = None if datum.advantages is None else datum.advantages * factor
    return replace(datum, weights=datum.weights * factor, advantages=advantages)


def expand(data: Sequence[Datum]) -> list[Datum]:
    """Soft targets as one datum per alternative: the same sum, with one pass each."""
    return [column for datum in data for column in _columns(datum)]


def _columns(datum: Datum) -> list[Datum]:
    if datum.target_tokens.ndim == 1:
        return [datum]
    return [
        replace(datum, target_tokens=datum.target_tokens[:, k], weights=datum.weights[:, k])
        for k in range(datum.target_tokens.shape[1])
    ]


def collect(logprobs: Sequence[Floats], data: Sequence[Datum]) -> list[Floats]:
    """Reassemble the log-probabilities of expanded data."""
    parts = iter(logprobs)
    return [
        next(parts) if datum.target_tokens.ndim == 1 else np.stack([next(parts) for _ in _columns(datum)], axis=1)
        for datum in data
    ]
