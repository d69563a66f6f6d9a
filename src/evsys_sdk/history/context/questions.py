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
_VARIABLE_PARTS = r"'[^']*'|\"[^\"]*\"|\S*/\S+|0x[0-9a-fA-F]+|\d[\d.,:eE+\-_]*"
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

    def arm_cost(self, algorithm: str) -> tuple[float, float]:
        """Mean dollars and seconds per arm of an algorithm."""
        combinations = [combination for combination in self.combinations if combination.algorithm == algorithm]
        arms = sum(combination.arms for combination in combinations) or 1
        return sum(entry.usd for entry in combinations) / arms, sum(entry.wall_s for entry in combinations) / arms


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
    within, values = _in_filters(filters)
    sums = ("sum(first)", "count(*)", "sum(arms)", "sum(usd)", "sum(wall_s)")
    by_key: dict[tuple[str, ...], QuestionDigest] = {}
    for row in index.rows_of(
        "runs", (*_KEY, "algorithm", "params", *sums), within, values, f"GROUP BY {','.join(_KEY)},algorithm,params"
    ):
        question = by_key.setdefault(row[:5], QuestionDigest(*row[:5]))
        question.experiments += row[7] or 0
        question.combinations.append(Combination(row[5], json.loads(row[6]), *row[8:]))
    ordered = sorted(
        by_key.values(), key=lambda question: (not question.is_benchmark, -question.experiments, question.label)
    )
    for number, question in enumerate(ordered, start=1):
        question.number = number
    by_place: dict[tuple[str, ...], QuestionDigest] = {
        (question.model, question.backend, question.metric, question.tasks): question for question in by_key.values()
    }
    for place, effects in _list_effects(index, filters).items():
        if place in by_place:
            by_place[place].effects = effects
    return ordered


def _list_effects(index: HistoryIndex, filters: Filters) -> dict[tuple[str, ...], list[Effect]]:
    """Question -> its effects; the same change in several experiments is one effect."""
    within, values = _in_filters(filters, "counts")
    names = ("model", "backend", "metric", "tasks", "algorithm", "axis", "before", "after")
    merged: dict[tuple[Any, ...], Effect] = {}
    for row in index.rows_of("effects", (*names, *_EFFECT_SUMS), within, values, f"GROUP BY {','.join(names)}"):
        sums = row[8:]
        pooled = merged.setdefault(row[:8], Effect(*row[5:8], algorithm=row[4], seeds=sums[9]))
        pooled.n += sums[0]
        pooled.total += sums[1]
        pooled.weight, pooled.weighted, pooled.squares = (
            before + (value or 0.0)
            for before, value in zip((pooled.weight, pooled.weighted, pooled.squares), sums[2:5], strict=True)
        )
        pooled.df += sums[5] or 0.0
        pooled.low, pooled.high = sums[6], sums[7]  # used only if a single experiment has an interval
        pooled.n_weighed += sums[8]
        pooled.seeds = min(pooled.seeds, sums[9])
        pooled.n_up, pooled.n_down = pooled.n_up + (sums[10] or 0), pooled.n_down + (sums[11] or 0)
    by_question: dict[tuple[str, ...], list[Effect]] = {}
    for key, effect in merged.items():
        by_question.setdefault(key[:4], []).append(effect)
    return by_question


def best_runs(index: HistoryIndex, filters: Filters, question: QuestionDigest) -> list[tuple[ExperimentView, RunView]]:
    """The best run on a question; if it has one seed or no support, also the best with more seeds, or supported."""
    chosen = _top_runs(index, filters, question, "1")
    if chosen and chosen[0][1].n_seeds < 2:
        chosen += _top_runs(index, filters, question, "seeds > 1")
    if chosen and chosen[0][0].verdict != "supported":
        chosen += _top_runs(index, filters, question, "verdict = 'supported'")
    return list({(summary.id, run.run): (summary, run) for summary, run in chosen}.values())


def _top_runs(
    index: HistoryIndex, filters: Filters, question: QuestionDigest, which: str
) -> list[tuple[ExperimentView, RunView]]:
    same_question = " AND ".join(f"{name} = ?" for name in _KEY)
    condition = f"counts AND rank IS NOT NULL AND {same_question} AND {which}"
    within, values = _in_filters(filters, condition, *(getattr(question, name) for name in _KEY))
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
    combinations: list[Untried] = []
    for question in questions:
        if question.is_benchmark:
            for algorithm in question.runs_by_algorithm():
                combinations += _combine(question, algorithm)
                combinations += _extend_range(question, algorithm)
            combinations += _transfer(question, [other for other in questions if other is not question])
    return sorted(
        combinations, key=lambda untried: (untried.usd, untried.wall_s)
    )  # a stable sort: of the same price, the first suggestion is the surest


def clear_winners(question: QuestionDigest, algorithm: str) -> dict[str, str]:
    """Axis -> its best value, if it clearly beat another value."""
    winners: dict[str, str] = {}
    for axis in dict.fromkeys(effect.axis for effect in question.effects if effect.algorithm == algorithm):
        effects = [effect for effect in question.effects if (effect.axis, effect.algorithm) == (axis, algorithm)]
        scores = _rank_values(effects, question.sign)
        best = max(scores, key=lambda value: scores[value])
        beaten = [effect for effect in effects if effect.is_clear and not effect.disagrees]
        if any(best == (effect.after if effect.difference * question.sign > 0 else effect.before) for effect in beaten):
            winners[axis] = best
    return winners


