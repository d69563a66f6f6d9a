"""Log-probabilities of tokens that a client names for each place of a prompt, dense or in compressed rows."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...backends.client import Capabilities, TopLogprobs
from ...backends.datum import Floats, Ints
from ..answer import Refusal
from .requests import JsonTensor

_NAME: Final = "target_prompt_logprobs"
_NOTHING: Final = -1
"""A cell that asks for nothing."""


@dataclass(frozen=True, slots=True)
class PromptTargets:
    """The cells that were named: row i is about token i + 1 of the prompt."""

    rows: Ints
    tokens: Ints
    request: JsonTensor

    @classmethod
    def read(cls, request: JsonTensor, prompt_length: int, capabilities: Capabilities) -> PromptTargets:
        """Check what was asked for; raises `Refusal`."""
        if capabilities.top_k_logprobs < capabilities.vocab_size:
            raise Refusal(400, f"{_NAME} needs the whole distribution, which the backend here does not report.")
        is_integer = request.dtype == "int64" and all(isinstance(value, int) for value in request.data)
        if not is_integer or len(request.shape) != 2 or request.shape[0] != prompt_length - 1:
            raise Refusal(
                400,
                f"{_NAME} must be int64 and shaped [{prompt_length - 1}, K], a row for each token but the first (got "
                f"{request.dtype}, {request.shape}).",
            )
        try:
            tokens = np.asarray(request.data, np.int64)
        except OverflowError:
            raise Refusal(400, f"{_NAME} holds a number that is no token.") from None
        rows = _rows(request, len(tokens))
        outside = (tokens < _NOTHING) | (tokens >= capabilities.vocab_size)
        if outside.any() or not (tokens != _NOTHING).any():
            raise Refusal(400, f"{_NAME} must name tokens of the vocabulary (0..{capabilities.vocab_size - 1}), or -1.")
        return cls(rows, tokens, request)

    def write(self, message: Any, top: TopLogprobs, float32: int) -> None:
        """Put the answer into a tensor message, in the layout of the request; `top` holds the whole distribution."""
        # `top` is ordered by probability; put by token id, a cell is found by its token. Row 0 is left out: nothing
        # stands before the first token that could predict it.
        by_token = np.zeros(top.logprobs.shape, np.float32)
        np.put_along_axis(by_token[1:], top.tokens[1:], top.logprobs[1:], axis=1)
        # a cell that asks for nothing is -1 and reads the last column, which is then covered by 0
        found: Floats = np.where(self.tokens == _NOTHING, 0, by_token[self.rows + 1, self.tokens]).astype(np.float32)
        message.dtype = float32
        message.shape.extend(self.request.shape)
        if self.request.sparse_crow_indices is None:
            message.dense = found.tobytes()
        else:
            message.sparse_csr.values = found.tobytes()
            message.sparse_csr.crow_indices = np.asarray(self.request.sparse_crow_indices, np.int64).tobytes()
            message.sparse_csr.col_indices = np.asarray(self.request.sparse_col_indices, np.int64).tobytes()


def _rows(request: JsonTensor, count: int) -> Ints:
    """The row of each number in the request."""
    height, width = request.shape
    starts, columns = request.sparse_crow_indices, request.sparse_col_indices
    if starts is None:
        fits = math.prod(request.shape) == count and columns is None
        counts = [width] * height if fits else []
    else:
        counts = [after - before for before, after in itertools.pairwise(starts)]
        fits = bool(starts) and len(counts) == height and starts[0] == 0 and starts[-1] == count == len(columns or [])
        fits = fits and min(counts, default=0) >= 0 and all(0 <= column < width for column in columns or [])
    if not fits:
        raise Refusal(400, f"{_NAME}: {count} values do not fit the shape {request.shape} and its indices.")
    return np.repeat(np.arange(height, dtype=np.int64), counts)
