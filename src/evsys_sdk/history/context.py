"""`evsys context`: what a coding agent has to know before it writes the next experiment, within a budget of tokens.

Goal, best so far and how sure that is, open questions, what was tried, what is settled, what failed and why, notes,
spend, and what must not be believed. The database counts and sorts; whole summaries are read of very few.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .digest import Digest, Item, Section
from .filters import ORDERS, Filters
from .index import HistoryIndex
from .summary import ExperimentSummary
from .text import clip, count_text, duration_text, interval_text, score_text, usd_text
from .tried import Combination, tried_items

_MOST_ITEMS = 12
"""Of each section; budgets have no room for more, and whole summaries are read for no more."""
_MOST_METRICS = 3
_LONGEST = 220
_SURENESS = {
    "supported": "supported",
    "refuted": "its hypothesis was refuted",
    "inconclusive": "inconclusive: may be noise",
    "promising_unconfirmed": "promising, not confirmed",
    "": "no conclusion: only a hint",
}
_UNFINISHED = ("running", "killed", "interrupted", "budget", "damaged")


def make_digest(
    index: HistoryIndex, *, goal: str = "", budget_tokens: int = 2000, filters: Filters | None = None
) -> Digest:
    """The digest of everything that meets the filters."""
    ask = _Questions(index, filters or Filters())
    tried = ask.tried()
    metrics = _metrics(tried)
    main = metrics[0] if metrics else ""
    sections = [
        Section("goal", "Goal", _goal(ask, goal), 0.1, "evsys history"),
        Section("best", "Best so far", _best(ask, metrics), 0.25, "evsys history --sort score"),
        _open_questions(ask, main),
        Section("tried", "What was tried", tried_items(tried, main), 0.25, "evsys history --algorithm NAME"),
        _settled(ask),
        _failed(ask),
        _unfinished(ask),
        _notes(ask),
        _invalidated(ask),
        Section("spend", "Spend in all", _spend(ask), 0.05, "evsys history --sort spend"),
    ]
    return Digest(sections, budget_tokens)


class _Questions:
    """What the digest asks the index, within the filters."""

    def __init__(self, index: HistoryIndex, filters: Filters) -> None:
        self._index = index
        self._condition, self._values = filters.condition()

    def rows(
        self, columns: Sequence[str], condition: str = "", values: Sequence[Any] = (), tail: str = ""
    ) -> list[Any]:
        return self._index.rows(columns, self._within(condition), [*self._values, *values], tail)

    def top(
        self, condition: str, values: Sequence[Any] = (), *, order: str = "newest", most: int = _MOST_ITEMS
    ) -> list[ExperimentSummary]:
        """The first experiments that meet a condition."""
        tail = f"ORDER BY {ORDERS[order].sql} LIMIT {most}"
        found = self._index.summaries(self._within(condition), [*self._values, *values], tail)
        return sorted(found, key=ORDERS[order].key)[:most]

    def count(self, condition: str, values: Sequence[Any] = ()) -> int:
        return sum(row[0] for row in self.rows(("count(*)",), condition, values))

    def counted(self, column: str) -> dict[str, int]:
        """How many experiments have each value of a column."""
        counts: dict[str, int] = {}
        for value, count in self.rows((column, "count(*)"), "", (), f"GROUP BY {column}"):
            counts[value] = counts.get(value, 0) + count
        return counts

    def tried(self) -> list[Combination]:
        """Experiments that differ in nothing that was tried, as one row."""
        # Of a bare column beside max() or min(), SQLite takes the value in the row that has it.
        best = "max(CASE WHEN counts AND score IS NOT NULL THEN CASE mode WHEN 'min' THEN -score ELSE score END END)"
        total = "sum(CASE WHEN counts THEN score END)"
        columns = ("algorithms", "metric", "mode", "tried", "count(*)", "sum(n_runs)", total)
        scored = "sum(counts AND score IS NOT NULL)"
        found = self.rows((*columns, scored, best, "id"), "", (), "GROUP BY algorithms, metric, mode, tried")
        return list(map(Combination._make, found))

    def _within(self, condition: str) -> str:
        return " AND ".join(f"({part})" for part in (self._condition, condition) if part)


def _metrics(tried: Sequence[Combination]) -> list[str]:
    """The metrics that scores are in, the one of most experiments first."""
    counts: dict[str, int] = {}
    for one in tried:
        if one.scored:
            counts[one.metric] = counts.get(one.metric, 0) + one.scored
    return sorted(counts, key=lambda metric: (-counts[metric], metric))


def _goal(ask: _Questions, goal: str) -> list[Item]:
    if goal:
        return [Item(clip(goal, 2 * _LONGEST), {"goal": goal})]
    counts: dict[str, int] = {}
    for tags, count in ask.counted("tags").items():
        for tag in filter(None, tags.split("|")):
            counts[tag] = counts.get(tag, 0) + count
    tags = sorted(counts, key=lambda tag: (-counts[tag], tag))[:6]
    latest = next((one.hypothesis for one in ask.top("", most=5) if one.hypothesis), "")
    found: list[Item] = []
    if tags:
        shown = ", ".join(f"{tag} ({counts[tag]:,})" for tag in tags)
        found.append(Item(f"by tags: {shown}", {"tags": {tag: counts[tag] for tag in tags}}))
    if latest:
        found.append(Item(f"latest hypothesis: {clip(latest, _LONGEST)}", {"latest_hypothesis": latest}))
    return found


def _best(ask: _Questions, metrics: Sequence[str]) -> list[Item]:
    chosen: list[ExperimentSummary] = []
    for metric in metrics[:_MOST_METRICS]:
        best = ask.top("counts AND score IS NOT NULL AND metric = ?", [metric], order="score", most=1)
        chosen += best
        if best and best[0].verdict != "supported":
            condition = "counts AND score IS NOT NULL AND metric = ? AND verdict = 'supported'"
            chosen += ask.top(condition, [metric], order="score", most=1)
    return [Item(_best_text(one), _brief(one)) for one in chosen]


def _best_text(one: ExperimentSummary) -> str:
    interval = interval_text(one.best_low, one.best_high, one.best_covers)
    seeds = f"{one.best_seeds} seed{'s' if one.best_seeds != 1 else ''}" if one.best_seeds else ""
    tasks = f"{one.best_tasks} tasks" if one.best_tasks else ""
    sure = ", ".join(part for part in (_SURENESS.get(one.verdict, one.verdict), seeds, tasks) if part)
    claim = f" {clip(one.hypothesis, _LONGEST)}" if one.hypothesis else ""
    score = " ".join(part for part in (one.metric, score_text(one.best_score), interval) if part)
    return f"{score}: {one.id}, run {one.best_run} ({sure}).{claim}"


def _brief(one: ExperimentSummary) -> dict[str, Any]:
    """What an agent needs of one experiment, without what is empty."""
    found: dict[str, Any] = {"id": one.id, "verdict": one.verdict, "metric": one.metric, "score": one.best_score}
    found |= {
        "low": one.best_low,
        "high": one.best_high,
        "covers": one.best_covers,
        "run": one.best_run,
        "seeds": one.best_seeds or None,
    }
    found |= {"hypothesis": one.hypothesis, "why": one.sentence, "next": one.next}
    return {name: value for name, value in found.items() if value not in (None, "")}


def _open_questions(ask: _Questions, main: str) -> Section:
    shown: list[ExperimentSummary] = []
    for verdict in ("promising_unconfirmed", "inconclusive"):
        for same in ("=", "!="):  # what the others are about first
            if left := _MOST_ITEMS - len(shown):
                condition = f"counts AND verdict = ? AND metric {same} ?"
                shown += ask.top(condition, [verdict, main], order="score", most=left)
    items = [Item(f"{one.id} ({_SURENESS[one.verdict]}): {_claim(one)}{_next(one)}", _brief(one)) for one in shown]
    total = ask.count("counts AND verdict IN ('promising_unconfirmed', 'inconclusive')")
    command = "evsys history --verdict promising_unconfirmed --verdict inconclusive --all"
    return Section("open_questions", "Open questions", items, 0.2, command, total)


def _settled(ask: _Questions) -> Section:
    condition = "counts AND verdict IN ('supported', 'refuted')"
    shown = [Item(f"{one.verdict}: {_claim(one)} ({one.id})", _brief(one)) for one in ask.top(condition)]
    command = "evsys history --verdict supported --verdict refuted --all"
    return Section("settled", "Settled", shown, 0.15, command, ask.count(condition))


def _claim(one: ExperimentSummary) -> str:
    return clip(one.hypothesis or one.sentence or one.name, _LONGEST)


def _next(one: ExperimentSummary) -> str:
    return f" Next: {clip(one.next, _LONGEST)}" if one.next else ""


def _failed(ask: _Questions) -> Section:
    from .reasons import grouped_reasons

    rows = ask.rows(("started", "id", "reasons"), "reasons != ''")
    rows.sort(key=lambda row: (-(row[0] or 0.0), row[1]))
    groups = grouped_reasons((row[1], reason) for row in rows for reason in json.loads(row[2]))
    shown = [
        Item(
            f"{group.count:,}x {clip(group.example, _LONGEST)} (last in {group.experiment})",
            {"count": group.count, "reason": clip(group.example, 2 * _LONGEST), "last_in": group.experiment},
        )
        for group in groups[: 2 * _MOST_ITEMS]
    ]
    return Section("failed", "What failed, and why", shown, 0.15, "evsys history --status failed --all", len(groups))


def _unfinished(ask: _Questions) -> Section:
    condition = f"status IN ({','.join('?' * len(_UNFINISHED))})"
    shown = [
        Item(f"{one.id}: {one.status}", {"id": one.id, "status": one.status}) for one in ask.top(condition, _UNFINISHED)
    ]
    command = f"evsys history {' '.join(f'--status {status}' for status in _UNFINISHED)}"
    total = ask.count(condition, _UNFINISHED)
    return Section("unfinished", "Unfinished (evsys show says how to resume)", shown, 0.05, command, total)


def _notes(ask: _Questions) -> Section:
    noted = ask.top("n_notes > 0")
    notes = [(note.time or 0.0, one.id, note.text) for one in noted for note in one.notes]
    notes.sort(key=lambda note: (-note[0], note[1], note[2]))
    shown = [
        Item(f"{experiment}: {clip(text, _LONGEST)}", {"id": experiment, "text": clip(text, 2 * _LONGEST)})
        for _, experiment, text in notes[:_MOST_ITEMS]
    ]
    total = sum(row[0] or 0 for row in ask.rows(("sum(n_notes)",), "n_notes > 0"))
    return Section("notes", "Notes", shown, 0.1, "evsys show EXPERIMENT", total)


def _invalidated(ask: _Questions) -> Section:
    marked, judged = "invalidated != ''", "NOT counts AND invalidated = ''"
    found = [*ask.top(marked), *ask.top(judged)][:_MOST_ITEMS]
    reasons = [(one.id, clip(_why_not(one), _LONGEST)) for one in found]
    shown = [Item(f"{name}: {reason}", {"id": name, "reason": reason}) for name, reason in reasons]
    total = ask.count(marked) + ask.count(judged)
    return Section("invalidated", "Invalid: do not count on these", shown, 0.1, "evsys history --all", total)


def _why_not(one: ExperimentSummary) -> str:
    flagged = f"its record contradicts itself (evsys audit: {', '.join(one.flags)})" if one.flags else ""
    return one.invalidated or flagged or one.sentence or "its conclusion is invalid"


def _spend(ask: _Questions) -> list[Item]:
    names = ("n_arms", "tokens", "usd", "wall_s", "gpu_s")
    rows = ask.rows(("count(*)", "count(usd)", *(f"sum({name})" for name in names)))
    total = [sum(row[column] or 0 for row in rows) for column in range(2 + len(names))]
    experiments, priced, arms, tokens, usd, wall_s, gpu_s = total
    if not experiments:
        return []
    data: dict[str, Any] = {
        "experiments": experiments,
        "arms": arms,
        "tokens": tokens,
        "wall_s": wall_s,
        "gpu_s": gpu_s,
    }
    data |= {"usd": round(usd, 6) if priced else None, "experiments_with_a_price": priced}
    parts = [f"{experiments:,} experiment{'s' if experiments != 1 else ''}, {arms:,} arm{'s' if arms != 1 else ''}"]
    if usd:
        parts.append(usd_text(usd) + (f" (price known of {priced:,})" if priced < experiments else ""))
    parts += [f"{count_text(tokens)} tokens"] if tokens else []
    parts += [duration_text(wall_s)] if wall_s else []
    parts += [f"{duration_text(gpu_s)} of GPU"] if gpu_s else []
    return [Item(", ".join(parts), data)]