def _rank_values(effects: Sequence[Effect], sign: int) -> dict[str, float]:
    """Value -> its difference to the first value, over chains of comparisons; without unreachable values."""
    scores = {effects[0].before: 0.0}
    for _ in effects:  # no chain is longer than the number of effects
        for effect in effects:
            if effect.before in scores:
                scores.setdefault(effect.after, scores[effect.before] + sign * effect.difference)
            elif effect.after in scores:
                scores[effect.before] = scores[effect.after] - sign * effect.difference
    return scores


def _combine(question: QuestionDigest, algorithm: str) -> Iterable[Untried]:
    """The combination of all values that won separately."""
    winners = clear_winners(question, algorithm)
    tried = [combination.params for combination in question.combinations if combination.algorithm == algorithm]
    together = any(all(params.get(axis) == value for axis, value in winners.items()) for params in tried)
    if len(winners) > 1 and not together and all(any(axis in params for params in tried) for axis in winners):
        what = " with ".join(f"{axis}={value}" for axis, value in sorted(winners.items()))
        yield Untried(question, algorithm, what, "each helped alone", *question.arm_cost(algorithm))


def _extend_range(question: QuestionDigest, algorithm: str) -> Iterable[Untried]:
    """The next value of a numeric axis whose best value is the largest or smallest tried one."""
    for axis, best in clear_winners(question, algorithm).items():
        tried = {
            entry.params[axis]
            for entry in question.combinations
            if entry.algorithm == algorithm and axis in entry.params
        }
        numbers = sorted(number for value in tried if (number := _number(value)) is not None and number > 0)
        value = _number(best)
        if value is None or len(numbers) < 2 or value not in (numbers[0], numbers[-1]):
            continue
        neighbour = numbers[1] if value == numbers[0] else numbers[-2]
        further = float(f"{value * value / neighbour:.2g}")  # with the same ratio: after 1e-4 and 3e-4, 9e-4
        are_integers = all(number.is_integer() for number in numbers) and further >= 1
        shown = f"{round(further)}" if are_integers else f"{further:g}"
        if shown not in tried:
            why = f"{best} is the best so far and the last that was tried"
            yield Untried(question, algorithm, f"{axis}={shown}", why, *question.arm_cost(algorithm))


def _transfer(question: QuestionDigest, others: Sequence[QuestionDigest]) -> Iterable[Untried]:
    """Algorithms and values that were used or won on another model with the same tasks."""
    algorithms = question.runs_by_algorithm()
    for other in others:
        if (other.metric, other.tasks, other.mode) != (question.metric, question.tasks, question.mode):
            continue
        for algorithm in other.runs_by_algorithm():
            if algorithm not in algorithms:
                why = f"used on {other.model} only"
                yield Untried(question, algorithm, "", why, *other.arm_cost(algorithm))
                continue
            tried = [combination.params for combination in question.combinations if combination.algorithm == algorithm]
            for axis, value in clear_winners(other, algorithm).items():
                if not any(params.get(axis) == value for params in tried):
                    why = f"it helped {other.model}"
                    yield Untried(question, algorithm, f"{axis}={value}", why, *question.arm_cost(algorithm))


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _in_filters(filters: Filters, condition: str = "", *values: Any) -> tuple[str, list[Any]]:
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
        return [entry for entry in self.verdicts if entry.verdict == verdict]

    @property
    def state(self) -> State:
        supported, refuted = ({entry.question for entry in self.on(verdict)} for verdict in _DECIDED)
        if supported & refuted:
            return "contradicted"
        return "settled" if supported or refuted else "open"

    @property
    def latest(self) -> Verdicts:
        """The latest experiment with the most decisive verdict."""
        for verdict in (*_DECIDED, *_UNDECIDED):
            if entries := self.on(verdict):
                return max(entries, key=lambda entry: (entry.started, entry.id))
        return self.verdicts[0]

    @property
    def count(self) -> int:
        return sum(entry.count for entry in self.verdicts)

    def describe(self, name: Callable[[str], str]) -> str:
        """The verdicts as text, with their experiments, and with their questions if there are several."""
        questions = {entry.question for entry in self.verdicts}
        parts: list[str] = []
        for verdict in (*_DECIDED, *_UNDECIDED):
            for entry in self.on(verdict):
                again = f" and {entry.count - 1} more" if entry.count > 1 else ""
                about = f" on {entry.question}" if len(questions) > 1 else ""
                parts.append(f"{_WORDS.get(verdict, verdict)} by {name(entry.id)}{again}{about}")
        # With several questions, each names its model and backend.
        where = {entry.where for entry in self.verdicts if entry.where}
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
        entry = merged[key, question, verdict]
        entry.count += count
        if not entry.id or (started or 0.0, name) > (entry.started, entry.id):
            entry.started, entry.id, entry.folder = started or 0.0, name, folder
    return sorted(claims.values(), key=lambda claim: (-claim.latest.started, claim.text))


@dataclass(slots=True)
class ReasonGroup:
    """A reason of failures and its count."""

    example: str
    experiment: str
    count: int = 0


def group_reasons(pairs: Iterable[tuple[str, str]]) -> list[ReasonGroup]:
    """Group (experiment, reason) pairs by similar reasons, the most frequent first."""
    variable_parts = re.compile(_VARIABLE_PARTS)  # compiled here, because few calls need it
    groups: dict[str, ReasonGroup] = {}
    for experiment, reason in pairs:
        key = variable_parts.sub("#", reason.split("\n", 1)[0])[:160]
        groups.setdefault(key, ReasonGroup(reason, experiment)).count += 1
    return sorted(groups.values(), key=lambda group: (-group.count, group.example))
