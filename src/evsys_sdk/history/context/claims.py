"""What was claimed, and what became of it: each claim once, however many experiments tested it.

A claim is contradicted where, about the same model, metric and tasks, one experiment supports and another refutes it.
Where it holds for one model and not for another, that is said and is no contradiction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

type State = Literal["contradicted", "settled", "open"]
_DECIDED = ("supported", "refuted")
_UNDECIDED = ("promising_unconfirmed", "inconclusive")
_WORDS = {"promising_unconfirmed": "promising"}


@dataclass(slots=True)
class Verdicts:
    """The experiments that gave a claim the same verdict on the same question."""

    question: str
    verdict: str
    count: int = 0
    id: str = ""
    """The latest of them, and its folder."""
    folder: str = ""
    started: float = 0.0


@dataclass(slots=True)
class Claim:
    """One claim and all verdicts on it."""

    text: str
    verdicts: list[Verdicts] = field(default_factory=list[Verdicts])

    def on(self, verdict: str) -> list[Verdicts]:
        return [one for one in self.verdicts if one.verdict == verdict]

    @property
    def state(self) -> State:
        supported, refuted = ({one.question for one in self.on(verdict)} for verdict in _DECIDED)
        if supported & refuted:
            return "contradicted"
        return "settled" if supported or refuted else "open"

    @property
    def latest(self) -> Verdicts:
        """The latest experiment of the verdict that says most."""
        for verdict in (*_DECIDED, *_UNDECIDED):
            if found := self.on(verdict):
                return max(found, key=lambda one: (one.started, one.id))
        return self.verdicts[0]

    @property
    def count(self) -> int:
        return sum(one.count for one in self.verdicts)

    def tell(self, name: Callable[[str], str]) -> str:
        """The verdicts in words: by whom, and about which question where that matters."""
        questions = {one.question for one in self.verdicts}
        parts: list[str] = []
        for verdict in (*_DECIDED, *_UNDECIDED):
            for one in self.on(verdict):
                again = f" and {one.count - 1} more" if one.count > 1 else ""
                about = f" on {one.question}" if len(questions) > 1 else ""
                parts.append(f"{_WORDS.get(verdict, verdict)} by {name(one.id)}{again}{about}")
        return ", ".join(parts)


def gather_claims(rows: Iterable[tuple[Any, ...]], questions: Mapping[tuple[str, str, str], str]) -> list[Claim]:
    """(claim, models, metric, tasks, verdict, count, started, id, folder) -> claims, the latest first.

    `questions` says what to call (model, metric, tasks).
    """
    claims: dict[str, Claim] = {}
    merged: dict[tuple[str, str, str], Verdicts] = {}
    for text, models, metric, tasks, verdict, count, started, name, folder in rows:
        key = " ".join(text.casefold().split()).rstrip(".")
        model = models.strip("|").replace("|", "+")
        question = questions.get((model, metric, tasks)) or ", ".join(filter(None, (model, metric, tasks)))
        if (key, question, verdict) not in merged:
            merged[key, question, verdict] = Verdicts(question, verdict)
            claims.setdefault(key, Claim(text)).verdicts.append(merged[key, question, verdict])
        one = merged[key, question, verdict]
        one.count += count
        if not one.id or (started or 0.0, name) > (one.started, one.id):
            one.started, one.id, one.folder = started or 0.0, name, folder
    return sorted(claims.values(), key=lambda claim: (-claim.latest.started, claim.text))
