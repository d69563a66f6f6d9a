"""The choice of tokens on a GPU: one pass over the logits, then a look into the one part where the token lies.

The same distribution as `sampling.choose` gives where nothing is left out, found by the same inversion. It never waits
for the device, so it can be captured.
"""

# pyright: basic, reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_PART = 1024


@triton.jit
def _summarise(logits, temperature, highest, best, mass, heated, vocabulary, parts, PART: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * PART + tl.arange(0, PART)
    value = tl.load(logits + row * vocabulary + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32)
    most = tl.max(value, 0)
    heat = tl.load(temperature + row)
    heat = tl.where(heat == 0.0, 1.0, heat)
    here = row * parts + part
    tl.store(highest + here, most)
    tl.store(best + here, part * PART + tl.argmax(value, 0))
    tl.store(mass + here, tl.sum(tl.exp(value - most), 0))
    tl.store(heated + here, tl.sum(tl.exp((value - most) / heat), 0))


def pick(logits: Tensor, temperature: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """One token per row, the best one at temperature 0, and its log-probability; `uniform` is float64."""
    rows, vocabulary = logits.shape
    parts = triton.cdiv(vocabulary, _PART)
    highest, mass, heated = torch.empty(3, rows, parts, device=logits.device).unbind()
    best = torch.empty(rows, parts, dtype=torch.int64, device=logits.device)
    _summarise[(rows, parts)](logits, temperature, highest, best, mass, heated, vocabulary, parts, PART=_PART)
    most, part_of_best = highest.max(dim=1, keepdim=True)
    total = most + (mass * (highest - most).exp()).sum(dim=1, keepdim=True).log()
    heat = torch.where(temperature == 0, 1.0, temperature)[:, None]
    masses = (heated * ((highest - most) / heat).exp()).double()
    drawn = _inverse(logits, masses, most, heat, uniform[:, None])
    chosen = torch.where(temperature[:, None] == 0, best.gather(1, part_of_best), drawn)
    return chosen[:, 0], (logits.gather(1, chosen).float() - total)[:, 0]


def _inverse(logits: Tensor, masses: Tensor, most: Tensor, heat: Tensor, uniform: Tensor) -> Tensor:
    """Where the distribution function reaches `uniform`: first among the parts, then inside one."""
    ends = masses.cumsum(dim=1)
    wanted = uniform * ends[:, -1:]
    part = torch.searchsorted(ends, wanted, right=True).clamp_max(ends.shape[1] - 1)
    before = torch.where(part > 0, ends.gather(1, (part - 1).clamp_min(0)), 0.0)
    column = torch.arange(_PART, device=logits.device)
    token = part * _PART + column
    value = logits.gather(1, token.clamp_max(logits.shape[1] - 1)).float()
    inside = torch.where(token < logits.shape[1], ((value - most) / heat).exp(), 0.0).double()
    place = torch.searchsorted(inside.cumsum(dim=1), wanted - before, right=True)
    # Rounding may put the number just behind the part's last token; never choose one without any probability.
    last = torch.where(inside > 0, column, 0).amax(dim=1, keepdim=True)
    return part * _PART + torch.minimum(place, last)
