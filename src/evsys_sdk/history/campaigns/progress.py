"""The progress of a campaign, computed from the records of its experiments.

Spend comes from the ledger. A running experiment counts with the most it may take, so that two agents that start at the
same time cannot both spend the same budget.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...record.view.model import ExperimentView
from ...record.view.question import Question
from ..find import experiment_roots
from ..index import HistoryIndex
from ..query import Filters, select
from .campaign import Admission, Campaign

OPEN = "open"
_START_S = 300.0
"""Time for which an admitted experiment without a record counts as about to start."""


@dataclass(frozen=True)
class CampaignProgress:
    """The state of a campaign, with its spend and best experiment."""

    state: str
    """open, met, spent, stalled or closed."""
    why: str
    experiments: list[ExperimentView]
    """Oldest first."""
    best: ExperimentView | None
    spent: dict[str, float]
    """Spend by limit (experiments, tokens, usd, hours), including the reservations of running experiments."""
    left: dict[str, float]
    """Remaining amount of each limit that is set."""
    suggestions: list[str] = field(default_factory=list[str])
    """Next steps from the conclusions of its latest experiments."""
    question: Question | None = None
    """The question of the first experiment with an answer; only experiments with the same question are compared."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "state": self.state,
            "why": self.why,
            "question": self.question.to_dict() if self.question else None,
            "best": _brief(self.best) if self.best else None,
            "spent": self.spent,
            "left": self.left,
            "experiments": [_brief(view) for view in self.experiments],
            "suggestions": self.suggestions,
        }


def _brief(view: ExperimentView) -> dict[str, Any]:
    data = {"id": view.id, "status": view.status, "verdict": view.verdict, "metric": view.metric}
    data |= {"score": view.best_score, "question": view.question.label}
    return {**data, "low": view.best_low, "high": view.best_high, "claim": view.hypothesis, "parent": view.parent_id}


def measure_progress(campaign: Campaign) -> CampaignProgress:
    """Read the experiments of a campaign and compute its progress."""
    with HistoryIndex(experiment_roots()) as index:
        experiments = select(index, Filters(tags=[campaign.tag]), sort="oldest")
    return judge_progress(campaign, experiments, time.time())


def judge_progress(campaign: Campaign, experiments: Sequence[ExperimentView], now: float) -> CampaignProgress:
    """Compute the progress of a campaign from its experiments."""
    spent = _spent(campaign, experiments, now)
    terms = campaign.terms
    limits = {"experiments": terms.experiments, "tokens": terms.tokens, "usd": terms.usd, "hours": terms.hours}
    left = {name: max(limit - spent[name], 0.0) for name, limit in limits.items() if limit is not None}
    answered = [view for view in experiments if view.answer is not None]
    question = answered[0].question if answered else None
    counted = [view for view in answered if view.question == question]
    best = max(counted, key=_value, default=None)  # the first of equal scores, as a later one is no improvement
    state, why = _state(campaign, counted, best, left)
    suggestions = dict.fromkeys(view.next for view in reversed(experiments) if view.next and view.counts)
    return CampaignProgress(state, why, list(experiments), best, spent, left, list(suggestions)[:5], question)


def _state(
    campaign: Campaign, counted: Sequence[ExperimentView], best: ExperimentView | None, left: dict[str, float]
) -> tuple[str, str]:
    terms = campaign.terms
    # Closing comes first, then the goal, then the limits: a goal met with the last of the budget counts as met.
    if campaign.closed:
        return "closed", campaign.closed
    if terms.goal is not None:
        reached = [view for view in counted if view.verdict == "supported" and _reaches(view, terms.goal)]
        if reached:
            return "met", f"{reached[0].id} is supported with {reached[0].best_score:g}, and the goal is {terms.goal:g}"
    if over := [name for name, rest in left.items() if rest <= 0]:
        return "spent", f"nothing is left of its {over[0]}"
    since = 0 if best is None else len(counted) - 1 - counted.index(best)
    if since >= terms.patience:
        return "stalled", f"{since} experiments in a row did not raise the best score"
    return OPEN, "its budget is not spent, and no stopping rule applies"


def _value(view: ExperimentView) -> float:
    score = view.answer or 0.0
    return -score if view.question.direction == "min" else score


def _reaches(view: ExperimentView, goal: float) -> bool:
    return _value(view) >= (-goal if view.question.direction == "min" else goal)


def _spent(campaign: Campaign, experiments: Sequence[ExperimentView], now: float) -> dict[str, float]:
    spent = {"experiments": float(len(experiments)), "tokens": 0.0, "usd": 0.0, "hours": 0.0}
    for view in experiments:
        spent["tokens"] += view.spend.get("tokens_trained", 0.0) + view.spend.get("tokens_sampled", 0.0)
        spent["usd"] += view.spend.get("usd", 0.0)
        spent["hours"] += view.spend.get("wall_s", 0.0) / 3600
    for admission in campaign.admissions:
        experiment = _experiment_of(admission, experiments)
        # An admitted experiment has no record before its first event, and must count nevertheless.
        if experiment is None and now - admission.time < _START_S:
            spent["experiments"] += 1
        if (experiment is None and now - admission.time < _START_S) or (experiment is not None and experiment.is_live):
            used = {} if experiment is None else experiment.spend
            so_far = used.get("tokens_trained", 0.0) + used.get("tokens_sampled", 0.0)
            spent["tokens"] += max(admission.tokens - so_far, 0.0)
            spent["usd"] += max(admission.usd - used.get("usd", 0.0), 0.0)
    return spent


def _experiment_of(admission: Admission, experiments: Sequence[ExperimentView]) -> ExperimentView | None:
    """The experiment that an admission started, or None."""
    matches = [
        view for view in experiments if view.name == admission.experiment and (view.started or 0.0) >= admission.time
    ]
    return min(matches, key=lambda view: view.started or 0.0, default=None)
