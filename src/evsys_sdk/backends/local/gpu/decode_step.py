"""The body of one decoding step on a GPU: a token of each slot through all layers, with as few kernels as possible.

Up to so many rows every product takes its norm, gate or addition along (`decode_kernels`); beyond, torch's are faster.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..base.fused_layers import Layer
from ..base.loading import Base
from ..sampling.decoding import KeyValueCache
from .decode_attention import attend
from .decode_kernels import MOST_ROWS, FewRows, Room
from .kernels import Gate, Norm


def read_tokens(
    base: Base,
    layers: Sequence[Layer],
    cache: KeyValueCache,
    room: Room,
    tokens: Tensor,
    where: tuple[Tensor, Tensor, Tensor],
) -> Tensor:
    """The last hidden state of one token per slot.

    `where` has the position of each token, and the slot from which how many of its first positions are read.
    """
    body: Any = base.body
    x = body.embed_tokens(tokens)
    cos, sin = (part[0].contiguous() for part in body.rotary_emb(x[None], position_ids=where[0][None]))
    first = layers[0].before_attention
    states = FewRows(x, first, room) if len(x) <= MOST_ROWS else ManyRows(x, first)
    following = [*(layer.before_attention for layer in layers[1:]), body.norm]
    for layer, next_norm in zip(layers, following, strict=True):
        own = layer.attention
        norms = (own.q_norm, own.k_norm) if hasattr(own, "q_norm") else None
        qkv = states.times(layer.qkv)
        held = cache.layers[layer.traits.layer]
        found = attend(qkv, (cos, sin), norms, held, where, layer.traits, layer.sizes[0])
        states.add(found, layer.output, layer.before_gate)
        states.add(states.times(layer.gate_up, gate=True), layer.down, next_norm)
    return Norm.apply(states.x, body.norm.weight, body.norm.variance_epsilon)[0]


class ManyRows:
    """The states of many tokens on their way through the layers, as `FewRows` has those of a few."""

    def __init__(self, x: Tensor, norm: Any) -> None:
        self.x, self._norm = x, norm

    def times(self, product: Any, *, gate: bool = False) -> Tensor:
        """The product of the normed states with a matrix; with `gate`, its first half gates the second."""
        normed, _ = Norm.apply(self.x, self._norm.weight, self._norm.variance_epsilon)
        found = F.linear(normed, product.weight, product.bias)
        return Gate.apply(found) if gate else found

    def add(self, x: Tensor, product: Any, norm: Any) -> None:
        """Add a product to the states; `norm` comes next."""
        add_product(self.x, x, product)
        self._norm = norm


def add_product(onto: Tensor, x: Tensor, product: Any) -> Tensor:
    """Add a product to a tensor, in place."""
    torch.addmm(onto, x, product.weight.T, out=onto)
    if product.bias is not None:
        onto += product.bias
    return onto
