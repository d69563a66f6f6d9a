"""From hidden states to log-probabilities, only where they are asked for, a few hundred positions at a time.

The gradient has a closed form as long as the output layer itself is frozen: for a position with targets y and gradients
g of their log-probabilities it is  sum g*W[y] - (sum g) * softmax(Wh)W.  The second factor is computed on the way, so
logits are neither kept nor computed twice, whatever the loss.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

_VALUES_AT_ONCE = {"cpu": 1 << 24, "cuda": 1 << 27}
"""Logits in memory at a time, 64 MB in float32 on a CPU and 512 MB on a GPU."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Which log-probabilities are wanted: entry e is that of token `token[e]` at position `row[e]`."""

    row: Tensor
    """(E,), ascending."""
    token: Tensor
    """(E,)"""


@dataclass(frozen=True, slots=True)
class Scored:
    """Log-probabilities and what their gradient needs."""

    logprobs: Tensor
    """(E,) float32"""
    expected: Tensor | None
    """(R, hidden): the output vector that the model expects at each position; None without a gradient."""


@dataclass(frozen=True, slots=True)
class Head:
    """The frozen output layer."""

    weight: Tensor
    bias: Tensor | None = None

    def logits(self, hidden: Tensor) -> Tensor:
        """(R, hidden) -> (R, vocabulary), in float32."""
        return F.linear(hidden, self.weight, self.bias).float()

    @torch.no_grad()
    def score(self, hidden: Tensor, targets: Targets, *, with_gradient: bool) -> Scored:
        """Log-probabilities of the targets."""
        rows = self._rows_at_once()
        found: list[Tensor] = []
        expected: list[Tensor] = []
        starts = list(range(0, len(hidden), rows))
        bounds = torch.searchsorted(targets.row, torch.tensor([*starts, len(hidden)], device=targets.row.device))
        for start, (begin, end) in zip(starts, bounds.unfold(0, 2, 1).tolist(), strict=True):
            logits = self.logits(hidden[start : start + rows])
            total = logits.logsumexp(dim=1)
            row = targets.row[begin:end] - start
            found.append(logits[row, targets.token[begin:end]] - total[row])
            if with_gradient:
                probabilities = logits.sub_(total[:, None]).exp_()
                expected.append((probabilities.to(self.weight.dtype) @ self.weight).float())
        return Scored(torch.cat(found), torch.cat(expected) if with_gradient else None)

    @torch.no_grad()
    def gradient(self, scored: Scored, targets: Targets, gradients: Tensor) -> Tensor:
        """The gradient with respect to the hidden states, given that of the log-probabilities."""
        assert scored.expected is not None
        total = torch.zeros(len(scored.expected), device=gradients.device).index_add_(0, targets.row, gradients)
        found = scored.expected * -total[:, None]
        return found.index_add_(0, targets.row, self.weight[targets.token].float() * gradients[:, None])

    @torch.no_grad()
    def best(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The `k` most probable tokens at each position and their log-probabilities."""
        tokens: list[Tensor] = []
        logprobs: list[Tensor] = []
        for part in hidden.split(self._rows_at_once()):
            best = self.logits(part).log_softmax(dim=1).topk(k, dim=1)
            tokens.append(best.indices)
            logprobs.append(best.values)
        return torch.cat(tokens), torch.cat(logprobs)

    def _rows_at_once(self) -> int:
        return max(1, _VALUES_AT_ONCE[self.weight.device.type] // self.weight.shape[0])
