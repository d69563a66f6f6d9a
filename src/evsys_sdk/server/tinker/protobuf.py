"""Training requests and results as protobuf, with the message types of the `tinker` package.

Arrays are views of the received bytes, without Python loops. Input is untrusted: lengths, shapes and indices are
checked here, because numpy would guess or crash; the backend checks the values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from ...backends.client import ForwardBackwardOutput, Sample, TopLogprobs
from ...backends.datum import Datum, Floats
from ...errors import DataError, MissingExtraError, show
from ..answer import PROTOBUF, Refusal

_LARGEST_TOP_K_GAP: Final = -99999.0
"""The protocol's log-probability for a missing token."""

_INPUTS: Final = ("target_tokens", "weights", "advantages", "logprobs", "sequence_ratio_mask")


@dataclass(frozen=True, slots=True)
class TrainingRequest:
    """A forward_backward request whose data are not yet parsed."""

    message: Any
    model_id: str
    seq_id: int
    loss_fn: str
    loss_fn_config: dict[str, Any]
    forward_only: bool

    def data(self) -> list[Datum]:
        """The training data; raises `DataError` for invalid ones."""
        # protobuf ignores unknown fields, which may matter in requests of newer clients.
        fields: Any = import_module("google.protobuf.unknown_fields").UnknownFieldSet(self.message)
        if unknown := sorted({field.field_number for field in fields}):
            raise DataError(f"the request has fields that this server does not know: numbers {unknown}.")
        return [_datum(datum, f"datum {index}") for index, datum in enumerate(self.message.data)]


@cache
def messages() -> Any:
    """The message types, loaded from their file: importing the package takes a second."""
    package = find_spec("tinker")
    if package is None or package.origin is None:
        raise MissingExtraError("the Tinker protocol", "server")
    file = Path(package.origin).parent / "proto" / "tinker_public_pb2.py"
    spec = spec_from_file_location("evsys_sdk_tinker_public_pb2", file)
    if spec is None or spec.loader is None:
        raise MissingExtraError("the Tinker protocol", "server")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_training_request(body: bytes) -> TrainingRequest:
    """Parse the head of a request; raises `Refusal` for invalid bytes."""
    message = messages().ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except Exception:  # protobuf's DecodeError differs between implementations
        raise Refusal(400, f"the {len(body)} bytes sent are not a ForwardBackwardRequest.") from None
    if message.seq_id < 1:
        raise Refusal(400, f"seq_id must be 1 or more (got {message.seq_id}): it gives each request its place.")
    config: dict[str, Any] = dict(message.loss_fn_config)
    for key, value in message.loss_fn_config_v2.items():
        config[key] = getattr(value, value.WhichOneof("value") or "number")
    return TrainingRequest(
        message, message.model_id, message.seq_id, message.loss_fn, config, forward_only=message.forward_only
    )


def write_training_answer(output: ForwardBackwardOutput) -> Response:
    """The result of a forward or backward pass."""
    pb = messages()
    message = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    message.metrics.update(_name_reductions({"loss": output.loss, **output.metrics}))
    for rows in group_by_width(output.logprobs):
        record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(rows))
        field = record.fields["logprobs"]
        field.dtype = pb.DTYPE_FLOAT32
        field.data = b"".join([np.ascontiguousarray(row, np.float32).tobytes() for row in rows])
        # byte offset of each row
        field.offsets = np.cumsum([0, *(4 * row.size for row in rows)], dtype=np.int64).tobytes()
        field.trailing_shape.extend(rows[0].shape[1:])
    return Response(message.SerializeToString(), media_type=PROTOBUF)


def sample_answer(
    samples: Sequence[Sample],
    *,
    prompt_logprobs: Floats | None = None,
    top_prompt: TopLogprobs | None = None,
    top_samples: Sequence[TopLogprobs] = (),
) -> Response:
    """The result of a sampling request."""
    pb = messages()
    message = pb.SampleResponse()
    for number, sample in enumerate(samples):
        sequence = message.sequences.add(
            stop_reason=pb.STOP_REASON_STOP if sample.stop_reason == "stop" else pb.STOP_REASON_LENGTH,
            tokens=np.asarray(sample.tokens, np.int32).tobytes(),
            logprobs=np.asarray(sample.logprobs, np.float32).tobytes(),
        )
        if top_samples:
            _write_top(sequence.topk_sampled_logprobs, top_samples[number])
    if prompt_logprobs is not None:
        message.prompt_logprobs = prompt_logprobs.astype(np.float32, copy=False).tobytes()
    if top_prompt is not None:
        _write_top(message.topk_prompt_logprobs, top_prompt)
    return Response(message.SerializeToString(), media_type=PROTOBUF)


def _write_top(message: Any, top: TopLogprobs) -> None:
    missing = np.isnan(top.logprobs)
    message.token_ids = np.where(missing, 0, top.tokens).astype(np.int32).tobytes()
    message.logprobs = np.where(missing, _LARGEST_TOP_K_GAP, top.logprobs).astype(np.float32).tobytes()
    message.length, message.k = top.tokens.shape


