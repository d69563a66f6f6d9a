"""The choice of tokens on a GPU: one pass over the logits, then a look into the one part where the token lies.

The same distribution as `sampling.choose` gives where nothing is left out, found by the same inversion. Tokens are
chosen by logits with a bias, and their log-probabilities are those without. It never waits for the device, so it can be
captured.
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
    """Logits with the bias of this number; 0 is none."""
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
    # At 1 and without a bias the sum is the one above, and at 0 no one asks for it.
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
    found,
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
    # Each part was summed below its own maximum; here all are brought below the maximum of the row.
    masses = tl.load(heated + entries, mask=inside, other=0.0) * tl.exp((high - most) / heat)
    # Where the distribution function reaches the random number: first among the parts, then inside one.
    # In float64: near 1, a running sum in float32 no longer changes by a token of small probability.
    ends = tl.cumsum(masses.to(tl.float64), 0)
    wanted = tl.load(uniform + row) * tl.max(ends, 0)
    part = tl.minimum(tl.sum((ends <= wanted).to(tl.int32), 0), parts - 1)
    before = tl.sum(tl.where(at == part - 1, ends, 0.0), 0)
    token = part * PART + column
    value = tl.load(logits + row * vocabulary + token, mask=token < vocabulary, other=float("-inf")).to(tl.float32)
    value = _biased(value, biases, number, token, vocabulary)
    each = tl.exp((value - most) / heat).to(tl.float64)
    place = tl.sum((tl.cumsum(each, 0) <= wanted - before).to(tl.int32), 0)
    # Rounding may put the number just behind the part's last token; never choose one without any probability.
    last = tl.max(tl.where(each > 0, column, 0), 0)
    drawn = part * PART + tl.minimum(place, last)
    likeliest = tl.load(best + row * parts + tl.argmax(high, 0))
    chosen = tl.where(greedy, likeliest, drawn)
    logprob = tl.load(logits + row * vocabulary + chosen).to(tl.float32) - total
    tl.store(found + row, chosen.to(tl.float64))
    tl.store(found + rows + row, logprob.to(tl.float64))


def pick(logits: Tensor, temperature: Tensor, uniform: Tensor, biases: Tensor, bias: Tensor) -> Tensor:
    """(2, rows): one token per row, the best one at temperature 0, and its log-probability; all numbers are float64.

    `bias` says which of the biases is added to a row, counted from 1; 0 is none.
    """
    rows, vocabulary = logits.shape
    parts = triton.cdiv(vocabulary, _PART)
    highest, mass, tops, heated = torch.empty(4, rows, parts, device=logits.device, dtype=torch.float32).unbind()
    best = torch.empty(rows, parts, dtype=torch.int32, device=logits.device)
    found = torch.empty(2, rows, dtype=torch.float64, device=logits.device)
    summary = (highest, mass, tops, best, heated)
    _summarise[(rows, parts)](logits, temperature, biases, bias, *summary, vocabulary, parts, PART=_PART)
    _draw[(rows,)](
        logits,
        temperature,
        uniform,
        biases,
        bias,
        *summary,
        found,
        vocabulary,
        parts,
        rows,
        PARTS=triton.next_power_of_2(parts),
        PART=_PART,
    )
    return found
