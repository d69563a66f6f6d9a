"""Scoring of texts with a snapshot: log-probabilities of given tokens, and the most probable alternatives."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...client import LogitsProcessor, TopLogprobs
from .. import memory
from ..base import packing
from ..base.head import Targets
from ..base.loading import Base
from ..gpu.fused_body import hidden_of
from .lanes import process
from .snapshot import Snapshot


@dataclass(eq=False, slots=True)
class ScoreRequest:
    """One call of `logprobs`, or of `topk_logprobs` if `k` is not 0."""

    tokens: NDArray[np.int64]
    k: int = 0
    logit_bias: Mapping[int, float] | None = None
    processors: Sequence[LogitsProcessor] = ()
    future: Future[Any] = field(default_factory=Future[Any])

    def fail(self, error: BaseException) -> None:
        """Resolve the request with an error, unless it is already resolved."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def answer(self, result: Any) -> None:
        """Resolve the request, unless it is already resolved."""
        with suppress(InvalidStateError):
            self.future.set_result(result)

    def empty_answer(self) -> Any:
        """Return an answer without scores, which is complete for texts of less than two tokens."""
        if not self.k:
            return np.full(len(self.tokens), np.nan, np.float32)
        shape, nothing = (len(self.tokens), self.k), np.nan
        given = np.full(len(self.tokens), nothing, np.float32)
        return TopLogprobs(np.full(shape, -1, np.int64), np.full(shape, nothing, np.float32), given)


def score(base: Base, snapshot: Snapshot, requests: Sequence[ScoreRequest], *, tokens_at_once: int) -> None:
    """Resolve all requests; the numerics are those of training."""
    try:
        for request in requests:
            if len(request.tokens) < 2:
                request.answer(request.empty_answer())
        pending = [request for request in requests if len(request.tokens) > 1]
        sequences = [request.tokens[:-1] for request in pending]
        rows = packing.pack(sequences, budget=tokens_at_once) if pending else []
        while rows:
            batch = rows.pop()
            try:
                _score_row(base, snapshot, batch, pending)
            except Exception as error:
                if not memory.is_out_of_memory(error):
                    raise
                memory.release_unused()
                if len(batch.members) == 1:
                    pending[batch.members[0]].fail(memory.too_little_memory("a text", len(batch.tokens), base.device))
                else:
                    rows += packing.split(batch, sequences)
    except Exception as error:
        for request in requests:
            request.fail(error)


@torch.inference_mode()
def _score_row(base: Base, snapshot: Snapshot, batch: packing.MicroBatch, requests: Sequence[ScoreRequest]) -> None:
    with base.turns:
        tokens, positions = (torch.from_numpy(part).to(base.device) for part in (batch.tokens, batch.positions))
        hidden = hidden_of(base, snapshot.parts(), tokens, positions, batch.layout())
        answers = [
            _answer(base, requests[member], hidden[torch.from_numpy(place).to(base.device)])
            for member, place in zip(batch.members, batch.places, strict=True)
        ]
    # After releasing the base, because the waiting caller may need it at once.
    for member, answer in zip(batch.members, answers, strict=True):
        requests[member].answer(answer)


def _answer(base: Base, request: ScoreRequest, hidden: torch.Tensor) -> Any:
    answer = request.empty_answer()
    next_tokens = torch.from_numpy(request.tokens[1:]).to(base.device)
    if request.k:
        change = partial(_change, request) if request.logit_bias or request.processors else None
        tokens, logprobs, given = base.head.best(hidden, request.k, next_tokens, change)
        answer.tokens[1:], answer.logprobs[1:] = tokens.cpu().numpy(), logprobs.cpu().numpy()
        answer.given[1:] = given.cpu().numpy()
        return answer
    targets = Targets(torch.arange(len(hidden), device=base.device), next_tokens)
    answer[1:] = base.head.score(hidden, targets, with_gradient=False).logprobs.cpu().numpy()
    return answer


def _change(request: ScoreRequest, logits: torch.Tensor, start: int) -> torch.Tensor:
    """Apply a request's bias and processors to the logits of the positions from `start`."""
    if request.logit_bias:
        tokens, values = zip(*request.logit_bias.items(), strict=True)
        logits[:, torch.tensor(tokens, device=logits.device)] += torch.tensor(values, device=logits.device)
    if not request.processors:
        return logits
    rows = logits.log_softmax(dim=1)
    text = request.tokens.tolist()
    return torch.stack([process(row, text[: start + at + 1], request.processors) for at, row in enumerate(rows)])
