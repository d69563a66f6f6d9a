"""The gate: decide whether weights may replace the live weights, and record the decision in the list of promotions.

    decision = judge(find_source("routing"), "production", load_policy("gate.yaml"))
    decision.passed, decision.checks

The confidence interval must show a gain on the target and no loss beyond the margin on each canary, so too few tasks
are refused. Candidates that are judged on the same tasks share one error rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal

from ..errors import DataError
from ..experiment.audit.audit import AuditReport, audit_experiment
from ..experiment.statistics.attempts import attempt_error
from ..record.events import Event, Kind
from ..record.project_files.journals import PromotionLog, read_promotions
from ..record.values import items, part, text
from .deployments import Deployments, check_promotions
from .judged import BASE, Gap, Judged, ScoredMetric, find_judged, judge_source, measure_gap
from .policy import Canary, GatePolicy, Limit, Target
from .source import Source

type State = Literal["ok", "failed"]


@dataclass(frozen=True, slots=True)
class GateCheck:
    """The result of one condition of the policy."""

    name: str
    state: State
    reason: str
    numbers: dict[str, float] = field(default_factory=dict[str, float])

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "state": self.state, "reason": self.reason, **self.numbers}


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict of the gate, with all checks."""

    candidate: str
    current: str
    checks: list[GateCheck]
    id: str = ""

    @property
    def passed(self) -> bool:
        return all(check.state == "ok" for check in self.checks)

    @property
    def failures(self) -> list[GateCheck]:
        return [check for check in self.checks if check.state != "ok"]

    @property
    def sentence(self) -> str:
        if self.passed:
            return f"Passed: {self.candidate} may replace {self.current}."
        return f"Refused: {self.candidate} does not replace {self.current}: {self.failures[0].reason}"

    def to_dict(self) -> dict[str, Any]:
        checks = [check.to_dict() for check in self.checks]
        about = {"id": self.id, "verdict": "pass" if self.passed else "refuse", "sentence": self.sentence}
        return {**about, "candidate": self.candidate, "current": self.current, "checks": checks}


def judge(source: Source, current: str, policy: GatePolicy, *, imports: Sequence[str] = ()) -> Decision:
    """Judge weights by a policy and record the decision; the audit imports the modules in `imports`."""
    check_promotions()
    candidate, live = judge_source(source), find_judged(current, source)
    checks = [*_check_scores(candidate, live, policy), *_check_record(source, policy, imports)]
    decision = Decision(candidate.label, live.label, checks)
    target = candidate.scores.get(policy.target.metric)
    with PromotionLog.open() as log:
        id = log.append(
            Kind.GATED,
            verdict="pass" if decision.passed else "refuse",
            candidate=source.to_dict(),
            current={"label": live.label, "weights_sha256": live.weights_sha256, "reference": live.reference},
            score=target.value if target else None,
            tasks_sha256=target.question.tasks if target else "",
            policy=policy.model_dump(mode="json"),
            checks=[check.to_dict() for check in checks],
        )
    return Decision(decision.candidate, decision.current, checks, id)


def find_pass(source: Source, name: str) -> str:
    """Return the id of the passed decision for these weights and this name; raise if there is none."""
    live = Deployments.read().live_under(name)
    now = text(live.source.get("weights_sha256")) if live else ""
    # Only the latest verdict about these weights counts: a refusal revokes an earlier pass.
    for event in reversed(read_promotions()):
        if event.kind != Kind.GATED or event.part("candidate").get("weights_sha256") != source.sha256:
            continue
        judged = text(event.part("current").get("weights_sha256"))
        if event.get("verdict") != "pass":
            reason = first_failure(event) or "no reason was recorded."
            raise DataError(f"the gate refused these weights: {reason} Nothing is shipped.")
        # The pass must compare with the live weights; if none are live, with the base model.
        if judged == now or (not now and judged.startswith("base:")):
            _recompute(source, event, name if live else BASE)
            return event.id
        raise DataError(
            f"these weights passed the gate against {event.part('current').get('label')}, which is not what is live "
            f"under {name!r} now. Judge them again: evsys gate CANDIDATE --against {name} --policy FILE"
        )
    raise DataError(
        f"these weights were not judged yet. Ask first: evsys gate CANDIDATE --against {name if live else 'base'} "
        "--policy FILE"
    )


def _recompute(source: Source, event: Event, current: str) -> None:
    """Raise if the scores do not reproduce a recorded pass, because the list of promotions can be edited.

    `current` names the comparison for decisions that do not record one.
    """
    policy, recorded = GatePolicy.model_validate(event.part("policy")), event.part("current")
    # A model can have scores on different tasks in several experiments, so the recorded reference is used.
    live = find_judged(text(recorded.get("reference")) or current, source)
    failed = [
        check for check in _check_scores(judge_source(source), live, policy, until=event.id) if check.state != "ok"
    ]
    reason = failed[0].reason if failed else ""
    if live.weights_sha256 != recorded.get("weights_sha256"):
        reason = f"those of {live.label} are of other weights than it names."
    if reason:
        raise DataError(f"the recorded decision {event.id} does not follow from the scores: {reason} Judge them again.")


def first_failure(decision: Event) -> str:
    """The reason of the first failed check; empty if no check failed."""
    checks = [part({"it": check}, "it") for check in items(decision.get("checks"))]
    return next((text(check.get("reason")) for check in checks if check.get("state") != "ok"), "")


