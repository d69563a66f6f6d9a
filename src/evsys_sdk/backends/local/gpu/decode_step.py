"""The body of one decoding step on a GPU: one token per slot through all layers, with few kernels.

Up to `MOST_ROWS` rows, products are fused with norm, gate or addition (`decode_kernels`); above, torch's products are
faster.
"""

# pyright: basic, reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..base.fused_layers import Layer
from ..base.loading import Base
from ..sampling.decoding import KeyValueCache
from .bank_kernels import add_adapters
from .decode_kernels import MOST_ROWS, FewRows, Room
from .early import launch_early
from .kernels import Gate, Norm

# Triton kernels for the attention of one decoding step, fused with norm and rotation of queries and keys.
#
# Reading keys and values is bound by memory bandwidth. Slots with the same prompt therefore read it from one slot. If
# most prompts are shared, a separate kernel first attends to the prompts, several slots at a time.


@triton.jit
def _norm_and_rotate(start, weight, cosine, sine, column, partner, mask, eps, NORM: tl.constexpr, WIDTH: tl.constexpr):
    """Load some heads, normalize and rotate them; `sine` contains the sign for the other half."""
    value = tl.load(start + column, mask=mask, other=0.0).to(tl.float32)
    other = tl.load(start + partner, mask=mask, other=0.0).to(tl.float32)
    if NORM:
        scale = (1.0 / tl.sqrt(tl.sum(value * value, 1) / WIDTH + eps))[:, None]
        value *= scale * tl.load(weight + column).to(tl.float32)
        other *= scale * tl.load(weight + partner).to(tl.float32)
    return value * cosine + other * sine


@triton.jit
def _more(query, keys, values, block, visible, scale, most, total, mixed):
    """Update the online softmax with a block of keys."""
    key = tl.load(keys + block, mask=visible[:, None], other=0.0)
    score = tl.where(visible[None, :], tl.dot(query, tl.trans(key)) * scale, float("-inf"))
    # Online softmax: rescale the sums to the new maximum, so that nothing overflows.
    highest = tl.maximum(most, tl.max(score, 1))
    weight = tl.exp(score - highest[:, None])
    rescale = tl.exp(most - highest)
    value = tl.load(values + block, mask=visible[:, None], other=0.0)
    mixed = mixed * rescale[:, None] + tl.dot(weight.to(value.dtype), value)
    return highest, total * rescale + tl.sum(weight, 1), mixed


