"""The questions that experiments asked: one model on one backend, one metric, one set of tasks.

Nothing is averaged across questions. Each has what was tried, its best runs, what each change did, and what has not
been tried although it is cheap. Below them, what experiments tell next to their scores: what became of each claim, and
which failures are the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ...record.view.model import ExperimentView, RunView
from ...record.view.question import is_score
from ..cache import read_between_bars
from ..effects import Effect
from ..index import HistoryIndex
from ..query import Filters

_KEY = ("model", "backend", "metric", "mode", "tasks")
_EFFECT_SUMS = (
    "count(*)", "sum(difference)", "sum(weight)", "sum(weight * difference)",
    "sum(weight * difference * difference)", "sum(CASE WHEN weight THEN df END)", "max(low)", "max(high)",
    "count(weight)", "min(seeds)", "sum(low > 0)", "sum(high < 0)",
)  # fmt: skip
type State = Literal["contradicted", "settled", "open"]
_DECIDED = ("supported", "refuted")
_UNDECIDED = ("promising_unconfirmed", "inconclusive")
_WORDS = {"promising_unconfirmed": "promising"}
_PARTICULARS = r"'[^']*'|\"[^\"]*\"|\S*/\S+|0x[0-9a-fA-F]+|\d[\d.,:eE+\-_]*"
"""What differs between two cases of the same failure: quoted values, paths, addresses, numbers."""


@dataclass(frozen=True, slots=True)
class Combination:
    """Runs with the same algorithm and settings."""

    algorithm: str
    params: dict[str, str]
    runs: int
    arms: int
    usd: float
    wall_s: float


@dataclass(slots=True)
class QuestionDigest:
    """What was learned about one question: one model on one backend, one metric, one set of tasks."""

    model: str
    backend: str
    metric: str
    mode: str
    tasks: str
    number: int = 0
    """By which others refer to it: Q1, Q2 and so on."""
    experiments: int = 0
    combinations: list[Combination] = field(default_factory=list[Combination])
    effects: list[Effect] = field(default_factory=list[Effect])

    @property
    def is_benchmark(self) -> bool:
        """Whether it is about a benchmark, rather than about a measure of training itself."""
        return is_score(self.metric)

    @property
    def sign(self) -> int:
        return -1 if self.mode == "min" else 1

    @property
    def label(self) -> str:
        where = f" on {self.backend}" if self.backend else ""
        return f"{self.model or 'unknown model'}{where}, {self.metric}" + (f", {self.tasks}" if self.tasks else "")

    def runs_by_algorithm(self) -> dict[str, int]:
        """How many runs of each algorithm there are, the most used first."""
        counts: dict[str, int] = {}
        for one in self.combinations:
            counts[one.algorithm] = counts.get(one.algorithm, 0) + one.runs
        return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))

    def cost_of_an_arm(self, algorithm: str) -> tuple[float, float]:
        """Dollars and seconds, as a mean over all arms of an algorithm."""
        own = [one for one in self.combinations if one.algorithm == algorithm]
        arms = sum(one.arms for one in own) or 1
        return sum(one.usd for one in own) / arms, sum(one.wall_s for one in own) / arms


@dataclass(frozen=True, slots=True)
class Untried:
    """Something that no one has run, and what one arm of it may take."""

    question: QuestionDigest
    algorithm: str
    what: str
    why: str
    usd: float
    wall_s: float


def list_questions(index: HistoryIndex, filters: Filters) -> list[QuestionDigest]:
    """Every question; those about benchmarks first, then those that most experiments were about."""
    within, values = _within(filters)
    sums = ("sum(first)", "count(*)", "sum(arms)", "sum(usd)", "sum(wall_s)")
    found: dict[tuple[str, ...], QuestionDigest] = {}
    for row in index.rows_of(
        "runs", (*_KEY, "algorithm", "params", *sums), within, values, f"GROUP BY {','.join(_KEY)},algorithm,params"
    ):
        question = found.setdefault(row[:5], QuestionDigest(*row[:5]))
        question.experiments += row[7] or 0
        question.combinations.append(Combination(row[5], json.loads(row[6]), *row[8:]))
    ordered = sorted(found.values(), key=lambda one: (not one.is_benchmark, -one.experiments, one.label))
    for number, question in enumerate(ordered, start=1):
        question.number = number
    by_place: dict[tuple[str, ...], QuestionDigest] = {
        (one.model, one.backend, one.metric, one.tasks): one for one in found.values()
    }
    for place, effects in _list_effects(index, filters).items():
        if place in by_place:
            by_place[place].effects = effects
    return ordered


def _list_effects(index: HistoryIndex, filters: Filters) -> dict[tuple[str, ...], list[Effect]]:
    """Every change that was made alone, by question; the same change in several experiments is one effect."""
    within, values = _within(filters, "counts")
    names = ("model", "backend", "metric", "tasks", "algorithm", "axis", "before", "after")
    merged: dict[tuple[Any, ...], Effect] = {}
    for row in index.rows_of("effects", (*names, *_EFFECT_SUMS), within, values, f"GROUP BY {','.join(names)}"):
        sums = row[8:]
        one = merged.setdefault(row[:8], Effect(*row[5:8], algorithm=row[4], seeds=sums[9]))
        one.n += sums[0]
        one.total += sums[1]
        one.weight, one.weighted, one.squares = (
            before + (found or 0.0)
            for before, found in zip((one.weight, one.weighted, one.squares), sums[2:5], strict=True)
        )
        one.df += sums[5] or 0.0
        one.low, one.high = sums[6], sums[7]  # looked at only where a single experiment has an interval
        one.n_weighed += sums[8]
        one.seeds = min(one.seeds, sums[9])
        one.n_up, one.n_down = one.n_up + (sums[10] or 0), one.n_down + (sums[11] or 0)
    found: dict[tuple[str, ...], list[Effect]] = {}
    for key, effect in merged.items():
        found.setdefault(key[:4], []).append(effect)
    return found


def best_runs(index: HistoryIndex, filters: Filters, one: QuestionDigest) -> list[tuple[ExperimentView, RunView]]:
    """The best run on a question and, where that is not sure, the best of those that are surer."""
    chosen = _top_runs(index, filters, one, "1")
    if chosen and chosen[0][1].n_seeds < 2:
        chosen += _top_runs(index, filters, one, "seeds > 1")
    if chosen and chosen[0][0].verdict != "supported":
        chosen += _top_runs(index, filters, one, "verdict = 'supported'")
    return list({(summary.id, run.run): (summary, run) for summary, run in chosen}.values())


def _top_runs(
    index: HistoryIndex, filters: Filters, one: QuestionDigest, which: str
) -> list[tuple[ExperimentView, RunView]]:
    asked = " AND ".join(f"{name} = ?" for name in _KEY)
    condition = f"counts AND rank IS NOT NULL AND {asked} AND {which}"
    within, values = _within(filters, condition, *(getattr(one, name) for name in _KEY))
    # Two questions, because an index answers the first at once, and few rows share the best score.
    best = max(
        (row[0] for row in index.rows_of("runs", ("rank",), within, values, "ORDER BY rank DESC LIMIT 1")), default=0
    )
    # Of equal scores that of most seeds, and then by folder, so that a digest always names the same run.
    rows = index.rows_of("runs", ("-seeds", "folder", "id", "run"), f"{within} AND rank = ?", [*values, best])
    for _, folder, name, run in sorted(rows)[:1]:
        for summary in index.views("folder = ? AND id = ?", [folder, name]):
            return [(summary, result) for result in summary.runs if result.run == run][:1]
    return []


def find_untried(questions: Sequence[QuestionDigest]) -> list[Untried]:
    """What no one has run although what is known speaks for it, the cheapest first."""
    found: list[Untried] = []
    for one in questions:
        if one.is_benchmark:
            for algorithm in one.runs_by_algorithm():
                found += _combine(one, algorithm)
                found += _go_further(one, algorithm)
            found += _carry_over(one, [other for other in questions if other is not one])
    return sorted(found, key=lambda untried: (untried.usd, untried.wall_s))  # of the same price, the surer comes first


def clear_winners(one: QuestionDigest, algorithm: str) -> dict[str, str]:
    """Axis -> the value that clearly beat the others it was compared with."""
    winners: dict[str, str] = {}
    for axis in dict.fromkeys(effect.axis for effect in one.effects if effect.algorithm == algorithm):
        own = [effect for effect in one.effects if (effect.axis, effect.algorithm) == (axis, algorithm)]
        standing = _rank_values(own, one.sign)
        best = max(standing, key=lambda value: standing[value])
        beaten = [effect for effect in own if effect.is_clear and not effect.disagrees]
        if any(best == (effect.after if effect.difference * one.sign > 0 else effect.before) for effect in beaten):
            winners[axis] = best
    return winners


def _rank_values(effects: Sequence[Effect], sign: int) -> dict[str, float]:
    """How good each value is, counted from the first; values that no chain of comparisons reaches are left out."""
    standing = {effects[0].before: 0.0}
    for _ in effects:  # no chain is longer than there are comparisons
        for effect in effects:
            if effect.before in standing:
                standing.setdefault(effect.after, standing[effect.before] + sign * effect.difference)
            elif effect.after in standing:
                standing[effect.before] = standing[effect.after] - sign * effect.difference
    return standing


def _combine(one: QuestionDigest, algorithm: str) -> Iterable[Untried]:
    """The values that won alone, together."""
    winners = clear_winners(one, algorithm)
    own = [found.params for found in one.combinations if found.algorithm == algorithm]
    together = any(all(params.get(axis) == value for axis, value in winners.items()) for params in own)
    if len(winners) > 1 and not together and all(any(axis in params for params in own) for axis in winners):
        what = " with ".join(f"{axis}={value}" for axis, value in sorted(winners.items()))
        yield Untried(one, algorithm, what, "each helped alone", *one.cost_of_an_arm(algorithm))


def _go_further(one: QuestionDigest, algorithm: str) -> Iterable[Untried]:
    """The next value of a number whose best value so far is the last one that was tried."""
    for axis, best in clear_winners(one, algorithm).items():
        own = {
            found.params[axis] for found in one.combinations if found.algorithm == algorithm and axis in found.params
        }
        numbers = sorted(number for value in own if (number := _number(value)) is not None and number > 0)
        value = _number(best)
        if value is None or len(numbers) < 2 or value not in (numbers[0], numbers[-1]):
            continue
        neighbour = numbers[1] if value == numbers[0] else numbers[-2]
        further = float(f"{value * value / neighbour:.2g}")  # the same ratio again: after 1e-4 and 3e-4, 9e-4
        whole = all(number.is_integer() for number in numbers) and further >= 1
        shown = f"{round(further)}" if whole else f"{further:g}"
        if shown not in own:
            why = f"{best} is the best so far and the last that was tried"
            yield Untried(one, algorithm, f"{axis}={shown}", why, *one.cost_of_an_arm(algorithm))


def _carry_over(one: QuestionDigest, others: Sequence[QuestionDigest]) -> Iterable[Untried]:
    """What won, or was used, on another model for the same tasks."""
    algorithms = one.runs_by_algorithm()
    for other in others:
        if (other.metric, other.tasks, other.mode) != (one.metric, one.tasks, one.mode):
            continue
        for algorithm in other.runs_by_algorithm():
            if algorithm not in algorithms:
                why = f"used on {other.model} only"
                yield Untried(one, algorithm, "", why, *other.cost_of_an_arm(algorithm))
                continue
            own = [found.params for found in one.combinations if found.algorithm == algorithm]
            for axis, value in clear_winners(other, algorithm).items():
                if not any(params.get(axis) == value for params in own):
                    why = f"it helped {other.model}"
                    yield Untried(one, algorithm, f"{axis}={value}", why, *one.cost_of_an_arm(algorithm))


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _within(filters: Filters, condition: str = "", *values: Any) -> tuple[str, list[Any]]:
    """A condition on runs or effects, within what the filters let through."""
    chosen, given = filters.condition()
    parts = [condition] if condition else []
    if chosen:
        parts.append(f"folder IN (SELECT folder FROM experiments WHERE {chosen})")
    return " AND ".join(parts), [*values, *given]


@dataclass(slots=True)
class Verdicts:
    """The experiments that gave a claim the same verdict on the same question."""

    question: str
    verdict: str
    where: str = ""
    """The backend it was tested on."""
    count: int = 0
    id: str = ""
    """The latest of them, and its folder."""
    folder: str = ""
    started: float = 0.0


@dataclass(slots=True)
class TriedClaim:
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
        # Several questions name their model and backend themselves.
        where = {one.where for one in self.verdicts if one.where}
        return ", ".join(parts) + (f" on {where.pop()}" if len(questions) == 1 and where else "")


def gather_claims(rows: Iterable[tuple[Any, ...]], questions: Mapping[tuple[str, ...], str]) -> list[TriedClaim]:
    """(claim, models, backends, metric, tasks, verdict, count, started, id, folder) -> claims, the latest first.

    `questions` names each (model, backend, metric, tasks): a claim that was tested on mock is open on other backends.
    """
    claims: dict[str, TriedClaim] = {}
    merged: dict[tuple[str, str, str], Verdicts] = {}
    for text, models, backends, metric, tasks, verdict, count, started, name, folder in rows:
        key = " ".join(text.casefold().split()).rstrip(".")
        model, backend = ("+".join(read_between_bars(names)) for names in (models, backends))
        where = f"{model} on {backend}" if backend else model
        question = questions.get((model, backend, metric, tasks)) or ", ".join(filter(None, (where, metric, tasks)))
        if (key, question, verdict) not in merged:
            merged[key, question, verdict] = Verdicts(question, verdict, backend)
            claims.setdefault(key, TriedClaim(text)).verdicts.append(merged[key, question, verdict])
        one = merged[key, question, verdict]
        one.count += count
        if not one.id or (started or 0.0, name) > (one.started, one.id):
            one.started, one.id, one.folder = started or 0.0, name, folder
    return sorted(claims.values(), key=lambda claim: (-claim.latest.started, claim.text))


@dataclass(slots=True)
class ReasonGroup:
    """One reason and how often it was the one."""

    example: str
    experiment: str
    count: int = 0


def group_reasons(stated: Iterable[tuple[str, str]]) -> list[ReasonGroup]:
    """The different reasons among (experiment, reason), the most frequent first; examples are the first told."""
    particulars = re.compile(_PARTICULARS)  # here, because most histories fail in few ways, or none
    groups: dict[str, ReasonGroup] = {}
    for experiment, reason in stated:
        key = particulars.sub("#", reason.split("\n", 1)[0])[:160]
        groups.setdefault(key, ReasonGroup(reason, experiment)).count += 1
    return sorted(groups.values(), key=lambda group: (-group.count, group.example))