def _check_scores(candidate: Judged, live: Judged, policy: GatePolicy, until: str = "") -> Iterator[GateCheck]:
    """Yield the checks of the scores; with `until`, count only candidates judged before that decision."""
    target = candidate.scores.get(policy.target.metric)
    attempt = 1 + _other_candidates(target.question.tasks if target else "", candidate.weights_sha256, until)
    # Each further candidate on the same tasks gets a smaller part of the error rate, so that repeated trials do not
    # raise the false positive rate.
    error = attempt_error(attempt, policy.error)
    stated = f" (candidate {attempt} on these tasks)" if attempt > 1 else ""
    yield _check_gap("target", policy.target, policy.target.min_gain, candidate, live, error, stated)
    for canary in policy.canaries:
        yield _check_gap(f"canary {canary.metric}", canary, -canary.margin, candidate, live, policy.error, "")
    if target is not None:
        current = live.scores.get(policy.target.metric)
        for name in type(policy.limits).model_fields:
            yield from _check_limit(name, getattr(policy.limits, name), target, current)


def _check_gap(
    name: str, requirement: Target | Canary, bound: float, candidate: Judged, live: Judged, error: float, stated: str
) -> GateCheck:
    """Check that the whole interval of the difference lies above a bound."""
    scores: list[ScoredMetric] = []
    for subject, judged in (("the candidate", candidate), ("what is live", live)):
        score = judged.scores.get(requirement.metric)
        if score is None:
            names = ", ".join(sorted(judged.scores)) or "none"
            reason = f"{subject} ({judged.label}) has no score {requirement.metric}; it has {names}."
            return GateCheck(name, "failed", reason)
        if score.problem:
            return GateCheck(name, "failed", f"{requirement.metric} of {subject} is incomplete: {score.problem}.")
        direction = {"max": "increase", "min": "decrease"}.get(score.question.direction, requirement.direction)
        if direction != requirement.direction:
            reason = (
                f"{requirement.metric} should {direction} in {judged.label}, and {requirement.direction} by the policy."
            )
            return GateCheck(name, "failed", reason)
        scores.append(score)
    lower = requirement.direction == "decrease"
    gap = measure_gap(scores[0], scores[1], error=error, lower_is_better=lower)
    if isinstance(gap, str):
        return GateCheck(name, "failed", f"{requirement.metric} cannot be compared: {gap}.")
    numbers = {"difference": gap.estimate, "low": gap.low, "high": gap.high, "bound": bound, "tasks": gap.n_tasks}
    return GateCheck(name, "ok" if gap.low > bound else "failed", _describe(requirement, gap, bound, stated), numbers)


def _describe(requirement: Target | Canary, gap: Gap, bound: float, stated: str) -> str:
    better = " better" if requirement.direction == "decrease" else ""
    interval = f"[{gap.low:+.3f}, {gap.high:+.3f}]"
    result = f"{requirement.metric} {gap.estimate:+.3f}{better} {interval} on {gap.n_tasks} tasks{stated}"
    if gap.low > bound:
        return f"{result}, above {bound:+.3f}."
    if gap.high <= bound:
        return f"{result}, and it must be above {bound:+.3f}."
    return f"{result}: the interval holds {bound:+.3f}, which it must exceed. Score more tasks."


def _check_limit(name: str, limit: Limit, target: ScoredMetric, current: ScoredMetric | None) -> Iterator[GateCheck]:
    value, before = target.costs.get(name), current.costs.get(name) if current else None
    bounds = [("most", limit.most)]
    if limit.times_current is not None:
        bounds.append(("times_current", None if before is None else limit.times_current * before))
    for label, bound in bounds:
        if label == "most" and bound is None:
            continue
        # A limit on an unknown value fails.
        if value is None or bound is None:
            yield GateCheck(name, "failed", f"{name} is limited, and it is not known what it is.")
        else:
            state: State = "ok" if value <= bound else "failed"
            relation = "within" if state == "ok" else "above"
            yield GateCheck(
                name, state, f"{name} {value:.4g} is {relation} {bound:.4g}.", {"value": value, "bound": bound}
            )


def _check_record(source: Source, policy: GatePolicy, imports: Sequence[str]) -> Iterator[GateCheck]:
    report = audit_experiment(source.detail.folder, imports=imports)
    if policy.integrity.audit != "ignore":
        yield _check_audit(report, policy.integrity.audit)
    if policy.integrity.contamination:
        contamination = next((check for check in report.checks if check.name == "contamination"), None)
        if contamination is not None and contamination.state == "flagged":
            yield GateCheck("contamination", "failed", f"its training rows hold tasks: {contamination.evidence[0]}")
        else:
            yield GateCheck("contamination", "ok", "no task was found in its training rows.")
    if reason := source.detail.record.invalidated:
        yield GateCheck("not invalid", "failed", f"its experiment was excluded: {reason}")


def _check_audit(report: AuditReport, level: str) -> GateCheck:
    if report.invalid:
        return GateCheck("audit", "failed", f"the record does not hold: {report.invalid}")
    # Answers that cannot be judged again do not invalidate the record, but their scores must not pass the gate.
    if unjudged := next((check for check in report.flags if check.name == "answers"), None):
        return GateCheck("audit", "failed", f"the answers could not be judged again: {unjudged.evidence[0]}")
    flags = ", ".join(check.name for check in report.flags)
    if flags and level == "clean":
        return GateCheck("audit", "failed", f"the audit flags {flags}.")
    return GateCheck("audit", "ok", f"the audit flags {flags}, which forbids nothing." if flags else "nothing flagged.")


def _other_candidates(tasks_sha256: str, weights_sha256: str, until: str) -> int:
    """The number of other weights that were judged on these tasks before the decision `until`."""
    judged = takewhile(lambda event: event.id != until, read_promotions())
    judged = (event for event in judged if event.kind == Kind.GATED)
    others = {
        text(event.part("candidate").get("weights_sha256"))
        for event in judged
        if tasks_sha256 and event.get("tasks_sha256") == tasks_sha256
    }
    return len(others - {weights_sha256})
