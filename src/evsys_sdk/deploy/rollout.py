"""A roll-out in stages: new weights answer a share of the requests to a name, and live scores decide about more.

    ship(find_source("routing"), "openai_server", name="production", gated=True, share=0.05)
    step = take_step("production", policy, read_scores)       # wait, next, or back

Scores are those of what is live and of what is staged since the stage began. They are looked at when `min_scores` are
there, and then at twice as many and so on, each time at half the rate of error: who looks at every score that comes
finds a difference some day.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..errors import DataError, show
from ..experiment.statistics.student_t import t_quantile
from ..record.events import Kind
from ..record.promotions import PromotionLog, promoting
from .deployers.openai_server import OpenAIServer
from .deployments import Deployment, Deployments, Staged, check_promotions
from .policy import GatePolicy, Rollout
from .source import Source

type ReadScores = Callable[[Deployment, float], Sequence[float]]
"""The live scores of a deployment since a time, oldest first."""
type Action = Literal["wait", "next", "back"]


def check_share(source: Source, kind: str, name: str, share: float) -> None:
    """Refuse a share of the requests for what cannot stand beside what is live."""
    known = Deployments.read()
    live, staged = known.live_under(name), known.staged.get(name)
    if not 0 < share < 1:
        raise DataError(f"a share of the requests lies above 0 and below 1 (got {share:g}).")
    if staged is not None:
        raise DataError(
            f"{staged.deployment} answers {staged.share:.0%} of the requests to {show(name)} already. Decide about it "
            "first: evsys deployments step, or rollback."
        )
    if kind != OpenAIServer.name or live is None or live.kind != kind:
        raise DataError(
            f"only {OpenAIServer.name} shares requests, with a deployment of that kind that is live, and under "
            f"{show(name)} there is none. Ship it without --share."
        )
    base = (live.facts.get("backend"), live.facts.get("base_model"))
    if base != (source.backend, source.base_model):
        raise DataError(
            f"{live.id} was trained from {base[1]} on {base[0]}, these weights from {source.base_model} on "
            f"{source.backend}: one server does not answer with both. Ship it without --share."
        )


def is_chosen(staged: Staged, asker: str) -> bool:
    """Whether a request is answered by what is staged; the same asker is, for as long as its share does not shrink."""
    key = f"{staged.deployment} {asker or secrets.token_hex(8)}"
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest) < staged.share * 2**64


@dataclass(frozen=True, slots=True)
class Step:
    """What live scores say about a stage, and what was done."""

    action: Action
    deployment: str
    share: float
    """That it has now."""
    reason: str
    n: int = 0
    n_live: int = 0
    difference: float | None = None
    low: float | None = None
    high: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def take_step(name: str, policy: GatePolicy, read_scores: ReadScores) -> Step:
    """Look at a stage, and go on to the next, or back, where the scores say so. Doing it again changes nothing."""
    check_promotions()
    with promoting():
        known = Deployments.read()
        staged, live = known.staged.get(name), known.live_under(name)
        candidate = known.staged_under(name)
        if staged is None or live is None or candidate is None:
            raise DataError(
                f"nothing answers a share of the requests to {show(name)}. Begin with: evsys deploy --share"
            )
        step = judge_stage(
            staged, read_scores(candidate, staged.since), read_scores(live, staged.since), policy.rollout, policy.error
        )
        if step.action == "wait":
            return step
        with PromotionLog.open() as log:
            if step.action == "back":
                log.append(Kind.ROLLED_BACK, name=name, deployment=live.id, replaced=candidate.id, reason=step.reason)
            else:
                log.append(
                    Kind.STAGED, name=name, deployment=candidate.id, share=step.share, reason=step.reason, n=step.n
                )
    return step


def judge_stage(
    staged: Staged, candidate: Sequence[float], live: Sequence[float], policy: Rollout, error: float
) -> Step:
    """Wait, go on or go back; of more scores than a look needs only the first ones count, whoever looks when."""
    count, look = policy.min_scores, 0
    while min(len(candidate), len(live)) >= count:
        step = _look(staged, candidate[:count], live[:count], policy, error / 2 ** (look + 1))
        if step.action != "wait":
            return step
        count, look = 2 * count, look + 1
    told = f"{len(candidate)} live scores of {staged.deployment} and {len(live)} beside it; {count} of each are needed"
    return Step("wait", staged.deployment, staged.share, f"{told}.", len(candidate), len(live))


def _look(staged: Staged, candidate: Sequence[float], live: Sequence[float], policy: Rollout, error: float) -> Step:
    (mean, spread), (other, other_spread) = _describe(candidate), _describe(live)
    reach = t_quantile(1 - error, len(candidate) - 1) * math.sqrt(spread + other_spread)
    difference = mean - other
    low, high = difference - reach, difference + reach
    said = f"{staged.deployment} scores {mean:.3f} live and what is live {other:.3f}, {len(candidate)} each; "
    said += f"the difference lies between {low:+.3f} and {high:+.3f}"
    action: Action = "wait"
    share = staged.share
    if low > -policy.margin:
        action, said = "next", f"{said}: not worse by {policy.margin:g}"
        share = next((one for one in policy.stages if one > staged.share), 1.0)
    elif high < 0:
        action, said, share = "back", f"{said}: it is worse", 0.0
    return Step(action, staged.deployment, share, f"{said}.", len(candidate), len(live), difference, low, high)


def _describe(scores: Sequence[float]) -> tuple[float, float]:
    """The mean, and the variance of the mean; all alike does not mean that the next one is."""
    n = len(scores)
    mean = sum(scores) / n
    return mean, max(sum((score - mean) ** 2 for score in scores) / (n - 1), 1 / (n + 1)) / n