@triton.jit
def _attend_prompts(
    qkv,
    q_weight,
    cos,
    sin,
    keys,
    values,
    homes,
    shared,
    output,
    sums,
    scale,
    eps,
    slot_stride,
    head_stride,
    K,
    slots,
    NORM: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SLOTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    slot, head = tl.program_id(0), tl.program_id(1)
    row, column = tl.arange(0, ROWS), tl.arange(0, WIDTH)[None, :]
    each = tl.arange(0, SLOTS)
    home = tl.load(homes + slot)
    alike = tl.load(homes + each, mask=each < slots, other=-1) == home
    before = tl.sum((alike & (each < slot)).to(tl.int32))
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    # The first slot of each group that fits into a block of queries reads the prompt for the whole group.
    if before % (ROWS // GROUP) == 0:
        number = tl.cumsum(alike.to(tl.int32)) - 1
        chosen = alike[None, :] & (number[None, :] == (before + row // GROUP)[:, None])
        member = tl.sum(tl.where(chosen, each[None, :], 0), 1).to(tl.int64)[:, None]
        valid = (tl.sum(chosen.to(tl.int32), 1) > 0)[:, None] & (row < ROWS // GROUP * GROUP)[:, None]
        half: tl.constexpr = WIDTH // 2
        partner = (column + half) % WIDTH
        cosine = tl.load(cos + member * WIDTH + column).to(tl.float32)
        sine = tl.load(sin + member * WIDTH + column).to(tl.float32) * tl.where(column < half, -1.0, 1.0)
        start = qkv + (member * (GROUP + 2) * K + head * GROUP + row[:, None] % GROUP) * WIDTH
        query = _norm_and_rotate(start, q_weight, cosine, sine, column, partner, valid, eps, NORM, WIDTH).to(
            keys.dtype.element_ty
        )
        most = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, WIDTH], tl.float32)
        length = tl.load(shared + slot)
        from_home = home.to(tl.int64) * slot_stride + head * head_stride
        for begin in range(0, length, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            block = from_home + at[:, None] * WIDTH + column
            most, total, mixed = _more(query, keys, values, block, at < length, scale, most, total, mixed)
        place = member * GROUP * K + head * GROUP + row[:, None] % GROUP
        tl.store(output + place * WIDTH + column, mixed, mask=valid)
        tl.store(sums + 2 * place, most[:, None], mask=valid)
        tl.store(sums + 2 * place + 1, total[:, None], mask=valid)


@triton.jit
def _attend(
    qkv,
    q_weight,
    k_weight,
    cos,
    sin,
    keys,
    values,
    positions,
    homes,
    shared,
    output,
    of_prompts,
    sums,
    scale,
    eps,
    window,
    slot_stride,
    head_stride,
    K,
    NORM: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PROMPTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    slot, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + slot)
    row, column = tl.arange(0, ROWS), tl.arange(0, WIDTH)[None, :]
    half: tl.constexpr = WIDTH // 2
    # The rotation mixes column i with column i + half, so both are loaded; `sine` contains the sign.
    partner = (column + half) % WIDTH
    cosine = tl.load(cos + slot * WIDTH + column).to(tl.float32)
    sine = tl.load(sin + slot * WIDTH + column).to(tl.float32) * tl.where(column < half, -1.0, 1.0)
    # One program computes all queries of a key head, so that its keys and values are read once.
    token = qkv + slot * (GROUP + 2) * K * WIDTH
    valid = (row < GROUP)[:, None]
    start = token + (head * GROUP + row)[:, None] * WIDTH
    query = _norm_and_rotate(start, q_weight, cosine, sine, column, partner, valid, eps, NORM, WIDTH).to(
        keys.dtype.element_ty
    )
    zero = tl.arange(0, 1)[:, None]
    start = token + (GROUP * K + head + zero) * WIDTH
    new_key = _norm_and_rotate(start, k_weight, cosine, sine, column, partner, zero == 0, eps, NORM, WIDTH)
    new_key = new_key.to(keys.dtype.element_ty)
    new_value = tl.load(token + ((GROUP + 1) * K + head) * WIDTH + column)
    cache = slot * slot_stride + head * head_stride
    tl.store(keys + cache + position * WIDTH + column, new_key)
    tl.store(values + cache + position * WIDTH + column, new_value)
    # The softmax starts with the token itself, which is not read back from the cache.
    most = tl.sum(query.to(tl.float32) * new_key.to(tl.float32), 1) * scale
    total = tl.full([ROWS], 1.0, tl.float32)
    mixed = tl.zeros([ROWS, WIDTH], tl.float32) + new_value.to(tl.float32)
    # Two loops, because choosing the slot for each key would prevent prefetching.
    home = tl.load(homes + slot) * slot_stride + head * head_stride
    in_home = tl.load(shared + slot)
    # Keys before the window are not read.
    first = tl.maximum(position - window + 1, 0)
    if PROMPTS:
        place = (slot * GROUP * K + head * GROUP + row)[:, None]
        before = tl.load(sums + 2 * place, mask=valid, other=float("-inf"))
        highest = tl.maximum(most[:, None], before)
        rescale, share = tl.exp(most[:, None] - highest), tl.exp(before - highest)
        mixed = mixed * rescale + tl.load(of_prompts + place * WIDTH + column, mask=valid, other=0.0) * share
        total = tl.sum(total[:, None] * rescale + tl.load(sums + 2 * place + 1, mask=valid, other=0.0) * share, 1)
        most = tl.sum(highest, 1)
    else:
        for begin in range(first, in_home, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            block = home + at[:, None] * WIDTH + column
            most, total, mixed = _more(query, keys, values, block, at < in_home, scale, most, total, mixed)
    for begin in range(tl.maximum(first, in_home), position, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        block = cache + at[:, None] * WIDTH + column
        most, total, mixed = _more(query, keys, values, block, at < position, scale, most, total, mixed)
    target = output + (slot * GROUP * K + head * GROUP + row)[:, None] * WIDTH + column
    tl.store(target, (mixed / total[:, None]).to(output.dtype.element_ty), mask=valid)


def attend(
    qkv: Tensor,
    turn: tuple[Tensor, Tensor],
    norms: tuple[Any, Any] | None,
    cache: tuple[Tensor, Tensor],
    where: tuple[Tensor, Tensor, Tensor],
    traits: Any,
    heads: int,
    *,
    prompts: bool = False,
) -> Tensor:
    """Attend with one token per slot to the slot, (slots, heads * width), and store its key and value in the cache.

    `where` holds the position of each token, the slot to read its first positions from, and the number of these. With
    `prompts`, they are read for several slots at a time.
    """
    keys, values = cache
    K, width = keys.shape[1], keys.shape[3]
    group = heads // K
    rows = max(16, triton.next_power_of_2(group))  # `tl.dot` needs at least 16
    output = qkv.new_empty(len(qkv), heads * width)
    keys_at_once, warps, stages = _plan(len(qkv))
    prompts = prompts and traits.window is None
    early, scale = launch_early(qkv.device), width**-0.5 if traits.scale is None else traits.scale
    of_prompts, sums = output, output
    if prompts:
        of_prompts = torch.empty(output.shape, device=qkv.device, dtype=torch.float32)
        sums = of_prompts.new_empty(len(qkv), heads, 2)
        _attend_prompts[(len(qkv), K)](
            qkv,
            qkv if norms is None else norms[0].weight,
            *turn,
            keys,
            values,
            *where[1:],
            of_prompts,
            sums,
            scale,
            0.0 if norms is None else norms[0].variance_epsilon,
            keys.stride(0),
            keys.stride(1),
            K,
            len(qkv),
            NORM=norms is not None,
            GROUP=group,
            ROWS=rows,
            WIDTH=width,
            BLOCK=64,
            SLOTS=triton.next_power_of_2(len(qkv)),
            num_warps=4,
            num_stages=3,
            **early,
        )
    _attend[(len(qkv), K)](
        qkv,
        qkv if norms is None else norms[0].weight,
        qkv if norms is None else norms[1].weight,
        *turn,
        keys,
        values,
        *where,
        output,
        of_prompts,
        sums,
        scale,
        0.0 if norms is None else norms[0].variance_epsilon,
        traits.window or 1 << 30,  # no window: longer than any text
        keys.stride(0),
        keys.stride(1),
        K,
        NORM=norms is not None,
        GROUP=group,
        ROWS=rows,
        WIDTH=width,
        BLOCK=keys_at_once,
        PROMPTS=prompts,
        num_warps=warps,
        num_stages=stages,
        **early,
    )
    return output


def _plan(slots: int) -> tuple[int, int, int]:
    """Return keys per block, warps and stages: the fastest on an H200 for heads of 128."""
    if slots <= 32:
        return 64, 4, 3
    return (32, 2, 3) if slots <= 64 else (32, 2, 4)


def read_tokens(
    base: Base,
    layers: Sequence[Layer],
    cache: KeyValueCache,
    room: Room,
    tokens: Tensor,
    where: tuple[Tensor, Tensor, Tensor],
    bank: tuple[Any, Tensor] | None = None,
    *,
    prompts: bool = False,
) -> Tensor:
    """Compute the last hidden state of one token per slot.

    `where` holds the position of each token, the slot to read its first positions from, and the number of these. `bank`
    holds the adapters and the bank row of each slot. `prompts` means that several slots share most prompts.
    """
    body: Any = base.body
    x = body.embed_tokens(tokens)
    cos, sin = (part[0].contiguous() for part in body.rotary_emb(x[None], position_ids=where[0][None]))
    first = layers[0].before_attention
    most = MOST_ROWS if bank is None else 2 * MOST_ROWS
    states: Any = FewRows(x, first, room, bank) if len(x) <= most else ManyRows(x, first, bank)
    following = [*(layer.before_attention for layer in layers[1:]), body.norm]
    for layer, next_norm in zip(layers, following, strict=True):
        attention = layer.attention
        norms = (attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else None
        qkv = states.times(layer.qkv)
        cached = cache.layers[layer.traits.layer]
        output = attend(qkv, (cos, sin), norms, cached, where, layer.traits, layer.sizes[0], prompts=prompts)
        states.add(output, layer.output, layer.before_gate)
        states.add(states.times(layer.gate_up, gate=True), layer.down, next_norm)
    return Norm.apply(states.x, body.norm.weight, body.norm.variance_epsilon)[0]


class ManyRows:
    """The hidden states of many tokens; the counterpart of `FewRows`."""

    # With many rows, products are bound by compute, not by memory, so a separate norm costs little.

    def __init__(self, x: Tensor, norm: Any, bank: tuple[Any, Tensor] | None = None) -> None:
        self.x, self._norm, self._bank = x, norm, bank

    def times(self, product: Any, *, gate: bool = False) -> Tensor:
        """Multiply the normalized states by a matrix; with `gate`, its first half gates the second."""
        normed, _ = Norm.apply(self.x, self._norm.weight, self._norm.variance_epsilon)
        output = F.linear(normed, product.weight, product.bias)
        self._add_adapters(product, normed, output)
        return Gate.apply(output) if gate else output

    def add(self, x: Tensor, product: Any, norm: Any) -> None:
        """Add a product to the states; `norm` is the next norm."""
        add_product(self.x, x, product)
        self._add_adapters(product, x, self.x)
        self._norm = norm

    def _add_adapters(self, product: Any, x: Tensor, onto: Tensor) -> None:
        if self._bank is not None:
            bank, owners = self._bank
            add_adapters(bank, product, x, onto, owners)


def add_product(onto: Tensor, x: Tensor, product: Any) -> Tensor:
    """Add a product to a tensor, in place."""
    torch.addmm(onto, x, product.weight.T, out=onto)
    if product.bias is not None:
        onto += product.bias
    return onto
