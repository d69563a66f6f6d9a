"""The body of one decoding step on a GPU: a token of each slot through all layers, with as few kernels as possible.

Up to so many rows every product takes its norm, gate or addition along (`decode_kernels`); beyond, torch's are faster.
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
from .decode_kernels import MOST_ROWS, FewRows, Room
from .early import launch_early
from .kernels import Gate, Norm

# Triton kernels for the attention of one decoding step: norms and rotations of queries and keys included.
#
# A step reads all keys and values once, which takes as long as memory takes to deliver them. Slots with the same
# prompt therefore read it in one place. Where most prompts are shared, a kernel before attends to the prompts, several
# slots at a time.


@triton.jit
def _norm_and_rotate(start, weight, cosine, sine, column, partner, mask, eps, NORM: tl.constexpr, WIDTH: tl.constexpr):
    """Some heads, normed and rotated; `sine` has the sign that goes with the other half."""
    value = tl.load(start + column, mask=mask, other=0.0).to(tl.float32)
    other = tl.load(start + partner, mask=mask, other=0.0).to(tl.float32)
    if NORM:
        scale = (1.0 / tl.sqrt(tl.sum(value * value, 1) / WIDTH + eps))[:, None]
        value *= scale * tl.load(weight + column).to(tl.float32)
        other *= scale * tl.load(weight + partner).to(tl.float32)
    return value * cosine + other * sine


@triton.jit
def _more(query, keys, values, block, seen, scale, most, total, mixed):
    """The running softmax after a block of keys."""
    key = tl.load(keys + block, mask=seen[:, None], other=0.0)
    score = tl.where(seen[None, :], tl.dot(query, tl.trans(key)) * scale, float("-inf"))
    # Online softmax: what was summed so far is rescaled whenever a larger score comes, so nothing can overflow.
    highest = tl.maximum(most, tl.max(score, 1))
    weight = tl.exp(score - highest[:, None])
    kept = tl.exp(most - highest)
    value = tl.load(values + block, mask=seen[:, None], other=0.0)
    mixed = mixed * kept[:, None] + tl.dot(weight.to(value.dtype), value)
    return highest, total * kept + tl.sum(weight, 1), mixed


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
    found,
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
    # The first of as many slots as have room in a block of queries reads the prompt for all of them.
    if before % (ROWS // GROUP) == 0:
        number = tl.cumsum(alike.to(tl.int32)) - 1
        chosen = alike[None, :] & (number[None, :] == (before + row // GROUP)[:, None])
        member = tl.sum(tl.where(chosen, each[None, :], 0), 1).to(tl.int64)[:, None]
        own = (tl.sum(chosen.to(tl.int32), 1) > 0)[:, None] & (row < ROWS // GROUP * GROUP)[:, None]
        half: tl.constexpr = WIDTH // 2
        partner = (column + half) % WIDTH
        cosine = tl.load(cos + member * WIDTH + column).to(tl.float32)
        sine = tl.load(sin + member * WIDTH + column).to(tl.float32) * tl.where(column < half, -1.0, 1.0)
        start = qkv + (member * (GROUP + 2) * K + head * GROUP + row[:, None] % GROUP) * WIDTH
        query = _norm_and_rotate(start, q_weight, cosine, sine, column, partner, own, eps, NORM, WIDTH).to(
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
        tl.store(found + place * WIDTH + column, mixed, mask=own)
        tl.store(sums + 2 * place, most[:, None], mask=own)
        tl.store(sums + 2 * place + 1, total[:, None], mask=own)


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
    found,
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
    # A rotation mixes column i with column i + half, so that both are loaded; the sign is in the sine.
    partner = (column + half) % WIDTH
    cosine = tl.load(cos + slot * WIDTH + column).to(tl.float32)
    sine = tl.load(sin + slot * WIDTH + column).to(tl.float32) * tl.where(column < half, -1.0, 1.0)
    # All queries of one key head go through one program, so that its keys and values are read once for the whole group.
    token = qkv + slot * (GROUP + 2) * K * WIDTH
    own = (row < GROUP)[:, None]
    start = token + (head * GROUP + row)[:, None] * WIDTH
    query = _norm_and_rotate(start, q_weight, cosine, sine, column, partner, own, eps, NORM, WIDTH).to(
        keys.dtype.element_ty
    )
    one = tl.arange(0, 1)[:, None]
    start = token + (GROUP * K + head + one) * WIDTH
    new_key = _norm_and_rotate(start, k_weight, cosine, sine, column, partner, one == 0, eps, NORM, WIDTH)
    new_key = new_key.to(keys.dtype.element_ty)
    new_value = tl.load(token + ((GROUP + 1) * K + head) * WIDTH + column)
    cache = slot * slot_stride + head * head_stride
    tl.store(keys + cache + position * WIDTH + column, new_key)
    tl.store(values + cache + position * WIDTH + column, new_value)
    # The token itself is not read back from the cache: it begins the running softmax.
    most = tl.sum(query.to(tl.float32) * new_key.to(tl.float32), 1) * scale
    total = tl.full([ROWS], 1.0, tl.float32)
    mixed = tl.zeros([ROWS, WIDTH], tl.float32) + new_value.to(tl.float32)
    # A place that had to be chosen key by key could not be read ahead, so there are two loops.
    home = tl.load(homes + slot) * slot_stride + head * head_stride
    in_home = tl.load(shared + slot)
    # What lies before the window is not even read.
    first = tl.maximum(position - window + 1, 0)
    if PROMPTS:
        place = (slot * GROUP * K + head * GROUP + row)[:, None]
        before = tl.load(sums + 2 * place, mask=own, other=float("-inf"))
        highest = tl.maximum(most[:, None], before)
        kept, share = tl.exp(most[:, None] - highest), tl.exp(before - highest)
        mixed = mixed * kept + tl.load(of_prompts + place * WIDTH + column, mask=own, other=0.0) * share
        total = tl.sum(total[:, None] * kept + tl.load(sums + 2 * place + 1, mask=own, other=0.0) * share, 1)
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
    target = found + (slot * GROUP * K + head * GROUP + row)[:, None] * WIDTH + column
    tl.store(target, (mixed / total[:, None]).to(found.dtype.element_ty), mask=own)


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
    """One token of each slot on all that the slot holds, (slots, heads * width); its key and value enter the cache.

    `where` has the position of each token, and the slot from which how many of its first positions are read. With
    `prompts`, these are read for several slots at a time.
    """
    keys, values = cache
    K, width = keys.shape[1], keys.shape[3]
    group = heads // K
    rows = max(16, triton.next_power_of_2(group))  # `tl.dot` takes no fewer than 16
    found = qkv.new_empty(len(qkv), heads * width)
    keys_at_once, warps, stages = _plan(len(qkv))
    prompts = prompts and traits.window is None
    early, scale = launch_early(qkv.device), width**-0.5 if traits.scale is None else traits.scale
    of_prompts, sums = found, found
    if prompts:
        of_prompts = torch.empty(found.shape, device=qkv.device, dtype=torch.float32)
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
        found,
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
    return found


def _plan(slots: int) -> tuple[int, int, int]:
    """Keys at once, warps and stages: what was fastest on an H200 for heads of 128."""
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
    """The last hidden state of one token per slot.

    `where` has the position of each token, and the slot from which how many of its first positions are read. `bank` has
    the adapters to apply, and the row of each slot in it. `prompts` says whether several slots share most prompts.
    """
    body: Any = base.body
    x = body.embed_tokens(tokens)
    cos, sin = (part[0].contiguous() for part in body.rotary_emb(x[None], position_ids=where[0][None]))
    first = layers[0].before_attention
    few = len(x) <= MOST_ROWS or bank is not None
    states: Any = FewRows(x, first, room, bank) if few else ManyRows(x, first)
    following = [*(layer.before_attention for layer in layers[1:]), body.norm]
    for layer, next_norm in zip(layers, following, strict=True):
        own = layer.attention
        norms = (own.q_norm, own.k_norm) if hasattr(own, "q_norm") else None
        qkv = states.times(layer.qkv)
        held = cache.layers[layer.traits.layer]
        found = attend(qkv, (cos, sin), norms, held, where, layer.traits, layer.sizes[0], prompts=prompts)
        states.add(found, layer.output, layer.before_gate)
        states.add(states.times(layer.gate_up, gate=True), layer.down, next_norm)
    return Norm.apply(states.x, body.norm.weight, body.norm.variance_epsilon)[0]


class ManyRows:
    """The states of many tokens on their way through the layers, as `FewRows` has those of a few."""

    # With many rows a product is bound by computing and no longer by memory: a separate norm costs little then.

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
