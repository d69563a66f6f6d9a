"""Drive a campaign through its portfolio: probe every family, train the most promising, confirm the best, export it.

    driver = Driver("night", until=time.time() + 8 * 3600)
    for step in driver.steps():
        print(step.action, step.family, step.reason)

Each decision is written to the journal of the campaign before it is carried out, so that a restarted process continues
with it; all other state is read from the records of the experiments. Each family is one experiment that is resumed
with a higher limit. Its spend and scores are the input of `policy.decide`.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from ...config import ExperimentConfig
from ...config.experiment import Budget
from ...errors import ConfigError, DataError, EvsysError, WorkspaceError, show, suggest
from ...experiment.deadline import DeadlineTooShort
from ...experiment.experiment import Experiment
from ...experiment.plan.plan import forecast_scoring, plan_experiment
from ...experiment.plan.plan_hash import hash_plan
from ...history.campaigns.campaign import Campaign, close_campaign, load_campaign
from ...history.detail import read_detail
from ...history.text import count_text, duration_text
from ...history.views.export import export_weights
from ...log import get_logger
from ...paths import in_project
from ...record.approvals import APPROVED
from ...record.events import Event, Kind
from ...record.folders import latest_attempt
from ...record.lock import folder_lock
from ...record.project_files.journals import campaign_dir, change_campaign
from ...record.reader import ExperimentRecord
from ...record.run_files.scores import metric_name
from ...record.runs import RunRecord
from ...record.values import number
from ...record.view.build import view
from .admission import CampaignRefusal, require_approval
from .measured import ended_at, read_point, spent_amount
from .policy import CONFIRM, STOP, TRAIN, CampaignDecision, DecisionInputs, FamilyState, Point, decide
from .portfolio import Portfolio

START, EXPORT, BLOCKED = "start", "export", "blocked"
_RESERVE = 0.02
"""Share of the time reserved for the export; experiments reserve the time for their conclusion themselves."""
_MOST_RESERVE_S = 60.0
_FIT = 0.8
"""Share of the remaining budget planned for training the confirmation; the rest is for scoring."""
_LATE = "stopped by the deadline before a confirmation"
_UNITS = {"wall_s": "s", "tokens": "tokens", "usd": "usd"}


@dataclass(frozen=True, slots=True)
class CampaignStep:
    """A completed step of a campaign."""

    action: str
    family: str
    reason: str
    outcome: str = ""
    over: bool = False
    """Whether the deadline or the budget ended the campaign before its confirmation was complete."""
    stop: str = ""
    """Why the driver stops although the campaign is open: `interrupted`, or `waiting` for an approval."""

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class Driver:
    """Drives one campaign with a portfolio."""

    def __init__(self, name: str, *, until: float | None = None) -> None:
        self.name = name
        if not (campaign := load_campaign(name)).terms.portfolio:
            raise WorkspaceError(f"the campaign '{name}' has no portfolio. Open one with --portfolio FILE.")
        self.portfolio = Portfolio.load(name, campaign.terms.portfolio)
        self._until, self._is_late = until, False

    # State

    @property
    def campaign(self) -> Campaign:
        return load_campaign(self.name)

    def read_inputs(self) -> DecisionInputs:
        """The inputs of the next decision, read from the journal and the records."""
        started = self._started(self.campaign)
        unit, budget = started.text("unit"), number(started.get("budget")) or 0.0
        records = {name: self._record(self.portfolio.explore(name)) for name in self.portfolio.runs}
        confirmed = self._find_confirmation()
        if unit == "wall_s":
            left = (number(started.get("deadline")) or 0.0) - time.time()
        else:
            spends = [record.spend for record in (*records.values(), confirmed) if record is not None]
            left = budget - sum(spent_amount(spend, unit) for spend in spends)
        settings = self.portfolio.settings
        return DecisionInputs(
            families=[self._read_family(name, record, unit) for name, record in records.items()],
            budget=budget,
            left=left,
            baseline=next((point for record in records.values() if record and (point := self._baseline(record))), None),
            probe_share=settings.probe_share,
            confirm_share=settings.confirm_share,
            seeds=settings.confirm_seeds,
            least=number(started.get("least")) or 0.0,
            seed=settings.seed,
            confirmed=ended_at(confirmed) is not None,
        )

    def next(self) -> CampaignDecision:
        """The next step, from the journal or the policy; nothing is started or written."""
        campaign = self.campaign
        if campaign.closed:
            return CampaignDecision(STOP, reason=campaign.closed)
        if not any(event.text("action") == START for event in campaign.decisions):
            return CampaignDecision(START, reason="fix the budget; a deadline is set with --until TIME")
        if (open_event := self._find_open(campaign)) is not None:
            return _read_decision(open_event)
        return decide(self.read_inputs())

    def overrule(self, family: str, because: str, *, confirm: bool = False, by: str = "") -> CampaignDecision:
        """Record another decision as the next step, with its reason and the policy's decision."""
        if not because.strip():
            raise WorkspaceError("an own decision needs a reason. Give it with --because.")
        if family not in self.portfolio.runs:
            hint = suggest(family, self.portfolio.runs) or f"It has: {', '.join(self.portfolio.runs)}."
            raise WorkspaceError(f"the portfolio has no family {show(family)}. {hint}")
        instead, inputs = self.next(), self.read_inputs()
        if instead.action == START or inputs.confirmed or self.campaign.closed:
            raise WorkspaceError(f"there is nothing to overrule now: {instead.reason}.")
        amount = (
            inputs.left if confirm else max(min(inputs.budget * inputs.probe_share, inputs.explorable), inputs.least)
        )
        action = CONFIRM if confirm else TRAIN
        decision = CampaignDecision(action, family, amount, because.strip(), instead.forecasts)
        self._note(decision, by=by or "agent", instead=f"{instead.action} {instead.family}".strip())
        return decision

    # Steps

    def steps(self, most: int | None = None) -> Generator[CampaignStep]:
        """Make steps until the campaign is closed, at most `most` of them."""
        subject = f"the campaign '{self.name}'"
        with folder_lock(campaign_dir(self.name), what=subject, remedy="Wait for it, or stop it first."):
            self._start()
            count = 0
            while not self.campaign.closed and (most is None or count < most):
                step = self._make_step()
                count += 1
                yield step
                if step.stop:
                    return

    def _make_step(self) -> CampaignStep:
        campaign, inputs = self.campaign, self.read_inputs()
        open_event = self._find_open(campaign)
        scored = [self._record(self.portfolio.explore(family.name)) for family in inputs.families if family.points]
        is_concluded = any(ended_at(record) is not None for record in scored)
        if inputs.left <= inputs.least and not inputs.confirmed:
            if self._is_late or is_concluded:
                return self._finish(_LATE, over=True)
            self._is_late = True  # one family is still scored and concluded after the deadline
        if open_event is not None:
            decision = _read_decision(open_event)
        else:
            decision = decide(inputs)
            if decision.action == STOP:
                return self._finish("" if inputs.confirmed else f"nothing could be confirmed: {decision.reason}")
            points = next((len(family.points) for family in inputs.families if family.name == decision.family), 0)
            self._note(decision, by="policy", limit=self._limit(decision, inputs), points=points)
            open_event = self.campaign.decisions[-1]
        try:
            outcome, stop = self._carry_out(decision, open_event, inputs)
        except DeadlineTooShort as error:
            if is_concluded:
                return self._finish(_LATE, over=True)
            self._is_late, outcome, stop = True, str(error), ""
        return CampaignStep(decision.action, decision.family, decision.reason, outcome, stop=stop)

    def _carry_out(self, decision: CampaignDecision, event: Event, inputs: DecisionInputs) -> tuple[str, str]:
        """Run the experiment of a decision; return its outcome, and why the driver must stop, or ""."""
        try:
            config = self._config(decision, event, inputs)
            self._check_approval(config)
            result = Experiment(config).run(until=self._deadline(inputs))
        except DeadlineTooShort:
            raise
        except EvsysError as error:
            if isinstance(error, CampaignRefusal) and decision.action == CONFIRM:
                return str(error), "waiting"
            # Recorded, or the policy would choose the family again.
            self._note(CampaignDecision(BLOCKED, decision.family, reason=str(error)), by="policy")
            return str(error), ""
        shown = view(ExperimentRecord(result.path))
        score = "no score" if shown.best_score is None else f"{shown.metric} {shown.best_score:.4g}"
        verdict = shown.verdict if decision.action == CONFIRM else ""  # exploration has no hypothesis
        stated = ", ".join(part for part in (shown.status, score, verdict) if part)
        return stated, "interrupted" if result.status == "interrupted" else ""

    def _start(self) -> None:
        """Record the budget once; a new deadline on restart is recorded as a further decision."""
        campaign = self.campaign
        if campaign.closed:
            raise WorkspaceError(f"the campaign '{self.name}' is closed ({campaign.closed}). Open another one.")
        starts = [event for event in campaign.decisions if event.text("action") == START]
        if starts and self._until is None:
            return
        terms = campaign.terms
        if self._until is not None or terms.hours is not None:
            # Measured once, before the start, and recorded: a restart near the deadline has no time to measure it.
            least = (number(starts[0].get("least")) if starts else None) or self._measure_least_s()
            now = time.time()
            began = starts[0].time or now if starts else now
            last = self._until if self._until is not None else now + (terms.hours or 0.0) * 3600
            unit, budget, more = "wall_s", last - began, {"deadline": last, "least": least}
            if budget * (1 - self.portfolio.settings.confirm_share) < least:
                message = f"{budget:.3g} s cannot fit one scoring of a family, which needs about {least:.3g} s"
                raise ConfigError(f"the campaign '{self.name}': {message}. Give a later time.")
        elif terms.tokens is not None or terms.usd is not None:
            unit, budget = ("tokens", float(terms.tokens)) if terms.tokens is not None else ("usd", terms.usd or 0.0)
            more = {}
        else:
            raise WorkspaceError("how much may be spent? Give --until, or open it with --hours, --tokens or --usd.")
        if unit != "wall_s" and not any(entry.run_every for entry in self.portfolio.val):
            base = self.portfolio.settings.base
            message = f"a limit of {_UNITS[unit]} ends training without a last scoring"
            raise ConfigError(f"{base}: {message}. Set run_every in a val benchmark, or give --until.")
        if not starts:
            self.portfolio.check()
        stated = {"tokens": f"{count_text(budget)} tokens", "usd": f"{budget:.4g} usd"}.get(unit, duration_text(budget))
        self._note(CampaignDecision(START, reason=stated), unit=unit, budget=budget, **more)

    def _config(self, decision: CampaignDecision, event: Event, inputs: DecisionInputs) -> ExperimentConfig:
        """The config of a decision's experiment, with the limit from the journal."""
        unit = self._started(self.campaign).text("unit")
        if decision.action == CONFIRM:
            config = self.portfolio.confirm(decision.family, self._plan_steps(decision.family, inputs))
            limit = None if unit == "wall_s" else inputs.left
        else:
            config = self.portfolio.explore(decision.family)
            limit = number(event.get("limit")) or self._limit(decision, inputs)
            if self._is_late:  # a killed process may have spent it, and scoring still needs budget
                limit = max(limit, self._limit(decision, inputs))
        if limit is None:
            return config
        amount = int(limit) if unit == "tokens" else limit
        budget = (config.budget or Budget()).model_copy(update={unit: amount})
        return config.model_copy(update={"budget": budget})

    def _limit(self, decision: CampaignDecision, inputs: DecisionInputs) -> float:
        """The total budget of a family's experiment after a decision."""
        spent = next(family.spent for family in inputs.families if family.name == decision.family)
        return spent + max(decision.amount, inputs.least)

    def _deadline(self, inputs: DecisionInputs) -> float | None:
        deadline = number(self._started(self.campaign).get("deadline"))
        if deadline is None:
            return None
        if self._is_late:  # with a score, only conclude; without one, its own limit ends the experiment
            return time.time() if any(family.points for family in inputs.families) else None
        return deadline - min(_RESERVE * inputs.budget, _MOST_RESERVE_S)

    def _plan_steps(self, family: str, inputs: DecisionInputs) -> int | None:
        """Steps per seed of the confirmation: up to the best score, or as many as fit if the last score is best."""
        record = self._record(self.portfolio.explore(family))
        run = record.runs[0] if record and record.runs else None
        points = self._points(run, inputs.budget) if run else []
        if not points or run is None:
            return None
        state = next(candidate for candidate in inputs.families if candidate.name == family)
        last = max(steps for steps, _ in points)
        best = max(points, key=lambda pair: pair[1].score)[0]
        fits = int(_FIT * inputs.left / inputs.seeds / (state.spent / last)) if state.spent and last else last
        target = best if best < last else max(fits, 1)
        return max(min(target, fits, run.total_steps or target), 1)

    def _check_approval(self, config: ExperimentConfig) -> None:
        campaign = self.campaign
        if campaign.terms.approve_tokens is not None:
            require_approval(campaign, plan_experiment(config), hash_plan(config), config.name)

    def _finish(self, cause: str, *, over: bool = False) -> CampaignStep:
        """Export the best available weights, and close the campaign with its result as reason."""
        confirmation = self._find_confirmation()
        inputs = self.read_inputs()
        ranked = sorted((family for family in inputs.families if family.best), key=lambda family: -_score(family))
        records = [confirmation, *(self._record(self.portfolio.explore(family.name)) for family in ranked)]
        folder = in_project(self.portfolio.base.output_dir) / f"{self.name}-export"
        exported = _export([record.folder for record in records if record is not None], folder)
        stated = ""
        if confirmation is not None and ended_at(confirmation) is not None:
            shown = view(confirmation)
            family = shown.best_run or (shown.runs[0].run if shown.runs else "")
            stated = f"{family}: {shown.verdict or 'no verdict'}. {shown.sentence}".strip()
            over = over or shown.status == "budget"
        best = f"best family without a confirmation: {ranked[0].name}, {_score(ranked[0]):.3g}" if ranked else ""
        reason = ". ".join(part.rstrip(".") for part in (stated, cause, "" if stated else best, exported) if part)
        close_campaign(self.name, reason)
        return CampaignStep(EXPORT if exported else STOP, "", reason, over=over)

    def _note(self, decision: CampaignDecision, **more: Any) -> None:
        with change_campaign(self.name) as (_, journal):
            journal.append(Kind.CAMPAIGN_DECIDED, **decision.to_dict(), **more)

    # Records

    def _measure_least_s(self) -> float:
        """2.5 times the longest forecast scoring time: a smaller slice leaves no time to train."""
        configs = [self.portfolio.explore(name) for name in self.portfolio.runs]
        return 0.5 + 2.5 * max((forecast_scoring(config) or 0.0 for config in configs), default=0.0)

    @staticmethod
    def _started(campaign: Campaign) -> Event:
        return [event for event in campaign.decisions if event.text("action") == START][-1]

    def _find_open(self, campaign: Campaign) -> Event | None:
        """The last decision, if its experiment has not ended since."""
        last = campaign.decisions[-1] if campaign.decisions else None
        if last is None or last.text("action") in (START, BLOCKED):
            return None
        is_last = last.text("action") == CONFIRM
        record = self._find_confirmation() if is_last else self._record(self.portfolio.explore(last.text("family")))
        return None if (ended_at(record) or 0.0) > (last.time or 0.0) else last

    def _find_confirmation(self) -> ExperimentRecord | None:
        return self._record(self.portfolio.confirm(next(iter(self.portfolio.runs)), None))

    @staticmethod
    def _record(config: ExperimentConfig) -> ExperimentRecord | None:
        folder = latest_attempt(in_project(config.output_dir) / config.name)
        return ExperimentRecord(folder) if folder is not None else None

    def _read_family(self, name: str, record: ExperimentRecord | None, unit: str) -> FamilyState:
        campaign = self.campaign
        last = next((event for event in reversed(campaign.decisions) if event.text("family") == name), None)
        reason = last.text("reason") if last is not None and last.text("action") == BLOCKED else ""
        approved = [approval.time for approval in campaign.approvals.values() if approval.state == APPROVED]
        if last is not None and max(approved, default=0.0) > (last.time or 0.0):
            reason = ""  # an approval came later, so the family is tried again
        if record is None or not record.runs:
            return FamilyState(name, blocked=reason)
        run, spent = record.runs[0], spent_amount(record.spend, unit)
        points = [point for _, point in self._points(run, spent)]
        failed = run.problem if run.status == "failed" else ""
        if not points and not failed and record.status == "completed":
            failed = "it has no score on the validation tasks"
        mine = [event for event in campaign.decisions if event.text("family") == name and event.text("action") == TRAIN]
        before = [number(event.get("points")) for event in reversed(mine)]
        fruitless = len(list(takewhile(lambda count: count == len(points), before)))
        ended = record.status == "completed"
        return FamilyState(name, spent, points, ended=ended, blocked=reason or failed, fruitless=fruitless)

    def _points(self, run: RunRecord, spent: float) -> list[tuple[int, Point]]:
        """The validation scores by step; the cost is divided evenly over the steps."""
        metric, mode = self.portfolio.metric
        score_name = metric_name("val", self.portfolio.val[0].label or "", metric)
        scores = [(int(step), score) for name, step, _, score in run.scores if name == score_name]
        last = max((step for step, _ in scores), default=0) or 1
        points = ((step, read_point(score, mode, spent * step / last)) for step, score in scores)
        return [(step, point) for step, point in points if point is not None]

    def _baseline(self, record: ExperimentRecord) -> Point | None:
        metric, mode = self.portfolio.metric
        begins, ends = f"baseline/val/{self.portfolio.val[0].label}/", f"/{metric}"
        scores = ((name, score) for run in record.runs for name, _, _, score in run.scores)
        matching = (score for name, score in scores if name.startswith(begins) and name.endswith(ends))
        return next((read_point(score, mode, 0.0) for score in matching), None)


def _read_decision(event: Event) -> CampaignDecision:
    action, family, reason = (event.text(key) for key in ("action", "family", "reason"))
    return CampaignDecision(action, family, number(event.get("amount")) or 0.0, reason)


def _score(family: FamilyState) -> float:
    return family.best.score if family.best else float("-inf")


def _export(folders: list[Path], target: Path) -> str:
    """Export from the first record that has weights; an existing folder was exported before a restart."""
    if target.is_dir():
        return f"exported to {target}"
    for folder in folders:
        try:
            export_weights(read_detail(folder), target)
            return f"exported to {target}"
        except DataError as error:
            get_logger(__name__).warning("%s: %s", folder, error)
    return ""
