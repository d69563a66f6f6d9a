"""A faster decoder for Llama, Mistral and Qwen: fewer and larger products, without the overhead of modules.

Queries, keys and values are one product, and so are the two halves of the gated layer. The original weights are views
of the joined ones, so nothing is stored twice. Each base is compared once with the plain decoder, which is used if the
results differ.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..base.attention import PackedLayout, Traits
from ..base.families import FUSED
from ..base.fused_layers import Layer, prepare_layers
from ..base.loading import Base
from ..base.lora import Change
from ..base.probing import agrees, decode_texts
from ..gpu.graph_decoding import graph_decoder
from .decoding import StepLayout, TokenDecoder
from .snapshot import Snapshot


def make_decoder(base: Base, snapshot: Snapshot) -> TokenDecoder:
    """Return the fastest decoder that works for a base and a snapshot; the snapshot caches the prepared weights."""
    if (decoder := graph_decoder(base, snapshot)) is not None:
        return decoder
    changes = snapshot.changes()
    separate = any(not isinstance(change, Tensor) for change in changes.values())
    if separate or base.key.four_bit or not _can_fuse(base):
        return TokenDecoder(base, changes)
    if snapshot.prepared is None:
        snapshot.prepared = prepare_layers(base, changes)
    return FusedDecoder(base, changes, snapshot.prepared)


class FusedDecoder(TokenDecoder):
    """A decoder that computes the body of the model with joined weights."""

    def __init__(self, base: Base, changes: Mapping[str, Change], layers: Sequence[Layer]) -> None:
        super().__init__(base, changes)
        self._layers = layers

    def _logits(self, hidden: Tensor) -> Tensor:
        head = self.base.packed_head
        return super()._logits(hidden) if head is None else head(hidden).float()

    def _hidden(self, tokens: Tensor, positions: Tensor, layout: PackedLayout | StepLayout) -> Tensor:
        body: Any = self.base.body
        x = body.embed_tokens(tokens.to(self.base.device))
        cos, sin = (part[0][:, None] for part in body.rotary_emb(x[None], position_ids=positions[None].to(x.device)))
        half = cos.shape[-1] // 2
        sin = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        for layer in self._layers:
            h = _norm(x, layer.before_attention)
            qkv = layer.qkv(h).view(len(x), -1, layer.attention.head_dim)
            queries, keys, _ = layer.sizes
            turned, v = qkv[:, : queries + keys], qkv[:, queries + keys :]
            if hasattr(layer.attention, "q_norm"):
                q, k = turned.split([queries, keys], dim=1)
                turned = torch.cat([_norm(q, layer.attention.q_norm), _norm(k, layer.attention.k_norm)], dim=1)
            # The rotation mixes column i with column i + half; `sin` contains the sign.
            turned = torch.addcmul(turned * cos, turned.roll(half, dims=-1), sin)
            output = _attend(layout, turned[:, :queries], turned[:, queries:], v, layer.traits)
            x = layer.output(output, x)
            gate, up = layer.gate_up(_norm(x, layer.before_gate)).chunk(2, dim=-1)
            x = layer.down(F.silu(gate) * up, x)
        return _norm(x, body.norm)


def _attend(layout: PackedLayout | StepLayout, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor:
    if isinstance(layout, StepLayout):
        return layout.attend_tokens(query, key, value, traits)
    output = layout.attend(query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), traits)
    return output.transpose(0, 1).reshape(len(query), -1)


def _norm(x: Tensor, module: Any) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), module.weight, module.variance_epsilon)


def _can_fuse(base: Base) -> bool:
    if base.fusible is None:
        is_silu = getattr(getattr(base.body, "config", None), "hidden_act", "silu") == "silu"
        base.fusible = is_silu and type(base.model).__name__ in FUSED and agrees(base, "decoder", lambda: _both(base))
    return bool(base.fusible)


@torch.inference_mode()
def _both(base: Base) -> tuple[Tensor, Tensor]:
    """Return the logits of the fused and of the plain decoder."""
    return decode_texts(base, FusedDecoder(base, {}, prepare_layers(base, {}))), decode_texts(
        base, TokenDecoder(base, {})
    )
