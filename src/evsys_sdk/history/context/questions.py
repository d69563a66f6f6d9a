"""Questions of experiments: one model on one backend, one metric, one set of tasks.

Nothing is averaged across questions. Each has its tried combinations, best runs, effects of changes, and cheap untried
values. Claims and groups of failures follow at the end of the module.
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
"""Parts that differ between cases of the same failure: quoted values, paths, addresses, numbers."""


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
    """The results on one question."""

    model: str
    backend: str
    metric: str
    mode: str
    tasks: str
    number: int = 0
    """The number in its name: Q1, Q2 and so on."""
    experiments: int = 0
    combinations: list[Combination] = field(default_factory=list[Combination])
    effects: list[Effect] = field(default_factory=list[Effect])

    @property
    def is_benchmark(self) -> bool:
        """Whether its metric is a score, not a training metric."""
        return is_score(self.metric)

    @property
    def sign(self) -> int:
        return -1 if self.mode == "min" else 1

    @property
    def label(self) -> str:
        where = f" on {self.backend}" if self.backend else ""
        return f"{self.model or 'unknown model'}{where}, {self.metric}" + (f", {self.tasks}" if self.tasks else "")

    def runs_by_algorithm(self) -> dict[str, int]:
        """Algorithm -> number of runs, the most used first."""
        counts: dict[str, int] = {}
        for combination in self.combinations:
            counts[combination.algorithm] = counts.get(combination.algorithm, 0) + combination.runs
        return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))

    def cost_of_an_arm(self, algorithm: str) -> tuple[float, float]:
        """Mean dollars and seconds per arm of an algorithm."""
        own = [combination for combination in self.combinations if combination.algorithm == algorithm]
        arms = sum(combination.arms for combination in own) or 1
        return sum(entry.usd for entry in own) / arms, sum(entry.wall_s for entry in own) / arms


@dataclass(frozen=True, slots=True)
class Untried:
    """An untried combination, and the expected cost of an arm."""

    question: QuestionDigest
    algorithm: str
    what: str
    why: str
    usd: float
    wall_s: float


def list_questions(index: HistoryIndex, filters: Filters) -> list[QuestionDigest]:
    """Every question, those of benchmarks first, then by number of experiments."""
    within, values = _within(filters)
    sums = ("sum(first)", "count(*)", "sum(arms)", "sum(usd)", "sum(wall_s)")
    found: dict[tuple[str, ...], QuestionDigest] = {}
    for row in index.rows_of(
        "runs", (*_KEY, "algorithm", "params", *sums), within, values, f"GROUP BY {','.join(_KEY)},algorithm,params"
    ):
        question = found.setdefault(row[:5], QuestionDigest(*row[:5]))
        question.experiments += row[7] or 0
        question.combinations.append(Combination(row[5], json.loads(row[6]), *row[8:]))
    ordered = sorted(
        found.values(), key=lambda question: (not question.is_benchmark, -question.experiments, question.label)
    )
    for number, question in enumerate(ordered, start=1):
        question.number = number
    by_place: dict[tuple[str, ...], QuestionDigest] = {
        (question.model, question.backend, question.metric, question.tasks): question for question in found.values()
    }
    for place, effects in _list_effects(index, filters).items():
        if place in by_place:
            by_place[place].effects = effects
    return ordered


def _list_effects(index: HistoryIndex, filters: Filters) -> dict[tuple[str, ...], list[Effect]]:
    """Question -> its effects; the same change in several experiments is one effect."""
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
        one.low, one.high = sums[6], sums[7]  # used only if a single experiment has an interval
        one.n_weighed += sums[8]
        one.seeds = min(one.seeds, sums[9])
        one.n_up, one.n_down = one.n_up + (sums[10] or 0), one.n_down + (sums[11] or 0)
    found: dict[tuple[str, ...], list[Effect]] = {}
    for key, effect in merged.items():
        found.setdefault(key[:4], []).append(effect)
    return found


def best_runs(index: HistoryIndex, filters: Filters, one: QuestionDigest) -> list[tuple[ExperimentView, RunView]]:
    """The best run on a question; if it has one seed or no support, also the best with more seeds, or supported."""
    chosen = _top_runs(index, filters, one, "1")
    if chosen and chosen[0][1].n_seeds < 2:
        chosen += _top_runs(index, filters, one, "seeds > 1")
    if chosen and chosen[0][0].verdict != "supported":
        chosen += _top_runs(index, filters, one, "verdict = 'supported'")
    return list({(summary.id, run.run): (summary, run) for summary, run in chosen}.values())


def _top_runs(
    index: HistoryIndex, filters: Filters, one: QuestionDigest, which: str
) -> list[tuple[ExperimentView, RunView]]:
    same_question = " AND ".join(f"{name} = ?" for name in _KEY)
    condition = f"counts AND rank IS NOT NULL AND {same_question} AND {which}"
    within, values = _within(filters, condition, *(getattr(one, name) for name in _KEY))
    # Two queries, because an index answers the first at once, and few rows share the best score.
    best = max(
        (row[0] for row in index.rows_of("runs", ("rank",), within, values, "ORDER BY rank DESC LIMIT 1")), default=0
    )
    # Of equal scores the one with most seeds, then by folder, for a deterministic digest.
    rows = index.rows_of("runs", ("-seeds", "folder", "id", "run"), f"{within} AND rank = ?", [*values, best])
    for _, folder, name, run in sorted(rows)[:1]:
        for summary in index.views("folder = ? AND id = ?", [folder, name]):
            return [(summary, result) for result in summary.runs if result.run == run][:1]
    return []


def find_untried(questions: Sequence[QuestionDigest]) -> list[Untried]:
    """Promising untried combinations, the cheapest first."""
    found: list[Untried] = []
    for one in questions:
        if one.is_benchmark:
            for algorithm in one.runs_by_algorithm():
                found += _combine(one, algorithm)
                found += _go_further(one, algorithm)
            found += _carry_over(one, [other for other in questions if other is not one])
    return sorted(
        found, key=lambda untried: (untried.usd, untried.wall_s)
    )  # a stable sort: of the same price, the first suggestion is the surest


def clear_winners(one: QuestionDigest, algorithm: str) -> dict[str, str]:
    """Axis -> its best value, if it clearly beat another value."""
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
    """Value -> its difference to the first value, over chains of comparisons; without unreachable values."""
    standing = {effects[0].before: 0.0}
    for _ in effects:  # no chain is longer than the number of effects
        for effect in effects:
            if effect.before in standing:
                standing.setdefault(effect.after, standing[effect.before] + sign * effect.difference)
            elif effect.after in standing:
                standing[effect.before] = standing[effect.after] - sign * effect.difference
    return standing


def _combine(one: QuestionDigest, algorithm: str) -> Iterable[Untried]:
    """The combination of all values that won separately."""
    winners = clear_winners(one, algorithm)
    own = [combination.params for combination in one.combinations if combination.algorithm == algorithm]
    together = any(all(params.get(axis) == value for axis, value in winners.items()) for params in own)
    if len(winners) > 1 and not together and all(any(axis in params for params in own) for axis in winners):
        what = " with ".join(f"{axis}={value}" for axis, value in sorted(winners.items()))
        yield Untried(one, algorithm, what, "each helped alone", *one.cost_of_an_arm(algorithm))


def _go_further(one: QuestionDigest, algorithm: str) -> Iterable[Untried]:
    """The next value of a numeric axis whose best value is the largest or smallest tried one."""
    for axis, best in clear_winners(one, algorithm).items():
        own = {
            entry.params[axis] for entry in one.combinations if entry.algorithm == algorithm and axis in entry.params
        }
        numbers = sorted(number for value in own if (number := _number(value)) is not None and number > 0)
        value = _number(best)
        if value is None or len(numbers) < 2 or value not in (numbers[0], numbers[-1]):
            continue
        neighbour = numbers[1] if value == numbers[0] else numbers[-2]
        further = float(f"{value * value / neighbour:.2g}")  # with the same ratio: after 1e-4 and 3e-4, 9e-4
        whole = all(number.is_integer() for number in numbers) and further >= 1
        shown = f"{round(further)}" if whole else f"{further:g}"
        if shown not in own:
            why = f"{best} is the best so far and the last that was tried"
            yield Untried(one, algorithm, f"{axis}={shown}", why, *one.cost_of_an_arm(algorithm))


def _carry_over(one: QuestionDigest, others: Sequence[QuestionDigest]) -> Iterable[Untried]:
    """Algorithms and values that were used or won on another model with the same tasks."""
    algorithms = one.runs_by_algorithm()
    for other in others:
        if (other.metric, other.tasks, other.mode) != (one.metric, one.tasks, one.mode):
            continue
        for algorithm in other.runs_by_algorithm():
            if algorithm not in algorithms:
                why = f"used on {other.model} only"
                yield Untried(one, algorithm, "", why, *other.cost_of_an_arm(algorithm))
                continue
            own = [combination.params for combination in one.combinations if combination.algorithm == algorithm]
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
    """A condition on runs or effects, restricted by the filters."""
    chosen, filter_values = filters.condition()
    parts = [condition] if condition else []
    if chosen:
        parts.append(f"folder IN (SELECT folder FROM experiments WHERE {chosen})")
    return " AND ".join(parts), [*values, *filter_values]


@dataclass(slots=True)
class Verdicts:
    """The experiments that gave a claim the same verdict on the same question."""

    question: str
    verdict: str
    where: str = ""
    """The backend of the experiments."""
    count: int = 0
    id: str = ""
    """Id of the latest experiment; its folder and start follow."""
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
        """The latest experiment with the most decisive verdict."""
        for verdict in (*_DECIDED, *_UNDECIDED):
            if found := self.on(verdict):
                return max(found, key=lambda one: (one.started, one.id))
        return self.verdicts[0]

    @property
    def count(self) -> int:
        return sum(one.count for one in self.verdicts)

    def tell(self, name: Callable[[str], str]) -> str:
        """The verdicts as text, with their experiments, and with their questions if there are several."""
        questions = {one.question for one in self.verdicts}
        parts: list[str] = []
        for verdict in (*_DECIDED, *_UNDECIDED):
            for one in self.on(verdict):
                again = f" and {one.count - 1} more" if one.count > 1 else ""
                about = f" on {one.question}" if len(questions) > 1 else ""
                parts.append(f"{_WORDS.get(verdict, verdict)} by {name(one.id)}{again}{about}")
        # With several questions, each names its model and backend.
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
    """A reason of failures and its count."""

    example: str
    experiment: str
    count: int = 0


def group_reasons(pairs: Iterable[tuple[str, str]]) -> list[ReasonGroup]:
    """Group (experiment, reason) pairs by similar reasons, the most frequent first."""
    particulars = re.compile(_PARTICULARS)  # compiled here, because few calls need it
    groups: dict[str, ReasonGroup] = {}
    for experiment, reason in pairs:
        key = particulars.sub("#", reason.split("\n", 1)[0])[:160]
        groups.setdefault(key, ReasonGroup(reason, experiment)).count += 1
    return sorted(groups.values(), key=lambda group: (-group.count, group.example))
