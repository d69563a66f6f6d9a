"""The verdict in one sentence, and the format of numbers and lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...training.callback import is_deadline_stop
from ..hypothesis import Claim
from .comparison import Analysis
from .model import Trend

if TYPE_CHECKING:
    from .rules import Ruling


def in_one_sentence(analysis: Analysis, ruling: Ruling, best: str | None, trend: Trend | None) -> str:
    """Summarise the verdict with its numbers, flags, the deadline and a mock backend: many readers stop here."""
    evidence, claim = analysis.evidence, analysis.claim
    lead = ruling.verdict.replace("_", ", ").capitalize()
    seen = None if claim is None else _describe_effect(claim, analysis, ruling, trend)
    if ruling.verdict == "invalid" or (seen is None and claim is not None):
        said = f"{lead}: {ruling.reasons[0]}."
    elif seen is None:
        said = "No hypothesis was stated, so none is judged" + (f"; the best run is `{best}`." if best else ".")
    else:
        said = f"{lead}: {'; '.join([seen, *ruling.reasons[:1]])}."
    if is_deadline_stop(evidence.stopped) and analysis.report.runs:
        ended = sum(arm.ended and not arm.at_deadline for arm in evidence.arms)
        said += f" Stopped by the deadline: {pluralise(ended, 'arm')} trained to the end."
    if evidence.backend == "mock":
        said += " Measured on the mock backend: this says nothing about a real model."
    if evidence.flags and ruling.verdict != "invalid":
        said += f" FLAGGED: {'; '.join(evidence.flags)}."
    return said


def _describe_effect(claim: Claim, analysis: Analysis, ruling: Ruling, trend: Trend | None) -> str | None:
    title, comparison, baseline = analysis.question.title, analysis.comparison(ruling.judged), analysis.baseline
    claimed = f" ({number(claim.sign * claim.min_effect, signed=True)} was claimed)" if claim.min_effect else ""
    if trend is not None:
        change = _with_interval(trend.change, trend.low, trend.high, signed=True)
        return f"{title} changes by {change} from {claim.axis} = {trend.first:g} to {trend.last:g}{claimed}"
    if comparison is None or baseline is None:
        return None
    low, high = comparison.low, comparison.high
    if (level := baseline.level) is not None:
        ends = [None if end is None else level + end for end in (low, high)]
        shown = _with_interval(level + comparison.difference, *ends)
        side = "least" if claim.sign > 0 else "most"
        return f"`{comparison.run}` scores {shown} on {title} (at {side} {number(level)} was claimed)"
    if claim.kind == "not_worse":
        claimed = f" (worse by less than {number(claim.margin)} was claimed)"
    shown = _with_interval(comparison.difference, low, high, signed=True)
    return f"`{comparison.run}` scores {shown} against `{baseline.name}` on {title}{claimed}"


def _with_interval(value: float, low: float | None, high: float | None, *, signed: bool = False) -> str:
    ends = "" if low is None else f" [{number(low, signed=signed)}, {number(high, signed=signed)}]"
    return f"{number(value, signed=signed)}{ends}"


def number(value: float | None, *, signed: bool = False) -> str:
    """Format a score; `-` for None."""
    if value is None:
        return "-"
    digits = "3f" if value == 0 or 0.0005 <= abs(value) < 1000 else "3g"
    return f"{value:{'+' if signed else ''}.{digits}}"


def pluralise(count: int, noun: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def list_names(names: Sequence[str], *, most: int = 6) -> str:
    """Format the first names as Markdown code, with the number of further ones."""
    shown = ", ".join(f"`{name}`" for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def shorten(value: object) -> str:
    """A setting as text of at most 60 characters."""
    text = "not set" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
