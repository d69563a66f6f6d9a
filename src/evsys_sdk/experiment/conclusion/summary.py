"""The verdict in one sentence, and the format of numbers and lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...training.callback import is_deadline_stop
from ..hypothesis import Claim
from .comparison import Analysis
from .measured import Measured
from .model import Trend

if TYPE_CHECKING:
    from .rules import Ruling

_LEAD = {
    "supported": "Supported",
    "refuted": "Refuted",
    "inconclusive": "Inconclusive",
    "promising_unconfirmed": "Promising, unconfirmed",
    "invalid": "Invalid",
}


def in_one_sentence(analysis: Analysis, ruling: Ruling, best: str | None, trend: Trend | None) -> str:
    """Summarise the verdict with its numbers, flags, the deadline and a mock backend: many readers stop here."""
    evidence = analysis.evidence
    said = _tell_verdict(analysis, ruling, best, trend)
    mock = " Measured on the mock backend: this says nothing about a real model." if evidence.backend == "mock" else ""
    flagged = f" FLAGGED: {'; '.join(evidence.flags)}." if evidence.flags and ruling.verdict != "invalid" else ""
    ended = sum(arm.ended and not arm.at_deadline for arm in evidence.arms)
    late = f" Stopped by the deadline: {pluralise(ended, 'arm')} trained to the end."
    return f"{said}{late if is_deadline_stop(evidence.stopped) else ''}{mock}{flagged}"


def _tell_verdict(analysis: Analysis, ruling: Ruling, best: str | None, trend: Trend | None) -> str:
    claim = analysis.claim
    lead = _LEAD[ruling.verdict]
    if ruling.verdict == "invalid":
        return f"{lead}: {ruling.reasons[0]}."
    if claim is None:
        score = "" if best is None else f"; the best run is `{best}`"
        return f"No hypothesis was stated, so none is judged{score}."
    seen = _seen(claim, analysis, ruling, trend)
    if seen is None:
        return f"{lead}: {ruling.reasons[0]}."
    reason = f"; {ruling.reasons[0]}" if ruling.reasons else ""
    return f"{lead}: {seen}{_write_claim(claim)}{reason}."


def count_missing(report: Measured) -> str:
    """The number of failed samples as text, e.g. `3 samples`; the number of dropped tasks if no sample failed."""
    samples = sum(report.failed_samples.values())
    return pluralise(samples, "sample") if samples else pluralise(report.dropped_tasks, "task")


def _seen(claim: Claim, analysis: Analysis, ruling: Ruling, trend: Trend | None) -> str | None:
    title = analysis.question.title
    if trend is not None:
        change = _with_interval(trend.change, trend.low, trend.high, signed=True)
        return f"{title} changes by {change} from {claim.axis} = {trend.first:g} to {trend.last:g}"
    comparison = analysis.comparison(ruling.judged)
    if comparison is None or analysis.baseline is None:
        return None
    if analysis.baseline.level is not None:
        level = analysis.baseline.level
        ends = [None if end is None else level + end for end in (comparison.low, comparison.high)]
        return f"`{comparison.run}` scores {_with_interval(level + comparison.difference, *ends)} on {title}"
    shown = _with_interval(comparison.difference, comparison.low, comparison.high, signed=True)
    return f"`{comparison.run}` scores {shown} against `{analysis.baseline.name}` on {title}"


def _write_claim(claim: Claim) -> str:
    if claim.kind == "at_least":
        return f" (at {'least' if claim.sign > 0 else 'most'} {number(claim.level)} was claimed)"
    if claim.kind == "not_worse":
        return f" (worse by less than {number(claim.margin)} was claimed)"
    if not claim.min_effect:
        return ""
    return f" ({number(claim.sign * claim.min_effect, signed=True)} was claimed)"


def _with_interval(value: float, low: float | None, high: float | None, *, signed: bool = False) -> str:
    text = number(value, signed=signed)
    if low is None or high is None:
        return text
    return f"{text} [{number(low, signed=signed)}, {number(high, signed=signed)}]"


def number(value: float | None, *, signed: bool = False) -> str:
    """Format a score; `-` for None."""
    if value is None:
        return "-"
    sign = "+" if signed else ""
    if value == 0 or 0.0005 <= abs(value) < 1000:
        return f"{value:{sign}.3f}"
    return f"{value:{sign}.3g}"


def pluralise(count: int, noun: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def list_names(names: Sequence[str], *, most: int = 6) -> str:
    """Format the first names as Markdown code, with the number of further ones."""
    shown = ", ".join(f"`{name}`" for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