def _name_reductions(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics with the protocol's names: the suffix after the colon is the reduction over parts of a batch."""
    renamed: dict[str, float] = {}
    for key, value in metrics.items():
        reduction = "sum" if key == "loss" else "mean"
        renamed[key if ":" in key else f"{key}:{reduction}"] = float(value)
    return renamed


def _datum(message: Any, where: str) -> Datum:
    tokens = _tokens(message.model_input, where)
    inputs: dict[str, NDArray[Any]] = {}
    for name in message.loss_fn_inputs:
        if name not in _INPUTS:
            raise DataError(f"{where}: unknown loss input {show(name)}. This server takes {', '.join(_INPUTS)}.")
        inputs[name] = tensor(message.loss_fn_inputs[name], f"{where}: {name}", rows=len(tokens))
    targets = inputs.get("target_tokens")
    if targets is None:
        raise DataError(f"{where}: target_tokens are missing. Every position needs what it should predict.")
    advantages, logprobs = _float(inputs, "advantages", where), _float(inputs, "logprobs", where)
    weights = _float(inputs, "weights", where)
    if weights is None:
        weights = _float(inputs, "sequence_ratio_mask", where)
    if weights is None:
        weights = _default_weights(targets, advantages, logprobs)
    return Datum(tokens, targets, weights, advantages, logprobs)


def _default_weights(targets: NDArray[Any], advantages: Floats | None, logprobs: Floats | None) -> Floats:
    """Default weights: all positions; in policy data, positions with a logprob or an advantage."""
    if advantages is None or logprobs is None or targets.ndim != 1 or advantages.shape != logprobs.shape:
        return np.ones(targets.shape, np.float32)
    return ((advantages != 0) | (logprobs != 0)).astype(np.float32)


def _float(inputs: Mapping[str, NDArray[Any]], name: str, where: str) -> Floats | None:
    if name not in inputs:
        return None
    if inputs[name].dtype != np.float32:
        raise DataError(f"{where}: {name} must be floats (got {inputs[name].dtype}).")
    return inputs[name]


def _tokens(chunks: Sequence[Any], where: str) -> NDArray[np.int64]:
    parts: list[NDArray[np.int32]] = []
    for chunk in chunks:
        kind = chunk.WhichOneof("chunk")
        if kind != "encoded_text":
            raise DataError(
                f"{where}: the model input has a chunk of {kind or 'nothing'}; this server takes text only."
            )
        content = chunk.encoded_text.tokens
        if len(content) % 4:
            raise DataError(f"{where}: tokens are {len(content)} bytes, which is not a multiple of 4.")
        parts.append(np.frombuffer(content, np.int32))
    if not parts:
        raise DataError(f"{where}: the model input is empty.")
    return (parts[0] if len(parts) == 1 else np.concatenate(parts)).astype(np.int64)


# The protocol's tensors as numpy arrays: dense or compressed rows, validated first.

_FLOAT32, _INT64, _INT32, _BFLOAT16 = 1, 2, 3, 4
_STORED: Final = {_FLOAT32: np.float32, _INT64: np.int64, _INT32: np.int32, _BFLOAT16: np.uint16}
_MOST_ELEMENTS: Final = 1 << 26
"""Maximum size of a sparse tensor, which may claim any shape."""


def tensor(message: Any, where: str, *, rows: int) -> NDArray[Any]:
    """The array of a message: float32 or int64, (rows,) or (rows, K)."""
    if message.dtype not in _STORED:
        raise DataError(f"{where} have the data type {message.dtype}; use float32 or int64.")
    encoding = message.WhichOneof("encoding")
    shape = tuple(message.shape)
    if encoding == "sparse_csr":
        return _unfold(message, shape, where, rows=rows)
    values = _values(message.dense, message.dtype, where)
    shape = shape or values.shape
    if math.prod(shape) != values.size or min(shape) < 0:  # the product of two negative numbers is positive
        raise DataError(f"{where}: {values.size} values do not fill the shape {list(shape)}.")
    return values.reshape(shape)


def group_by_width(arrays: Sequence[Floats]) -> Iterator[Sequence[Floats]]:
    """Group neighbours of equal width, because a batch of the protocol has one width."""
    for _, group in itertools.groupby(arrays, key=lambda array: array.shape[1:]):
        yield list(group)


def _unfold(message: Any, shape: tuple[int, ...], where: str, *, rows: int) -> NDArray[Any]:
    csr = message.sparse_csr
    values = _values(csr.values, message.dtype, where)
    starts = _values(csr.crow_indices, _INT64, f"{where}: crow_indices")
    columns = _values(csr.col_indices, _INT64, f"{where}: col_indices")
    if len(shape) != 2 or shape[0] != rows or not 1 <= shape[1] <= _MOST_ELEMENTS // max(rows, 1):
        raise DataError(f"{where}: a sparse tensor must be shaped [{rows}, K] here (got {list(shape)}).")
    counts = np.diff(starts)
    fits = len(starts) == rows + 1 and starts[0] == 0 and starts[-1] == len(values) == len(columns)
    if not fits or (counts < 0).any() or ((columns < 0) | (columns >= shape[1])).any():
        raise DataError(f"{where}: the indices of the sparse tensor do not fit its {len(values)} values.")
    dense = np.zeros(shape, values.dtype)
    dense[np.repeat(np.arange(rows), counts), columns] = values
    return dense


def _values(content: bytes, dtype: int, where: str) -> NDArray[Any]:
    stored = np.dtype(_STORED[dtype])
    if len(content) % stored.itemsize:
        raise DataError(f"{where}: {len(content)} bytes are not a whole number of {stored.name} values.")
    values = np.frombuffer(content, stored)
    if dtype == _BFLOAT16:  # numpy lacks bfloat16; it is the upper half of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.int64) if dtype == _INT32 else values
