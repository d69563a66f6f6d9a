"""The weights of Llama, Mistral and Qwen joined into fewer and larger matrices, for the fused code.

Queries, keys and values become one matrix, and so do the two halves of the gated layer. The original weights become
views of the joined matrix, so that nothing is stored twice.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .attention import Traits
from .four_bit import FourBit
from .loading import Base
from .lora import Change
from .products import Product, can_pack


def prepare_layers(base: Base, changes: Mapping[str, Change]) -> list[Layer]:
    """Return the joined weights of all layers for a fused step."""
    size = sum(linear.weight.numel() * linear.weight.element_size() for linear in base.switch.layers.values())
    pack = can_pack(base.device, base.key.dtype, size)
    if base.packed_head is None and pack:
        base.packed_head = Product.of(base.head.weight, base.head.bias, pack=True)
    return [_layer(base, changes, number, pack=pack) for number in range(len(base.body.layers))]


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer for a fused step."""

    linears: dict[str, tuple[Any, ...]]
    """The linear layers that each product joins."""
    attention: Any
    before_attention: Any
    before_gate: Any
    qkv: Product
    sizes: tuple[int, int, int]
    output: Product
    gate_up: Product
    down: Product
    traits: Traits


def _layer(base: Base, changes: Mapping[str, Change], number: int, *, pack: bool) -> Layer:
    layer = base.body.layers[number]
    attention, mlp = layer.self_attn, layer.mlp
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    gates = [mlp.gate_proj, mlp.up_proj]
    window = getattr(attention, "sliding_window", None)
    # The attention of Mistral reads the window from the config at each call.
    if type(base.model).__name__ == "MistralForCausalLM":
        window = getattr(attention.config, "sliding_window", None)
    return Layer(
        {
            "qkv": tuple(projections),
            "output": (attention.o_proj,),
            "gate_up": (mlp.gate_proj, mlp.up_proj),
            "down": (mlp.down_proj,),
        },
        attention,
        layer.input_layernorm,
        layer.post_attention_layernorm,
        Product.of(_together(projections, changes), _biases(projections), pack=pack),
        tuple(linear.out_features // attention.head_dim for linear in projections),  # pyright: ignore[reportArgumentType]
        Product.of(_weight(attention.o_proj, changes), attention.o_proj.bias, pack=pack),
        Product.of(_together(gates, changes), _biases(gates), pack=pack),
        Product.of(_weight(mlp.down_proj, changes), mlp.down_proj.bias, pack=pack),
        Traits(attention.scaling, window, layer=number),
    )


def _biases(linears: Sequence[Any]) -> Tensor | None:
    return None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])


def _weight(linear: Any, changes: Mapping[str, Change]) -> Any:
    changed = changes.get(linear.name)
    return changed if isinstance(changed, Tensor) else linear.weight


def _together(linears: Sequence[Any], changes: Mapping[str, Change]) -> Any:
    """Concatenate the weights; the original weights become views of the result, so that nothing is stored twice."""
    weights = [_weight(linear, changes) for linear in linears]
    if any(isinstance(weight, FourBit) for weight in weights):
        return _four_bits_together(linears, weights)
    if (whole := _whole_of(weights)) is not None:
        return whole
    # Gradients pass through the base's own weights, so an inference tensor must not replace them.
    with torch.inference_mode(any(weight.is_inference() for weight in weights)), torch.no_grad():
        joined = torch.cat([weight.detach() for weight in weights])
    if len({isinstance(weight, nn.Parameter) for weight in weights}) > 1:
        return joined  # the adapter changes only some of them
    start = 0
    for linear, weight in zip(linears, weights, strict=True):
        weight.data = joined[start : start + linear.out_features]
        start += linear.out_features
    return joined


def _four_bits_together(linears: Sequence[Any], weights: Sequence[Any]) -> Any:
    """Do the same for four-bit weights."""
    joined, start = FourBit.cat(weights), 0
    for linear in linears:
        linear.weight = joined[start : start + linear.out_features]
        linear.switch.layers[linear.name] = replace(linear.switch.layers[linear.name], weight=linear.weight)
        start += linear.out_features
    return joined


def _whole_of(weights: Sequence[Tensor]) -> Tensor | None:
    """Return the tensor that holds these weights consecutively; None if there is none."""
    first, expected = weights[0], weights[0].data_ptr()
    for weight in weights:
        if weight.data_ptr() != expected or not weight.is_contiguous():
            return None
        expected += weight.numel() * weight.element_size()
    if expected - first.data_ptr() > first.untyped_storage().nbytes() - first.storage_offset() * first.element_size():
        return None  # adjacent by coincidence, in different allocations
    rows = sum(weight.shape[0] for weight in weights)
    return first.detach().as_strided((rows, first.shape[1]), (first.shape[1], 1), first.storage_offset())
