"""From hidden states to log-probabilities, only where they are asked for, a few hundred positions at a time.

The gradient has a closed form as long as the output layer itself is frozen: for a position with targets y and gradients
g of their log-probabilities it is  sum g*W[y] - (sum g) * softmax(Wh)W.  The second factor is computed on the way, so
logits are neither kept nor computed twice, whatever the loss. Some models change the product: they scale it, or keep it
within bounds. Then each row of W counts by the slope f of that change:  sum g*f[y]*W[y] - (sum g) * (softmax * f)W.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .attention import has_triton

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
    slopes: Tensor | None = None
    """(E,): how much each target's logit changes with what it was before the cap; None where there is no cap."""


@dataclass(frozen=True, slots=True)
class Head:
    """The frozen output layer."""

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    """Logits are the product times this, as in Cohere and Granite."""
    cap: float | None = None
    """They are then kept within (-cap, cap) by a tanh, as in Gemma 2."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(R, hidden) -> (R, vocabulary), in float32."""
        return self.to_logits(F.linear(hidden, self.weight, self.bias).float())

    def to_logits(self, product: Tensor) -> Tensor:
        """From the product with the weights to logits; the product may be overwritten."""
        if self.scale != 1:
            product = product.mul_(self.scale)
        return product if self.cap is None else product.div_(self.cap).tanh_().mul_(self.cap)

    def _slopes(self, logits: Tensor) -> Tensor | None:
        """How much each capped logit changes with what it was before; None where there is no cap."""
        return None if self.cap is None else (logits / self.cap).square_().neg_().add_(1)

    @torch.no_grad()
    def score(self, hidden: Tensor, targets: Targets, *, with_gradient: bool) -> Scored:
        """Log-probabilities of the targets."""
        rows = self._rows_at_once()
        found: list[Tensor] = []
        expected: list[Tensor] = []
        slopes: list[Tensor] = []
        starts = list(range(0, len(hidden), rows))
        bounds = torch.searchsorted(targets.row, torch.tensor([*starts, len(hidden)], device=targets.row.device))
        for start, (begin, end) in zip(starts, bounds.unfold(0, 2, 1).tolist(), strict=True):
            row = targets.row[begin:end] - start
            if self._is_fused:
                from ..gpu.row_kernels import softmax_

                product = F.linear(hidden[start : start + rows], self.weight, self.bias)
                wanted = product[row, targets.token[begin:end]].float()
                found.append(wanted - softmax_(product, found=with_gradient)[row])
                if with_gradient:
                    expected.append((product @ self.weight).float())
                continue
            logits = self.logits(hidden[start : start + rows])
            total = logits.logsumexp(dim=1)
            wanted = logits[row, targets.token[begin:end]]
            found.append(wanted - total[row])
            if with_gradient:
                slope, slope_of_wanted = self._slopes(logits), self._slopes(wanted)
                # In place: these are the largest tensors of a pass, and no one needs the logits any more.
                probabilities = logits.sub_(total[:, None]).exp_()
                if slope is not None and slope_of_wanted is not None:
                    probabilities.mul_(slope)
                    slopes.append(slope_of_wanted)
                expected.append((probabilities.to(self.weight.dtype) @ self.weight).float())
        return Scored(
            torch.cat(found), torch.cat(expected) if with_gradient else None, torch.cat(slopes) if slopes else None
        )

    @torch.no_grad()
    def gradient(self, scored: Scored, targets: Targets, gradients: Tensor) -> Tensor:
        """The gradient with respect to the hidden states, given that of the log-probabilities."""
        assert scored.expected is not None
        total = gradients.new_zeros(len(scored.expected)).index_add_(0, targets.row, gradients)
        found = scored.expected * -total[:, None]
        counted = gradients if scored.slopes is None else gradients * scored.slopes
        found.index_add_(0, targets.row, self.weight[targets.token].float() * counted[:, None])
        return found if self.scale == 1 else found.mul_(self.scale)

    @torch.no_grad()
    def best(
        self, hidden: Tensor, k: int, targets: Tensor, change: Callable[[Tensor, int], Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The `k` most probable tokens at each position, their log-probabilities, and those of the targets.

        `change` makes other logits of those from a position on.
        """
        tokens: list[Tensor] = []
        logprobs: list[Tensor] = []
        given: list[Tensor] = []
        rows = self._rows_at_once()
        for at, (part, wanted) in enumerate(zip(hidden.split(rows), targets.split(rows), strict=True)):
            logits = self.logits(part)
            found = (logits if change is None else change(logits, at * rows)).log_softmax(dim=1)
            best = found.topk(k, dim=1)
            tokens.append(best.indices)
            logprobs.append(best.values)
            given.append(found.gather(1, wanted[:, None])[:, 0])
        return torch.cat(tokens), torch.cat(logprobs), torch.cat(given)

    @property
    def _is_fused(self) -> bool:
        """Whether a kernel makes probabilities of the product in one go, without a copy in float32."""
        half = self.weight.is_cuda and self.weight.dtype in (torch.float16, torch.bfloat16)
        return half and self.scale == 1 and self.cap is None and has_triton()

    def _rows_at_once(self) -> int:
        return max(1, _VALUES_AT_ONCE[self.weight.device.type] // self.weight.shape[0])
