"""The verdict in one sentence, with its numbers."""

from __future__ import annotations

from typing import Any

from .comparison import Analysis
from .model import Comparison
from .rules import Ruling

_LEAD = {
    "supported": "Supported",
    "refuted": "Refuted",
    "inconclusive": "Inconclusive",
    "promising_unconfirmed": "Promising, unconfirmed",
    "invalid": "Invalid",
}


def in_one_sentence(claim: dict[str, Any] | None, analysis: Analysis, ruling: Ruling, best: str | None) -> str:
    """What to remember if only one sentence is read."""
    lead = _LEAD[ruling.verdict]
    if ruling.verdict == "invalid":
        return f"{lead}: {ruling.reasons[0]}."
    comparison = analysis.comparison(ruling.judged)
    if claim is None:
        score = "" if best is None else f"; the best run is `{best}`"
        return f"No hypothesis was stated, so none is judged{score}."
    if comparison is None or analysis.baseline is None:
        return f"{lead}: {ruling.reasons[0]}."
    effect = f"`{comparison.run}` scores {with_interval(comparison)} against `{analysis.baseline.name}`"
    metric = f" on {analysis.question.title}"
    limit = float(claim["min_effect"])
    claimed = f" ({number(analysis.question.sign * limit, signed=True)} was claimed)" if limit else ""
    reason = f"; {ruling.reasons[0]}" if ruling.reasons else ""
    return f"{lead}: {effect}{metric}{claimed}{reason}."


def with_interval(comparison: Comparison) -> str:
    """A difference with its corrected interval."""
    text = number(comparison.difference, signed=True)
    if comparison.low is None or comparison.high is None:
        return text
    return f"{text} [{number(comparison.low, signed=True)}, {number(comparison.high, signed=True)}]"


def number(value: float | None, *, signed: bool = False) -> str:
    """A score as people read it."""
    if value is None:
        return "-"
    sign = "+" if signed else ""
    if value == 0 or 0.0005 <= abs(value) < 1000:
        return f"{value:{sign}.3f}"
    return f"{value:{sign}.3g}"


def counted(count: int, noun: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
