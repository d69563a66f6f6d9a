"""After it went live: whether what users think of the answers is as good as what it was shipped with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..deploy.deployments import Deployment, Deployments
from ..deploy.policy import Watch
from ..experiment.statistics.student_t import t_quantile
from ..record.events import Event, Kind
from ..record.project_files.journals import read_promotions
from ..record.values import items, number, part, text
from .traces.store import TraceStore

_ERROR = 0.025


@dataclass(frozen=True, slots=True)
class LiveState:
    """What is known of a deployment from its traces."""

    state: Literal["waiting", "ok", "fell"]
    reason: str
    n: int = 0
    mean: float | None = None
    expected: float | None = None


def watch_live(deployment: Deployment, store: str, policy: Watch) -> LiveState:
    """Compare live rewards with the score that let a deployment pass the gate."""
    expected = _read_expected(deployment)
    since = Deployments.read().once_live.get(deployment.id, deployment.time or 0.0)
    rewards = [one["reward"] for one in TraceStore(store).read() if _is_of(one, deployment, since)]
    if expected is None:
        return LiveState(
            "waiting", f"{deployment.id} did not pass the gate, so there is nothing to hold it to.", len(rewards)
        )
    if len(rewards) < policy.min_scores:
        told = f"{deployment.id} has {len(rewards)} live scores, {policy.min_scores} are needed."
        return LiveState("waiting", told, len(rewards), None, expected)
    mean, high = _upper_end(rewards)
    said = (
        f"{deployment.id} scores {mean:.3f} (at most {high:.3f}) live on {len(rewards)}, and {expected:.3f} when judged"
    )
    if high < expected - policy.drop:
        return LiveState("fell", f"{said}: more than {policy.drop:g} below.", len(rewards), mean, expected)
    return LiveState("ok", f"{said}.", len(rewards), mean, expected)


def _is_of(trace: dict[str, Any], deployment: Deployment, since: float) -> bool:
    """Whether an answer was given by a deployment: it is named, or its name was asked since it went live."""
    if trace["reward"] is None:
        return False
    return trace["model"] == deployment.id or (trace["model"] == deployment.name and (trace["time"] or 0.0) >= since)


def _read_expected(deployment: Deployment) -> float | None:
    """The candidate's score on the target when the gate let it pass."""
    event = next((one for one in read_promotions() if one.kind == Kind.GATED and one.id == deployment.gate), None)
    return number(event.get("score")) if event is not None else None


def find_decisions(weights_sha256: str) -> list[Event]:
    """Decisions about some weights, oldest first."""
    gated = (event for event in read_promotions() if event.kind == Kind.GATED)
    return [event for event in gated if text(event.part("candidate").get("weights_sha256")) == weights_sha256]


def first_failure(event: Event) -> str:
    """Why the gate refused."""
    checks = [part({"one": one}, "one") for one in items(event.get("checks"))]
    return next((text(one.get("reason")) for one in checks if one.get("state") != "ok"), "")


def _upper_end(rewards: Sequence[float]) -> tuple[float, float]:
    n = len(rewards)
    mean = sum(rewards) / n
    spread = sum((reward - mean) ** 2 for reward in rewards) / (n - 1)
    error = math.sqrt(max(spread, 1 / (n + 1)) / n)  # all alike does not mean that the next one is
    return mean, mean + t_quantile(1 - _ERROR, n - 1) * error
