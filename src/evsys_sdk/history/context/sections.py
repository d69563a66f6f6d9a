"""`evsys context`: a digest of all experiments for a coding agent, within a token budget.

By question (one model, one metric, one set of tasks): tried combinations, the best runs with their configs and weights,
and effects of changes. Then claims, cheap untried values, failures, unfinished and excluded experiments. The database
counts and sorts; few whole views are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ...record.layout import ExperimentFiles
from ...record.project_files.known_folders import read_scorings
from ...record.values import Object, number, part, text
from ...record.view.model import ExperimentView, RunView
from ..effects import Effect, in_order
from ..find import shortest
from ..index import HistoryIndex
from ..query import Filters, count_trials, page
from ..text import clip, count_text, duration_text, interval_text, score_text, usd_text
from .digest import Digest, Item, Section
from .questions import (
    QuestionDigest,
    State,
    TriedClaim,
    Untried,
    best_runs,
    find_untried,
    gather_claims,
    group_reasons,
    list_questions,
)

_MOST_ITEMS = 12
"""Limit of items per section, because budgets fit no more."""
_MOST_QUESTIONS = 8
_MOST_VALUES = 6
_ID_DIGITS = 8
_ATTEMPT = re.compile(r"\.\d+$")  # suffix of a later attempt, whose name alone means the latest
_LONGEST = 220
_CERTAINTY = {
    "refuted": "its claim refuted",
    "promising_unconfirmed": "promising",
    "": "no conclusion",
}
_UNFINISHED = ("running", "killed", "interrupted", "budget", "damaged")


def make_digest(
    index: HistoryIndex,
    *,
    goal: str = "",
    budget_tokens: int = 2000,
    filters: Filters | None = None,
    elsewhere: bool = True,
) -> Digest:
    """The digest of the experiments that meet the filters; with `elsewhere`, also of scorings outside of the roots."""
    chosen = filters or Filters()
    query = _DigestQuery(index, chosen)
    questions = list_questions(index, chosen)
    claims = query.claims(
        {
            (question.model.casefold(), question.backend, question.metric, question.tasks): f"Q{question.number}"
            for question in questions
        }
    )
    sections = [
        Section("goal", "Goal", _goal(query, goal), 0.03, "evsys history"),
        *_question_sections(query, chosen, questions),
        _claim_section(query, claims, "contradicted", "Contradicted claims (believe neither)", 0.05),
        _claim_section(query, claims, "settled", "Settled claims", 0.09),
        _claim_section(query, claims, "open", "Open claims", 0.04),
        Section("trials", "Trials of claims", _trials(count_trials(index, chosen)), 0.02, "evsys history"),
        _list_untried(questions),
        _list_excluded(query),
        _list_failed(query),
        _list_unfinished(query),
        _scorings([] if chosen.condition()[0] else read_scorings(index.roots, elsewhere=elsewhere)),
        _notes(query),
        Section("spend", "Spend in all", _spend(query), 0.02, "evsys history --sort spend"),
    ]
    return Digest(sections, budget_tokens)


class _DigestQuery:
    """Queries of the digest, restricted by the filters."""

    def __init__(self, index: HistoryIndex, filters: Filters) -> None:
        self.index = index
        self._condition, self._values = filters.condition()
        self._shared = {row[0] for row in index.rows(("name",), "", (), "GROUP BY name HAVING count(*) > 1")}

    def name(self, experiment_id: str) -> str:
        """The name of an experiment if it is unique, else its id; commands accept both."""
        name, _, suffix = experiment_id.rpartition("-")
        plain = bool(name) and len(suffix) == _ID_DIGITS and name not in self._shared and not _ATTEMPT.search(name)
        return name if plain else experiment_id

    def rows(
        self, columns: Sequence[str], condition: str = "", values: Sequence[Any] = (), tail: str = ""
    ) -> list[Any]:
        return self.index.rows(columns, self._within(condition), [*self._values, *values], tail)

    def top(
        self, condition: str, values: Sequence[Any] = (), *, order: str = "newest", most: int = _MOST_ITEMS
    ) -> list[ExperimentView]:
        """The first experiments that meet a condition."""
        return page(self.index, (self._within(condition), [*self._values, *values]), sort=order, limit=most)[0]

    def count(self, condition: str, values: Sequence[Any] = ()) -> int:
        return sum(row[0] for row in self.rows(("count(*)",), condition, values))

    def claims(self, questions: dict[tuple[str, ...], str]) -> list[TriedClaim]:
        """Every claim with a verdict that counts."""
        names = ("claim", "models", "backends", "metric", "tasks", "verdict")
        # For a bare column next to max(), SQLite returns the value of the row with the maximum.
        return gather_claims(
            self.rows(
                (*names, "count(*)", "max(started)", "id", "folder"),
                "counts AND verdict != '' AND same_evidence = ''",  # repeated evidence gives no second verdict
                (),
                f"GROUP BY {','.join(names)}",
            ),
            questions,
        )

    def _within(self, condition: str) -> str:
        return " AND ".join(f"({part})" for part in (self._condition, condition) if part)


def _goal(query: _DigestQuery, goal: str) -> list[Item]:
    if goal:
        return [Item(clip(goal, 2 * _LONGEST), {"goal": goal})]
    counts: dict[str, int] = {}
    for tags, count in query.rows(("tags", "count(*)"), "tags != ''", (), "GROUP BY tags"):
        for tag in filter(None, tags.split("|")):
            counts[tag] = counts.get(tag, 0) + count
    tags = sorted(counts, key=lambda tag: (-counts[tag], tag))[:6]
    latest = next((view.hypothesis for view in query.top("", most=5) if view.hypothesis), "")
    items: list[Item] = []
    if tags:
        shown = ", ".join(f"{tag} ({counts[tag]:,})" for tag in tags)
        items.append(Item(f"by tags: {shown}", {"tags": {tag: counts[tag] for tag in tags}}))
    if latest:
        items.append(Item(f"latest claim: {clip(latest, _LONGEST)}", {"latest_hypothesis": latest}))
    return items


def _question_sections(query: _DigestQuery, filters: Filters, questions: Sequence[QuestionDigest]) -> list[Section]:
    """The sections of the first questions, with decreasing shares."""
    shown = questions[:_MOST_QUESTIONS]
    weights = [1 / (place + 4) for place in range(len(shown))]  # the eighth has a third of the first
    sections: list[Section] = []
    for question, weight in zip(shown, weights, strict=True):
        best = best_runs(query.index, filters, question)
        items = [_best_item(query, *pair, is_start=pair[1].n_seeds > 1 or len(best) == 1) for pair in best]
        items = [*items, *_effect_items(question)] or [Item("nothing to count on so far", {}, "best")]
        share = 0.7 * weight / sum(weights)
        sections.append(
            Section("questions", _question_title(question), items, share, "", head=_question_data(question))
        )
    return sections or [Section("questions", "Questions", [], 0.0, "", head={})]


def _question_title(question: QuestionDigest) -> str:
    runs = ", ".join(f"{algorithm or 'unknown'} {count:,}" for algorithm, count in question.runs_by_algorithm().items())
    less = ", less is better" if question.mode == "min" else ""
    training = "" if question.is_benchmark else " (measured in training)"
    return f"Q{question.number} {question.label}{less}{training}: experiments {question.experiments:,}, runs {runs}"


def _question_data(question: QuestionDigest) -> dict[str, Any]:
    data = {"question": f"Q{question.number}", "model": question.model, "backend": question.backend}
    data |= {"metric": question.metric, "mode": question.mode}
    return {**data, "tasks": question.tasks, "experiments": question.experiments, "runs": question.runs_by_algorithm()}


def _best_item(query: _DigestQuery, summary: ExperimentView, run: RunView, *, is_start: bool) -> Item:
    """A best run with the certainty of its score and, with `is_start`, its config, data and weights."""
    seeds = f"{run.n_seeds} seed{'s' if run.n_seeds != 1 else ''}"
    sure = _CERTAINTY.get(summary.verdict, summary.verdict)
    step = f"stopped at step {run.step}" if run.step is not None else ""
    score = score_text(run.score) + ("" if run.low is None or run.high is None else f" [{run.low:.2g}, {run.high:.2g}]")
    recipe = " ".join([run.algorithm, *(f"{name}={value}" for name, value in run.params.items())])
    config = shortest(ExperimentFiles(summary.folder).config)
    parts = [f"run {run.run} of {query.name(summary.id)}"]
    if is_start:
        parts += [
            f"data {run.data}" if run.data else "",
            f"weights {shortest(run.checkpoint)}" if run.checkpoint else "",
        ]
        parts.append(f"evsys run {config} --fresh")
    remarks = ", ".join(filter(None, (seeds, sure, step)))
    line = f"best {score} ({remarks}): {clip(recipe, _LONGEST)}; " + "; ".join(filter(None, parts))
    data = {"score": run.score, "low": run.low, "high": run.high, "covers": run.covers, "seeds": run.n_seeds}
    data |= {"step": run.step, "verdict": summary.verdict, "id": summary.id, "run": run.run, "data": run.data}
    data |= {"algorithm": run.algorithm, "params": run.params, "weights": run.checkpoint, "config": config}
    return Item(line, {name: value for name, value in data.items() if value not in (None, "")}, "best")


def _effect_items(question: QuestionDigest) -> list[Item]:
    """One statement per axis of each algorithm, with all compared values."""
    axes: dict[tuple[str, str], list[Effect]] = {}
    for effect in question.effects:
        axes.setdefault((effect.algorithm, effect.axis), []).append(effect)
    ranked = sorted(axes.items(), key=lambda pair: (*_place(pair[1]), pair[0]))
    items: list[Item] = []
    for (algorithm, axis), effects in ranked:
        shown = sorted(effects, key=lambda one: _place([one]))[:_MOST_VALUES]
        shown.sort(key=lambda one: (in_order(one.before), in_order(one.after)))
        changes = [f"{one.before} -> {one.after} {_effect_text(one)}" for one in shown]
        data: dict[str, Any] = {"algorithm": algorithm, "axis": axis, "changes": [_effect_data(one) for one in shown]}
        if n_omitted := len(effects) - len(shown):
            changes.append(f"{n_omitted} more values, no larger")
            data["left_out"] = n_omitted
        items.append(Item(f"effect of {f'{algorithm} {axis}'.strip()}: {'; '.join(changes)}", data, "effects"))
    return items


def _place(effects: Sequence[Effect]) -> tuple[bool, float]:
    """Sort key: clear effects first, then large ones."""
    return not any(effect.is_clear for effect in effects), -max(abs(effect.difference) for effect in effects)


def _effect_text(effect: Effect) -> str:
    interval = effect.interval
    shown = f" [{interval[0]:.2g}, {interval[1]:.2g}]" if interval else " (no interval)"
    remarks = [f"{effect.n:,} experiments"] if effect.n > 1 else []
    remarks += ["1 seed"] if effect.seeds < 2 else []
    remarks += ["they disagree"] if effect.disagrees else []
    return f"{effect.difference:+.2g}{shown}" + (f" ({', '.join(remarks)})" if remarks else "")


def _effect_data(effect: Effect) -> dict[str, Any]:
    low, high = effect.interval or (None, None)
    data = {"before": effect.before, "after": effect.after, "difference": _short(effect.difference)}
    data |= {"low": _short(low), "high": _short(high), "experiments": effect.n, "seeds": effect.seeds}
    return data | ({"disagree": True} if effect.disagrees else {})


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _claim_section(
    query: _DigestQuery, claims: Sequence[TriedClaim], state: State, title: str, share: float
) -> Section:
    chosen = [claim for claim in claims if claim.state == state]
    if state == "open":  # promising claims first
        chosen.sort(key=lambda claim: claim.latest.verdict != "promising_unconfirmed")
    items = [_claim_item(query, claim) for claim in chosen[:_MOST_ITEMS]]
    command = f"evsys history --verdict {'inconclusive' if state == 'open' else 'supported'}"
    return Section(state, title, items, share, command, len(chosen))


def _claim_item(query: _DigestQuery, claim: TriedClaim) -> Item:
    # By both, because roots may have folders of the same name, and copies have the same id.
    views = query.top("folder = ? AND id = ?", [claim.latest.folder, claim.latest.id], most=1)
    claim_text = next((view.hypothesis or view.name for view in views), claim.text)
    data: dict[str, Any] = {"claim": claim_text, "state": claim.state}
    data["verdicts"] = [
        {"verdict": entry.verdict, "question": entry.question, "experiments": entry.count, "latest": entry.id}
        for entry in claim.verdicts
    ]
    line = f"{clip(claim_text, _LONGEST).rstrip('.')}: {claim.describe(query.name)}"
    for view in views:
        if claim.state == "open" and view.next:
            line, data["next"] = f"{line}. Next: {clip(view.next, _LONGEST // 2)}", view.next
    return Item(line, data)


def _trials(trials: dict[str, float]) -> list[Item]:
    """The expected number of false supported claims."""
    sentence = "{tested} tested, {supported} supported; expected to be false: at most {expected_false:.2g}"
    return [Item(sentence.format(**trials), trials)] if trials else []


def _list_untried(questions: Sequence[QuestionDigest]) -> Section:
    untried = find_untried(questions)
    items = [Item(_untried_text(entry), _untried_data(entry)) for entry in untried[:_MOST_ITEMS]]
    return Section("untried", "Untried, cheapest first", items, 0.05, "", len(untried))


def _untried_text(untried: Untried) -> str:
    price = [usd_text(untried.usd)] if untried.usd else []
    price += [duration_text(untried.wall_s)] if untried.wall_s >= 0.1 or not price else []
    what = f"{untried.algorithm} {untried.what}".rstrip()
    return f"about {', '.join(price)} an arm: Q{untried.question.number} {what} ({untried.why})"


def _untried_data(untried: Untried) -> dict[str, Any]:
    question = {"question": f"Q{untried.question.number}"}
    cost = {"usd": _short(untried.usd), "wall_s": _short(untried.wall_s)}
    return {**question, "algorithm": untried.algorithm, "what": untried.what, "why": untried.why, **cost}


def _list_excluded(query: _DigestQuery) -> Section:
    marked, judged = "invalidated != ''", "NOT counts AND invalidated = ''"
    views = [*query.top(marked), *query.top(judged)][:_MOST_ITEMS]
    reasons = [(view.id, clip(_exclusion_reason(view), _LONGEST)) for view in views]
    items = [Item(f"{query.name(view)}: {reason}", {"id": view, "reason": reason}) for view, reason in reasons]
    once = "counts AND seeds = 1 AND score IS NOT NULL AND status NOT IN ('running', 'killed', 'interrupted')"
    single = sorted(query.rows(("started", "id"), once, (), f"ORDER BY started DESC LIMIT {_MOST_ITEMS}"), reverse=True)
    total = query.count(marked) + query.count(judged)
    if single:
        names, count = [row[1] for row in single[:_MOST_ITEMS]], query.count(once)
        more = f" and {count - len(names):,} more" if count > len(names) else ""
        line = f"one seed; noise may explain them: {', '.join(map(query.name, names))}{more}"
        items.append(Item(line, {"ids": names, "count": count, "reason": "one seed"}))
        total += 1
    return Section("distrusted", "Do not count on these", items, 0.06, "evsys history --all", total)


def _exclusion_reason(view: ExperimentView) -> str:
    flagged = f"flagged by its audit: {', '.join(view.flags)}" if view.flags else ""
    return view.invalidated or flagged or view.sentence or "its conclusion is invalid"


def _list_failed(query: _DigestQuery) -> Section:
    rows = query.rows(("started", "id", "reasons"), "reasons != ''")
    rows.sort(key=lambda row: (-(row[0] or 0.0), row[1]))
    groups = group_reasons((row[1], reason) for row in rows for reason in json.loads(row[2]))
    items = [
        Item(
            f"{group.count:,}x {clip(group.example, _LONGEST)} (last in {query.name(group.experiment)})",
            {"count": group.count, "reason": clip(group.example, 2 * _LONGEST), "last_in": group.experiment},
        )
        for group in groups[: 2 * _MOST_ITEMS]
    ]
    return Section("failed", "What failed, and why", items, 0.05, "evsys history --status failed --all", len(groups))


def _list_unfinished(query: _DigestQuery) -> Section:
    condition = f"status IN ({','.join('?' * len(_UNFINISHED))})"
    items = [_describe_unfinished(query, view) for view in query.top(condition, _UNFINISHED)]
    command = f"evsys history {' '.join(f'--status {status}' for status in _UNFINISHED)}"
    title = "Unfinished (evsys run CONFIG --resume continues)"
    return Section("unfinished", title, items, 0.04, command, query.count(condition, _UNFINISHED))


def _describe_unfinished(query: _DigestQuery, view: ExperimentView) -> Item:
    config = shortest(ExperimentFiles(view.folder).config)
    data: dict[str, Any] = {"id": view.id, "status": view.status, "config": config}
    line = f"{query.name(view.id)}: {view.status}"
    if view.best_score is not None:
        at = "" if view.best_step is None else f" at step {view.best_step}"
        line += f", best run {view.best_run} {score_text(view.best_score)}{at} by {view.metric}"
        data |= {"run": view.best_run, "score": view.best_score, "step": view.best_step, "metric": view.metric}
    return Item(f"{line}; {config}", data)


def _scorings(scorings: Sequence[Object]) -> Section:
    """The section of models that were scored without training."""
    items = [_describe_scoring(scoring, name) for scoring in scorings for name in part(scoring, "metrics")]
    command = "evsys benchmark run --help"
    return Section("scorings", "Models scored without training", items[:_MOST_ITEMS], 0.03, command, len(items))


def _describe_scoring(scoring: Object, metric: str) -> Item:
    score, sha256, tasks = part(scoring, "metrics", metric), text(scoring.get("sha256")), number(scoring.get("n_tasks"))
    value, low, high = (number(score.get(name)) for name in ("value", "low", "high"))
    about = " ".join(filter(None, (f"{tasks:.0f} tasks" if tasks else "", sha256[:6])))
    shown = " ".join(filter(None, (score_text(value), interval_text(low, high))))
    line = f"{text(scoring.get('model'))}, {text(scoring.get('benchmark'))}/{metric}, {about}: {shown}"
    data = {"model": scoring.get("model"), "benchmark": scoring.get("benchmark"), "metric": metric, "tasks": about}
    return Item(line, {**data, "score": value, "low": low, "high": high, "path": scoring.get("path")})


def _notes(query: _DigestQuery) -> Section:
    noted = query.top("n_notes > 0")
    notes = [(note.time or 0.0, view.id, note.text) for view in noted for note in view.notes]
    notes.sort(key=lambda note: (-note[0], note[1], note[2]))
    shown = [
        Item(f"{query.name(experiment)}: {clip(text, _LONGEST)}", {"id": experiment, "text": clip(text, 2 * _LONGEST)})
        for _, experiment, text in notes[:_MOST_ITEMS]
    ]
    total = sum(row[0] or 0 for row in query.rows(("sum(n_notes)",), "n_notes > 0"))
    return Section("notes", "Notes", shown, 0.04, "evsys show EXPERIMENT", total)


def _spend(query: _DigestQuery) -> list[Item]:
    names = ("n_arms", "tokens", "usd", "wall_s", "gpu_s")
    rows = query.rows(("count(*)", "count(usd)", *(f"sum({name})" for name in names)))
    total = [sum(row[column] or 0 for row in rows) for column in range(2 + len(names))]
    experiments, priced, arms, tokens, usd, wall_s, gpu_s = total
    if not experiments:
        return []
    data: dict[str, Any] = {"experiments": experiments, "arms": arms, "tokens": tokens, "wall_s": wall_s}
    data |= {"gpu_s": gpu_s, "usd": round(usd, 6) if priced else None, "experiments_with_a_price": priced}
    parts = [f"{experiments:,} experiment{'s' if experiments != 1 else ''}, {arms:,} arm{'s' if arms != 1 else ''}"]
    if usd:
        parts.append(usd_text(usd) + (f" (price known of {priced:,})" if priced < experiments else ""))
    parts += [f"{count_text(tokens)} tokens"] if tokens else []
    parts += [duration_text(wall_s)] if wall_s else []
    parts += [f"{duration_text(gpu_s)} of GPU"] if gpu_s else []
    return [Item(", ".join(parts), data)]
