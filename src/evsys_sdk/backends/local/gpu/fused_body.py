"""The fused body of Llama, Mistral and Qwen on a GPU: large products, with one kernel for the operations between two.

Training, scoring and prefill use it in bfloat16. On other devices, in float32 and with dropout, the model's own modules
run. Each base is compared once with its own modules, which are used if the results differ.

    hidden = hidden_of(base, adapter.parts(), tokens, positions, layout)      # (T, hidden)
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..base.attention import PackedLayout, Segment, Traits, has_varlen
from ..base.families import FUSED
from ..base.four_bit import FourBit
from ..base.fused_layers import Layer, prepare_layers
from ..base.loading import Base
from ..base.lora import Change, LoRAPart, StackedPart
from ..base.lora_products import AddLoRA, Frozen
from ..base.probing import agrees
from ..training.recompute import recompute_layers, run_again

type Linear = Callable[[Layer, str, Tensor, Tensor | None], Tensor]
"""(layer, name of the product, rows, tensor to add to or None) -> result."""
type Attend = Callable[[Tensor, Tensor, Tensor, Traits], Tensor]

_TRIED_TOKENS = 8


def hidden_of(
    base: Base,
    changes: Mapping[str, Change],
    tokens: Tensor,
    positions: Tensor,
    layout: PackedLayout,
    *,
    recompute: bool = False,
) -> Tensor:
    """Return the last hidden state of each token of a row, with these changes of the base."""
    can_be_fused = all(
        isinstance(change, StackedPart) or (isinstance(change, LoRAPart) and not change.dropout)
        for change in changes.values()
    )
    layers = gpu_layers(base) if can_be_fused else None
    if layers is not None:
        return run_body(base, layers, add_adapter(changes), tokens, positions, layout.attend_rows, recompute=recompute)
    with base.switch.using(changes), recompute_layers(base, changes) if recompute else contextlib.nullcontext():
        return base.hidden(tokens, positions, layout)


def gpu_layers(base: Base) -> Sequence[Layer] | None:
    """Return the layers for the fused body; None if the base does not support it."""
    if base.gpu_layers is None:
        base.gpu_layers = _try_out(base)
    return base.gpu_layers or None


def run_body(
    base: Base,
    layers: Sequence[Layer],
    linear: Linear,
    tokens: Tensor,
    positions: Tensor,
    attend: Attend,
    *,
    recompute: bool = False,
) -> Tensor:
    """Compute all layers and the final norm."""
    from .kernels import Norm

    body: Any = base.body
    x = body.embed_tokens(tokens)
    cos, sin = (part[0].contiguous() for part in body.rotary_emb(x[None], position_ids=positions[None]))
    for layer in layers:
        inputs = (layer, linear, attend, x, cos, sin)
        x = run_again(_run_layer, *inputs) if recompute else _run_layer(*inputs)
    return Norm.apply(x, body.norm.weight, body.norm.variance_epsilon)[0]


def _run_layer(layer: Layer, linear: Linear, attend: Attend, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    from .kernels import Gate, Heads, Norm

    attention = layer.attention
    norms = (attention.q_norm.weight, attention.k_norm.weight) if hasattr(attention, "q_norm") else (None, None)
    eps = attention.q_norm.variance_epsilon if hasattr(attention, "q_norm") else 0.0
    h, x = Norm.apply(x, layer.before_attention.weight, layer.before_attention.variance_epsilon)
    qkv = linear(layer, "qkv", h, None)
    q, k, v = Heads.apply(qkv, cos, sin, *norms, (layer.sizes[0], layer.sizes[1], attention.head_dim, eps))
    output = attend(q, k, v, layer.traits)
    x = linear(layer, "output", output.reshape(len(x), -1), x)
    h, x = Norm.apply(x, layer.before_gate.weight, layer.before_gate.variance_epsilon)
    return linear(layer, "down", Gate.apply(linear(layer, "gate_up", h, None)), x)


def plain(layer: Layer, which: str, x: Tensor, onto: Tensor | None) -> Tensor:
    """Compute a product with the base weights."""
    product = getattr(layer, which)
    if isinstance(product.weight, FourBit):
        output = Frozen.apply(x, product.weight, product.bias)
        return output if onto is None else onto + output
    if onto is None:
        return F.linear(x, product.weight, product.bias)
    output = torch.addmm(onto, x, product.weight.T)
    return output if product.bias is None else output + product.bias


def add_adapter(changes: Mapping[str, Change]) -> Linear:
    """Return a `Linear` that adds the parts of adapters to the products."""

    def linear(layer: Layer, which: str, x: Tensor, onto: Tensor | None) -> Tensor:
        rows: list[tuple[int, int]] = []
        matrices: list[Tensor] = []
        scale, start = 1.0, 0
        for single in layer.linears[which]:
            if isinstance(part := changes.get(single.name), LoRAPart | StackedPart):
                rows.append((start, start + single.out_features))
                matrices += [part.a, part.b]
                scale = part.scale
            start += single.out_features
        if not matrices:
            return plain(layer, which, x, onto)
        product = getattr(layer, which)
        return AddLoRA.apply(x, onto, product.weight, product.bias, scale, rows, *matrices)

    return linear


def _try_out(base: Base) -> Sequence[Layer] | bool:
    """Return the layers if the fused body is supported and agrees with the model's own modules, otherwise False."""
    if base.device.type != "cuda" or base.key.dtype != torch.bfloat16 or type(base.model).__name__ not in FUSED:
        return False
    attention = base.body.layers[0].self_attn  # pyright: ignore[reportIndexIssue]
    width, has_tools = attention.head_dim, importlib.util.find_spec("triton") is not None and has_varlen()
    # The kernels load a whole head, and the length of a range in Triton must be a power of two.
    if not has_tools or width & (width - 1) or getattr(base.body.config, "hidden_act", "silu") != "silu":
        return False
    layers: list[Layer] = []

    def compute() -> tuple[Tensor, Tensor]:
        with torch.inference_mode(False):  # gradients pass through these weights
            layers.extend(prepare_layers(base, {}))
        return _both(base, layers)

    return layers if agrees(base, "body", compute) else False


def _both(base: Base, layers: Sequence[Layer]) -> tuple[Tensor, Tensor]:
    """Return the logits of the fused body and of the model's own modules for a few segments with a shared prefix."""
    tokens = torch.arange(_TRIED_TOKENS, device=base.device) * 11 % base.vocab_size
    segments = [Segment(0, 4), Segment(4, 2, 0, 4), Segment(6, 2, 0, 4)]
    positions = torch.tensor([0, 1, 2, 3, 4, 5, 4, 5], device=base.device)
    fused = run_body(base, layers, plain, tokens, positions, PackedLayout(segments).attend_rows)
    reference = base.hidden(tokens, positions, PackedLayout(segments))
    return base.head.logits(fused), base.head.logits(reference)
