"""Adam on the matrices of an adapter, with the gradient that has accumulated since the last step.

A gradient arrives whole or not at all: it is added only after the pass that computed it has succeeded. A step makes
room for all that it needs before it changes anything.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ....log import get_logger
from ...client import AdamParams
from ..base.lora import Adapter


class AdapterOptimizer:
    """Accumulated gradient, both moments, and the number of steps taken."""

    def __init__(self, adapter: Adapter) -> None:
        self.parameters = adapter.make_trainable().tensors()
        self._gradient = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._adam = torch.optim.AdamW(self.parameters, fused=True)
        self.steps = 0

    @torch.no_grad()
    def add(self, gradient: Sequence[Tensor]) -> None:
        """Add a gradient to what has accumulated."""
        torch._foreach_add_(self._gradient, list(gradient))

    @torch.no_grad()
    def step(self, adam: AdamParams) -> dict[str, float]:
        """Apply the accumulated gradient and forget it; one that is not finite is only forgotten."""
        # Before the norm, so that running out of memory here has changed nothing.
        self._make_moments()
        norm = float(torch.stack(torch._foreach_norm(self._gradient)).norm())
        if not math.isfinite(norm):
            get_logger(__name__).warning("the gradient is not finite (norm %g): the step was left out", norm)
            self.forget_gradient()
            return {"grad_norm": norm, "grad_clipped": 0.0}
        clipped = adam.grad_clip_norm > 0 and norm > adam.grad_clip_norm
        if clipped:
            torch._foreach_mul_(self._gradient, adam.grad_clip_norm / norm)
        for parameter, gradient in zip(self.parameters, self._gradient, strict=True):
            parameter.grad = gradient
        for group in self._adam.param_groups:
            group |= {
                "lr": adam.learning_rate,
                "betas": (adam.beta1, adam.beta2),
                "eps": adam.eps,
                "weight_decay": adam.weight_decay,
            }
        self._adam.step()
        self.steps += 1
        torch._foreach_zero_(self._gradient)
        return {"grad_norm": norm, "grad_clipped": float(clipped)}

    def forget_gradient(self) -> None:
        """Drop what has accumulated."""
        torch._foreach_zero_(self._gradient)

    def moments(self) -> dict[str, Tensor]:
        """What a checkpoint stores, by the number of the parameter."""
        found: dict[str, Tensor] = {}
        for number, parameter in enumerate(self.parameters):
            state = self._adam.state.get(parameter, {})
            for name in ("exp_avg", "exp_avg_sq"):
                moment = state.get(name)  # before the first step there is none, and zeros need no memory
                found[f"{number}.{name}"] = (
                    torch.zeros((), dtype=torch.float32).expand(parameter.shape) if moment is None else moment
                )
        return found

    def restore(self, moments: Mapping[str, Tensor], steps: int) -> None:
        """Go on from a checkpoint."""
        self.steps = steps
        for number, parameter in enumerate(self.parameters):
            self._adam.state[parameter] = {
                "step": torch.tensor(float(steps), device=parameter.device, dtype=torch.float32),
                **{
                    name: moments[f"{number}.{name}"].to(parameter.device, copy=True).reshape(parameter.shape)
                    for name in ("exp_avg", "exp_avg_sq")
                },
            }

    def _make_moments(self) -> None:
        """All moments, or none when memory runs out: Adam itself would stop halfway and not go on from there."""
        missing = [parameter for parameter in self.parameters if parameter not in self._adam.state]
        made = [
            {
                "step": torch.zeros((), device=parameter.device, dtype=torch.float32),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
            for parameter in missing
        ]
        self._adam.state.update(zip(missing, made, strict=True))
