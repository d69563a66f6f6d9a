"""AdamW on the matrices of an adapter, with the gradient accumulated since the last step.

A gradient is added only after the call that computed it has succeeded. A step allocates all memory that it needs before
it changes anything.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ....log import get_logger
from ...client import AdamParams
from ..base.lora import LoRAAdapter


class AdapterOptimizer:
    """Accumulated gradient, both moments, and the number of steps."""

    def __init__(self, adapter: LoRAAdapter) -> None:
        # One vector each, so that a step is a few kernels for any number of layers.
        self._flat = adapter.lay_flat()
        self.parameters = adapter.make_trainable().tensors()
        self.accumulated = torch.zeros_like(self._flat)
        self._gradient = adapter.split(self.accumulated)
        self._split = adapter.split
        self._adam = torch.optim.AdamW([self._flat], fused=True)
        self.steps = 0

    @torch.no_grad()
    def add(self, gradient: Tensor) -> None:
        """Add a gradient vector to the accumulated gradient."""
        self.accumulated += gradient

    @torch.no_grad()
    def step(self, adam: AdamParams) -> dict[str, float]:
        """Apply and reset the accumulated gradient; if it is not finite, only reset it."""
        # First, so that nothing has changed if memory runs out here.
        self._make_moments()
        parts = torch.stack(torch._foreach_norm(self._gradient)) if self._is_on_cpu else self.accumulated
        norm = float(parts.norm())
        if not math.isfinite(norm):
            get_logger(__name__).warning("the gradient is not finite (norm %g): the step was left out", norm)
            self.forget_gradient()
            return {"grad_norm": norm, "grad_clipped": 0.0}
        clipped = adam.grad_clip_norm > 0 and norm > adam.grad_clip_norm
        if clipped:
            self.accumulated *= adam.grad_clip_norm / norm
        self._flat.grad = self.accumulated
        for group in self._adam.param_groups:
            group |= {
                "lr": adam.learning_rate,
                "betas": (adam.beta1, adam.beta2),
                "eps": adam.eps,
                "weight_decay": adam.weight_decay,
            }
        self._adam.step()
        self.steps += 1
        self.accumulated.zero_()
        return {"grad_norm": norm, "grad_clipped": float(clipped)}

    def forget_gradient(self) -> None:
        """Reset the accumulated gradient."""
        self.accumulated.zero_()

    @property
    def _is_on_cpu(self) -> bool:
        """On a CPU, the float32 norm of a long vector is less exact than the norm of the norms of its parts."""
        return self._flat.device.type == "cpu"

    def moments(self) -> dict[str, Tensor]:
        """Return the moments for a checkpoint, by parameter number and moment."""
        state = self._adam.state.get(self._flat, {})
        nothing = torch.zeros((), dtype=torch.float32)  # for before the first step; expanded, it needs no memory
        moments: dict[str, Tensor] = {}
        for name in ("exp_avg", "exp_avg_sq"):
            parts = self._split(state[name]) if state else [nothing.expand(part.shape) for part in self.parameters]
            moments |= {f"{number}.{name}": part for number, part in enumerate(parts)}
        return moments

    def restore(self, moments: Mapping[str, Tensor], steps: int) -> None:
        """Restore the moments and the step count of a checkpoint."""
        self.steps = steps
        place = self._flat.device
        self._adam.state[self._flat] = {"step": torch.tensor(float(steps), device=place, dtype=torch.float32)}
        for name in ("exp_avg", "exp_avg_sq"):
            parts = [moments[f"{number}.{name}"].to(place).flatten() for number in range(len(self._gradient))]
            self._adam.state[self._flat][name] = torch.cat(parts)

    def _make_moments(self) -> None:
        """Allocate both moments at once: torch's Adam cannot continue if memory runs out after the first."""
        if self._flat not in self._adam.state:
            zeros = [torch.zeros_like(self._flat) for _ in range(2)]
            step = torch.zeros((), device=self._flat.device, dtype=torch.float32)
            self._adam.state[self._flat] = {"step": step, "exp_avg": zeros[0], "exp_avg_sq": zeros[1]}
