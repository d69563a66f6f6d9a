"""The protocol's tensors as numpy arrays: dense or in compressed rows, checked before numpy sees them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..backends.datum import Floats
from ..errors import DataError

_FLOAT32, _INT64, _INT32, _BFLOAT16 = 1, 2, 3, 4
_STORED: Final = {_FLOAT32: np.float32, _INT64: np.int64, _INT32: np.int32, _BFLOAT16: np.uint16}
_MOST_ELEMENTS: Final = 1 << 26
"""A sparse tensor may claim any shape; beyond this it is not unfolded."""


def tensor(message: Any, where: str, *, rows: int) -> NDArray[Any]:
    """The array in a message: float32 or int64, (rows,) or (rows, K)."""
    if message.dtype not in _STORED:
        raise DataError(f"{where} have the data type {message.dtype}; use float32 or int64.")
    encoding = message.WhichOneof("encoding")
    shape = tuple(message.shape)
    if encoding == "sparse_csr":
        return _unfold(message, shape, where, rows=rows)
    values = _values(message.dense, message.dtype, where)
    shape = shape or values.shape
    if math.prod(shape) != values.size or min(shape) < 0:
        raise DataError(f"{where}: {values.size} values do not fill the shape {list(shape)}.")
    return values.reshape(shape)


def group_by_width(arrays: Sequence[Floats]) -> Iterator[Sequence[Floats]]:
    """Neighbours that are equally wide, because one batch in the protocol has one width."""
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
        raise DataError(f"{where}: {len(content)} bytes are no number of {stored.name} values.")
    values = np.frombuffer(content, stored)
    if dtype == _BFLOAT16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.int64) if dtype == _INT32 else values
