"""Sampling of tokens on a GPU: one pass over the logits, then a search in the part that contains the token.

Without top_k and top_p, the distribution is that of `sampling.lanes.choose`, with the same inversion. Logit biases
affect the choice of tokens but not the returned log-probabilities. It never waits for the device, so that it can be
captured in a graph.
"""

# pyright: basic, reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_PART = 2048


@triton.jit
def _biased(value, biases, number, at, vocabulary):
    """Add the logit bias with this number; 0 means none."""
    if number > 0:
        value += tl.load(biases + (number - 1).to(tl.int64) * vocabulary + at, mask=at < vocabulary, other=0.0)
    return value


@triton.jit
def _summarise(
    logits,
    temperature,
    biases,
    bias,
    highest,
    mass,
    tops,
    best,
    heated,
    vocabulary,
    parts,
    PART: tl.constexpr,
):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * PART + tl.arange(0, PART)
    value = tl.load(logits + row * vocabulary + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32)
    most = tl.max(value, 0)
    heat, number = tl.load(temperature + row).to(tl.float32), tl.load(bias + row)
    entry = row * parts + part
    tl.store(highest + entry, most)
    most = tl.maximum(most, -1e30)  # a part without any probability
    sum_ = tl.sum(tl.exp(value - most), 0)
    tl.store(mass + entry, sum_)
    value = _biased(value, biases, number, at, vocabulary)
    top = tl.max(value, 0)
    tl.store(tops + entry, top)
    tl.store(best + entry, part * PART + tl.argmax(value, 0))
    # At temperature 1 without a bias the sum is the one above, and at temperature 0 it is not needed.
    if ((heat != 0.0) & (heat != 1.0)) | (number > 0):
        sum_ = tl.sum(tl.exp((value - tl.maximum(top, -1e30)) / tl.where(heat == 0.0, 1.0, heat)), 0)
    tl.store(heated + entry, sum_)


@triton.jit
def _draw(
    logits,
    temperature,
    uniform,
    biases,
    bias,
    highest,
    mass,
    tops,
    best,
    heated,
    output,
    vocabulary,
    parts,
    rows,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at, column = tl.arange(0, PARTS), tl.arange(0, PART)
    entries, inside = row * parts + at, at < parts
    high = tl.load(highest + entries, mask=inside, other=float("-inf"))
    most = tl.max(high, 0)
    total = most + tl.log(tl.sum(tl.load(mass + entries, mask=inside, other=0.0) * tl.exp(high - most), 0))
    heat, number = tl.load(temperature + row).to(tl.float32), tl.load(bias + row)
    greedy = heat == 0.0
    heat = tl.where(greedy, 1.0, heat)
    high = tl.load(tops + entries, mask=inside, other=float("-inf"))
    most = tl.max(high, 0)
    # Each part was scaled by its own maximum; rescale all parts to the maximum of the row.
    masses = tl.load(heated + entries, mask=inside, other=0.0) * tl.exp((high - most) / heat)
    # Find where the distribution function reaches the random number: first among the parts, then inside one part.
    # In float64, because a float32 cumulative sum near 1 does not change by a token of small probability.
    ends = tl.cumsum(masses.to(tl.float64), 0)
    threshold = tl.load(uniform + row) * tl.max(ends, 0)
    part = tl.minimum(tl.sum((ends <= threshold).to(tl.int32), 0), parts - 1)
    before = tl.sum(tl.where(at == part - 1, ends, 0.0), 0)
    token = part * PART + column
    value = tl.load(logits + row * vocabulary + token, mask=token < vocabulary, other=float("-inf")).to(tl.float32)
    value = _biased(value, biases, number, token, vocabulary)
    each = tl.exp((value - most) / heat).to(tl.float64)
    place = tl.sum((tl.cumsum(each, 0) <= threshold - before).to(tl.int32), 0)
    # Rounding may place the number behind the part's last token; never choose a token with probability 0.
    last = tl.max(tl.where(each > 0, column, 0), 0)
    drawn = part * PART + tl.minimum(place, last)
    likeliest = tl.load(best + row * parts + tl.argmax(high, 0))
    chosen = tl.where(greedy, likeliest, drawn)
    logprob = tl.load(logits + row * vocabulary + chosen).to(tl.float32) - total
    tl.store(output + row, chosen.to(tl.float64))
    tl.store(output + rows + row, logprob.to(tl.float64))


def pick(logits: Tensor, temperature: Tensor, uniform: Tensor, biases: Tensor, bias: Tensor) -> Tensor:
    """Return (2, rows) in float64: one token per row, the best one at temperature 0, and its log-probability.

    `bias` is the number of the logit bias of each row, counted from 1; 0 means none.
    """
    rows, vocabulary = logits.shape
    parts = triton.cdiv(vocabulary, _PART)
    highest, mass, tops, heated = torch.empty(4, rows, parts, device=logits.device, dtype=torch.float32).unbind()
    best = torch.empty(rows, parts, dtype=torch.int32, device=logits.device)
    output = torch.empty(2, rows, dtype=torch.float64, device=logits.device)
    summary = (highest, mass, tops, best, heated)
    _summarise[(rows, parts)](logits, temperature, biases, bias, *summary, vocabulary, parts, PART=_PART)
    _draw[(rows,)](
        logits,
        temperature,
        uniform,
        biases,
        bias,
        *summary,
        output,
        vocabulary,
        parts,
        rows,
        PARTS=triton.next_power_of_2(parts),
        PART=_PART,
    )
    return output
