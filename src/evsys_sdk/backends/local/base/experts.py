"""LoRA on the experts of a mixture: two low-rank matrices per expert, applied to the rows routed to that expert.

transformers stores the experts of a layer as two parameters, `gate_up_proj` and `down_proj`, (experts, out, in) each.
If a change of one of them is active or the weights are in four bits, rows are sorted by expert and multiplied group by
group: with torch's grouped product on a GPU, otherwise in a loop. In all other cases the model's own code runs.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .four_bit import FourBit, Weight, dense

if TYPE_CHECKING:
    from .lora import LoRAPart, Switch

EXPERT_PARAMETERS = ("gate_up_proj", "down_proj")
"""In the order in which PEFT nests its wrappers, innermost first."""
_ALIGNED = 8
"""Torch's grouped product requires widths that are multiples of this."""


def find_experts(model: nn.Module) -> dict[str, Any]:
    """Return the modules whose experts can be adapted, by name."""
    return {name: module for name, module in model.named_modules() if _has_plain_experts(module)}


def _has_plain_experts(module: Any) -> bool:
    if not all(getattr(getattr(module, name, None), "ndim", 0) == 3 for name in EXPERT_PARAMETERS):
        return False
    unlike = ("is_transposed", "has_bias", "has_post_expert_norm")
    plain = getattr(module, "has_gate", False) and getattr(module, "is_concatenated", True)
    return plain and hasattr(module, "_apply_gate") and not any(getattr(module, name, False) for name in unlike)


def route_experts(name: str, module: Any, switch: Switch) -> None:
    """Replace the forward of a module by one that applies the active changes of its experts."""
    module.forward = functools.partial(_forward, name, module, switch, module.forward)


def _forward(
    name: str,
    module: Any,
    switch: Switch,
    original: Callable[..., Tensor],
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
) -> Tensor:
    changes = [switch.active.get(f"{name}.{parameter}") for parameter in EXPERT_PARAMETERS]
    if changes == [None, None] and not isinstance(module.gate_up_proj, FourBit):
        return original(hidden_states, top_k_index, top_k_weights)
    chosen = top_k_index.flatten()
    order = chosen.argsort(stable=True)
    counts = torch.bincount(chosen, minlength=len(module.gate_up_proj))
    groups = _Groups(counts, hidden_states.dtype)
    rows = hidden_states[order // top_k_index.shape[1]]
    inner = module._apply_gate(groups.linear(rows, module.gate_up_proj, changes[0]))
    output = groups.linear(inner, module.down_proj, changes[1])
    output = output * top_k_weights.flatten()[order][:, None].to(output.dtype)
    # Restore the token order before summing: unlike index_add, this is deterministic.
    return output[order.argsort()].view(*top_k_index.shape, -1).sum(1).to(hidden_states.dtype)


class _Groups:
    """Rows sorted by expert, one group per expert."""

    def __init__(self, counts: Tensor, dtype: torch.dtype) -> None:
        self._ends = counts.cumsum(0).to(torch.int32)
        self._grouped = counts.is_cuda and dtype == torch.bfloat16 and hasattr(torch, "_grouped_mm")
        self._sizes: list[int] | None = None if self._grouped else counts.tolist()

    def linear(self, x: Tensor, weight: Weight, change: Any) -> Tensor:
        """Multiply each group by the weight of its expert, (experts, out, in), and apply the change."""
        if isinstance(change, Tensor):
            return self._product(x, change)
        if isinstance(weight, FourBit) and torch.is_grad_enabled():  # dequantized again in the backward pass
            output = checkpoint(self._frozen, x, weight, use_reentrant=False, preserve_rng_state=False)
        else:
            output = self._frozen(x, weight)
        if change is None:
            return output
        low = self._product(_drop(x, change), change.a.to(x.dtype))
        return output + change.scale * self._product(low, change.b.to(x.dtype))

    def _frozen(self, x: Tensor, weight: Weight) -> Tensor:
        return self._product(x, dense(weight))

    def _product(self, x: Tensor, weight: Tensor) -> Tensor:
        if self._grouped and not any(width % _ALIGNED for width in weight.shape[1:]):
            return torch._grouped_mm(x, weight.transpose(1, 2), offs=self._ends)
        if self._sizes is None:
            self._sizes = list(self._ends.diff(prepend=self._ends.new_zeros(1)).tolist())
        # Unbind once: the gradient of each single index would be as large as the whole weight.
        pieces = zip(x.split(self._sizes), weight.unbind(0), strict=True)
        return torch.cat([F.linear(rows, matrix) for rows, matrix in pieces if len(rows)])


def _drop(x: Tensor, part: LoRAPart) -> Tensor:
    if not part.dropout:
        return x
    kept = torch.rand(x.shape, generator=part.generator, device=x.device, dtype=torch.float32) >= part.dropout
    return x * kept.to(x.dtype) / (1 - part.dropout)
