"""Log-probabilities of given targets from hidden states, a limited number of positions at a time.

Because the output layer is frozen, the gradient has a closed form: for a position with targets y and gradients g of
their log-probabilities it is  sum g*W[y] - (sum g) * softmax(Wh)W.  The forward pass computes softmax(Wh)W, so logits
are neither kept nor computed twice, for any loss. Some models scale or cap the logits. Then each row of W is weighted
by the derivative f of that function:  sum g*f[y]*W[y] - (sum g) * (softmax * f)W.
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
"""Number of logits in memory at a time: 64 MB in float32 on a CPU, 512 MB on a GPU."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The log-probabilities to compute: entry e is that of token `token[e]` at position `row[e]`."""

    row: Tensor
    """(E,), ascending."""
    token: Tensor
    """(E,)"""


@dataclass(frozen=True, slots=True)
class Scored:
    """Log-probabilities and the tensors that their gradient needs."""

    logprobs: Tensor
    """(E,) float32"""
    expected: Tensor | None
    """(R, hidden): softmax(Wh)W at each position, the expected output vector; None without a gradient."""
    slopes: Tensor | None = None
    """(E,): derivative of the cap at each target's logit; None without a cap."""


@dataclass(frozen=True, slots=True)
class Head:
    """The frozen output layer."""

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    """Factor on the product with the weights, as in Cohere and Granite."""
    cap: float | None = None
    """Bound of the logits, applied by a tanh after the scale, as in Gemma 2; None for no cap."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(R, hidden) -> (R, vocabulary), in float32."""
        return self.to_logits(F.linear(hidden, self.weight, self.bias).float())

    def to_logits(self, product: Tensor) -> Tensor:
        """Apply scale and cap to the product with the weights, possibly in place."""
        if self.scale != 1:
            product = product.mul_(self.scale)
        return product if self.cap is None else product.div_(self.cap).tanh_().mul_(self.cap)

    def _slopes(self, logits: Tensor) -> Tensor | None:
        """Derivative of the cap at each capped logit; None without a cap."""
        return None if self.cap is None else (logits / self.cap).square_().neg_().add_(1)

    @torch.no_grad()
    def score(self, hidden: Tensor, targets: Targets, *, with_gradient: bool) -> Scored:
        """Compute the log-probabilities of the targets."""
        rows = self._rows_at_once()
        logprobs: list[Tensor] = []
        expected: list[Tensor] = []
        slopes: list[Tensor] = []
        starts = list(range(0, len(hidden), rows))
        bounds = torch.searchsorted(targets.row, torch.tensor([*starts, len(hidden)], device=targets.row.device))
        for start, (begin, end) in zip(starts, bounds.unfold(0, 2, 1).tolist(), strict=True):
            row = targets.row[begin:end] - start
            if self._is_fused:
                from ..gpu.row_kernels import softmax_

                product = F.linear(hidden[start : start + rows], self.weight, self.bias)
                target_logits = product[row, targets.token[begin:end]].float()
                logprobs.append(target_logits - softmax_(product, replace=with_gradient)[row])
                if with_gradient:
                    expected.append((product @ self.weight).float())
                continue
            logits = self.logits(hidden[start : start + rows])
            total = logits.logsumexp(dim=1)
            target_logits = logits[row, targets.token[begin:end]]
            logprobs.append(target_logits - total[row])
            if with_gradient:
                slope, target_slope = self._slopes(logits), self._slopes(target_logits)
                # In place: these are the largest tensors of a pass, and the logits are not used again.
                probabilities = logits.sub_(total[:, None]).exp_()
                if slope is not None and target_slope is not None:
                    probabilities.mul_(slope)
                    slopes.append(target_slope)
                expected.append((probabilities.to(self.weight.dtype) @ self.weight).float())
        return Scored(
            torch.cat(logprobs), torch.cat(expected) if with_gradient else None, torch.cat(slopes) if slopes else None
        )

    @torch.no_grad()
    def gradient(self, scored: Scored, targets: Targets, gradients: Tensor) -> Tensor:
        """Return the gradient of the hidden states from the gradients of the log-probabilities."""
        assert scored.expected is not None
        total = gradients.new_zeros(len(scored.expected)).index_add_(0, targets.row, gradients)
        hidden_gradient = scored.expected * -total[:, None]
        counted = gradients if scored.slopes is None else gradients * scored.slopes
        hidden_gradient.index_add_(0, targets.row, self.weight[targets.token].float() * counted[:, None])
        return hidden_gradient if self.scale == 1 else hidden_gradient.mul_(self.scale)

    @torch.no_grad()
    def best(
        self, hidden: Tensor, k: int, targets: Tensor, change: Callable[[Tensor, int], Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the `k` most probable tokens at each position, their log-probabilities, and those of the targets.

        `change`, if given, modifies each block of logits; its second argument is the position of the block's first row.
        """
        tokens: list[Tensor] = []
        logprobs: list[Tensor] = []
        target_logprobs: list[Tensor] = []
        rows = self._rows_at_once()
        for at, (part, part_targets) in enumerate(zip(hidden.split(rows), targets.split(rows), strict=True)):
            logits = self.logits(part)
            scores = (logits if change is None else change(logits, at * rows)).log_softmax(dim=1)
            best = scores.topk(k, dim=1)
            tokens.append(best.indices)
            logprobs.append(best.values)
            target_logprobs.append(scores.gather(1, part_targets[:, None])[:, 0])
        return torch.cat(tokens), torch.cat(logprobs), torch.cat(target_logprobs)

    @property
    def _is_fused(self) -> bool:
        """Whether one kernel can compute the softmax of the product without a float32 copy."""
        half = self.weight.is_cuda and self.weight.dtype in (torch.float16, torch.bfloat16)
        return half and self.scale == 1 and self.cap is None and has_triton()

    def _rows_at_once(self) -> int:
        return max(1, _VALUES_AT_ONCE[self.weight.device.type] // self.weight.shape[0])
