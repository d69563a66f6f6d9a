"""Hybrids of attention and recurrent layers: gated delta nets (Qwen3.5, Qwen3-Next, OLMo hybrid), short convolutions.

A recurrent layer of transformers supports one sequence per row. `route_recurrence` replaces its forward by one that
separates the sequences by the layout. Projections, norms and weights stay the model's own, so adapters work as usual.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from .attention import Layout

RECURRENT_MODELS = {
    "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "Qwen3NextForCausalLM", "OlmoHybridForCausalLM",
    "Lfm2ForCausalLM", "Lfm2MoeForCausalLM",
}  # fmt: skip
RECURRENT_LAYERS = {"linear_attention", "conv"}
"""Names of these layers in `layer_types` of the configs."""


def route_recurrence(model: nn.Module) -> bool:
    """Make the recurrent layers of a model use the layout; return whether the model has any."""
    has_any = False
    for module in model.modules():
        kind = type(module).__name__
        ours = _gated_delta if kind.endswith("GatedDeltaNet") else _short_convolution
        if kind.endswith(("GatedDeltaNet", "ShortConv")) and type(model).__name__ in RECURRENT_MODELS:
            module.forward = functools.partial(_forward, module, ours, module.forward)
            has_any = True
    return has_any


def _forward(
    module: Any,
    ours: Callable[[Any, Tensor, Layout], Tensor],
    original: Callable[..., Tensor],
    hidden_states: Tensor,
    *,
    evsys_layout: Layout | None = None,
    **others: Any,
) -> Tensor:
    if evsys_layout is None:
        return original(hidden_states, **others)
    return ours(module, hidden_states, evsys_layout)


def _gated_delta(module: Any, hidden: Tensor, layout: Layout) -> Tensor:
    mixed, gate, strength, step = _project(module, hidden)
    x = layout.convolve(module.layer_idx, mixed[0], module.conv1d.weight[:, 0], module.conv1d.bias)
    x = F.silu(x) if module.activation in ("silu", "swish") else getattr(F, module.activation)(x)
    query, key, value = (
        part.unflatten(-1, (-1, width))
        for part, width in zip(
            x.split([module.key_dim, module.key_dim, module.value_dim], dim=-1),
            (module.head_k_dim, module.head_k_dim, module.head_v_dim),
            strict=True,
        )
    )
    beta = strength[0].sigmoid() * (2 if getattr(module, "allow_neg_eigval", False) else 1)
    decay = -module.A_log.float().exp() * F.softplus(step[0].float() + module.dt_bias)
    output = layout.delta_rule(module.layer_idx, query, key, value, decay, beta).to(x.dtype)
    norm, project = (module.norm, module.out_proj) if hasattr(module, "norm") else (module.o_norm, module.o_proj)
    rows = norm(output.reshape(-1, module.head_v_dim), gate.reshape(-1, module.head_v_dim))
    return project(rows.reshape(*hidden.shape[:2], -1))


def _project(module: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the concatenated queries, keys and values; the gate; and the inputs of beta and of the decay."""
    if hasattr(module, "in_proj_qkv"):
        return tuple(getattr(module, f"in_proj_{name}")(hidden) for name in ("qkv", "z", "b", "a"))  # pyright: ignore[reportReturnType]
    if hasattr(module, "in_proj_qkvz"):
        *mixed, gate, strength, step = module.fix_query_key_value_ordering(
            module.in_proj_qkvz(hidden), module.in_proj_ba(hidden)
        )
        return torch.cat([part.flatten(2) for part in mixed], dim=-1), gate, strength, step
    mixed = torch.cat([getattr(module, f"{name}_proj")(hidden) for name in "qkv"], dim=-1)
    return mixed, module.g_proj(hidden), module.b_proj(hidden), module.a_proj(hidden)


def _short_convolution(module: Any, hidden: Tensor, layout: Layout) -> Tensor:
    before, after, x = module.in_proj(hidden)[0].chunk(3, dim=-1)
    output = layout.convolve(module.layer_idx, before * x, module.conv.weight[:, 0], module.conv.bias)
    return module.out_proj((after * output)[None])
