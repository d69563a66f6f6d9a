"""A roll-out in stages: new weights answer a share of the requests to a name, and live scores decide about more.

    ship(find_source("routing"), "openai_server", name="production", gated=True, shadow=0.2)
    step = take_step("production", policy, scores)       # wait, next, or back

Before the first stage it may be the shadow of what is live: both answer the same requests, users see the answer of the
live one, and the pairs are compared. In a stage the scores are those of what is live and of what is staged since the
stage began. They are looked at when `min_scores` are there, and then at twice as many and so on, each time at half the
rate of error: who looks at every score that comes finds a difference some day.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from ..errors import DataError, show
from ..experiment.statistics.student_t import t_quantile
from ..record.events import Kind
from ..record.project_files.journals import PromotionLog, lock_promotions
from .deployers.openai_server import OpenAIServer
from .deployments import Deployment, Deployments, Staged, check_promotions
from .policy import GatePolicy, RolloutPolicy
from .source import Source

type Action = Literal["wait", "next", "back"]
type Pair = tuple[float, float]
"""The scores of what is staged and of what is live for the same request."""


class LiveScores(Protocol):
    """What is known of answers that were given in use; oldest first, and what was told once comes first again."""

    def of(self, deployment: Deployment, since: float) -> Sequence[float]:
        """The scores of a deployment's answers since a time."""
        ...

    def pairs(self, candidate: Deployment, live: Deployment, since: float) -> Sequence[Pair]:
        """The scores of both for the requests that a shadow answered as well."""
        ...


def check_stage(source: Source, kind: str, name: str, *, share: float | None, shadow: float | None) -> None:
    """Refuse a share of the requests, or a shadow, for what cannot stand next to what is live."""
    if share is None and shadow is None:
        return
    option = "--share" if shadow is None else "--shadow"
    known = Deployments.read()
    live, staged = known.live_under(name), known.staged.get(name)
    if share is not None and shadow is not None:
        raise DataError("give --share or --shadow, not both: what was a shadow gets a share by evsys deployments step.")
    if not 0 < (asked := share or shadow or 0.0) < 1 and not (option == "--shadow" and asked == 1):
        ends = "above 0 and below 1" if option == "--share" else "above 0 and at most 1"
        raise DataError(f"a share of the requests lies {ends} (got {asked:g}).")
    if staged is not None:
        raise DataError(
            f"{staged.deployment} {staged.told} to {show(name)} already. Decide about it first: evsys deployments "
            "step, or rollback."
        )
    if kind != OpenAIServer.name or live is None or live.kind != kind:
        raise DataError(
            f"only {OpenAIServer.name} shares requests, with a deployment of that kind that is live, and under "
            f"{show(name)} there is none. Ship it without {option}."
        )
    base = (live.facts.get("backend"), live.facts.get("base_model"))
    if base != (source.backend, source.base_model):
        raise DataError(
            f"{live.id} was trained from {base[1]} on {base[0]}, these weights from {source.base_model} on "
            f"{source.backend}: one server does not answer with both. Ship it without {option}."
        )


def is_chosen(staged: Staged, asker: str) -> bool:
    """Whether what is staged gets a request; the same asker's it does, for as long as its share does not shrink."""
    # A hash and no draw: an asker stays where it is while the share holds, and a larger share keeps those it has. Who
    # has no name is drawn anew each time.
    key = f"{staged.deployment} {asker or secrets.token_hex(8)}"
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest) < staged.share * 2**64


@dataclass(frozen=True, slots=True)
class RolloutStep:
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


def take_step(name: str, policy: GatePolicy, scores: LiveScores) -> RolloutStep:
    """Look at a stage, and continue to the next, or back, where the scores say so. Doing it again changes nothing."""
    check_promotions()
    staged, candidate, live = _find_staged(name)
    if staged.is_shadow:
        pairs = scores.pairs(candidate, live, staged.since)
        step = judge_shadow(staged, pairs, policy.rollout, policy.error)
    else:
        both = scores.of(candidate, staged.since), scores.of(live, staged.since)
        step = judge_stage(staged, *both, policy.rollout, policy.error)
    if step.action == "wait":
        return step
    with lock_promotions():  # not held before: a judge may take long
        if _find_staged(name) != (staged, candidate, live):
            raise DataError(f"somebody decided about {show(name)} meanwhile. Look at it again: evsys deployments list.")
        with PromotionLog.open() as log:
            if step.action == "back":
                log.append(Kind.ROLLED_BACK, name=name, deployment=live.id, replaced=candidate.id, reason=step.reason)
            else:
                log.append(
                    Kind.STAGED, name=name, deployment=candidate.id, share=step.share, reason=step.reason, n=step.n
                )
    return step


def _find_staged(name: str) -> tuple[Staged, Deployment, Deployment]:
    known = Deployments.read()
    staged, candidate, live = known.staged.get(name), known.find_staged(name), known.live_under(name)
    if staged is None or live is None or candidate is None:
        raise DataError(
            f"nothing answers a share of the requests to {show(name)} or shadows them. Begin with: evsys deploy "
            "--shadow, or --share"
        )
    return staged, candidate, live


def judge_stage(
    staged: Staged, candidate: Sequence[float], live: Sequence[float], policy: RolloutPolicy, error: float
) -> RolloutStep:
    """Wait, continue or go back, by what two groups of requests earned."""

    def look(count: int, error: float) -> RolloutStep:
        (mean, variance), (other, other_variance) = estimate_mean(candidate[:count]), estimate_mean(live[:count])
        # Welch's degrees of freedom lie between count - 1 and twice that: the smaller number is the careful one.
        reach = t_quantile(1 - error, count - 1) * math.sqrt(variance + other_variance)
        said = f"{staged.deployment} scores {mean:.3f} live and what is live {other:.3f}, {count} each"
        share = next((one for one in policy.stages if one > staged.share), 1.0)
        return _decide(staged, (mean - other, reach), (count, count), said, policy.margin, share)

    have = min(len(candidate), len(live))
    told = f"{len(candidate)} live scores of {staged.deployment} and {len(live)} beside it; {{}} of each are needed."
    return _look(staged, have, look, (len(candidate), len(live)), told, policy, error)


def judge_shadow(staged: Staged, pairs: Sequence[Pair], policy: RolloutPolicy, error: float) -> RolloutStep:
    """The same by pairs: both answered each request, so only their differences count."""

    def look(count: int, error: float) -> RolloutStep:
        first = pairs[:count]
        mean, other = (sum(pair[at] for pair in first) / count for at in (0, 1))
        # Two pairs that were not seen, one each way: a few scores tell too little about what is rare and costs much.
        difference, variance = estimate_mean([*(ours - theirs for ours, theirs in first), 1.0, -1.0])
        reach = t_quantile(1 - error, count - 1) * math.sqrt(variance)
        said = f"{staged.deployment} would score {mean:.3f} and what is live {other:.3f} on the same {count} requests"
        return _decide(staged, (difference, reach), (count, count), said, policy.margin, policy.stages[0])

    told = f"{len(pairs)} pairs of answers of {staged.deployment} and of what is live have scores; {{}} are needed."
    return _look(staged, len(pairs), look, (len(pairs), len(pairs)), told, policy, error)


def _look(
    staged: Staged, have: int, look: Callable[[int, float], RolloutStep], seen: tuple[int, int], told: str,
    policy: RolloutPolicy, error: float,
) -> RolloutStep:  # fmt: skip
    """Every look that there are scores for; of more than one needs only the first count, whoever looks when."""
    count, looks = policy.min_scores, 0
    while have >= count:
        # A half, a quarter, an eighth: over any number of looks they add up to no more than the whole rate.
        step = look(count, error / 2 ** (looks + 1))
        if step.action != "wait":
            return step
        count, looks = 2 * count, looks + 1
    return RolloutStep("wait", staged.deployment, staged.share, told.format(count), *seen)


def _decide(
    staged: Staged, found: tuple[float, float], seen: tuple[int, int], said: str, margin: float, following: float
) -> RolloutStep:
    difference, reach = found
    low, high = difference - reach, difference + reach
    said += f"; the difference lies between {low:+.3f} and {high:+.3f}"
    action: Action = "wait"
    share = staged.share
    # Not worse comes first: with many scores a difference can be both certain and too small to matter.
    if low > -margin:
        action, said, share = "next", f"{said}: not worse by {margin:g}", following
    elif high < 0:
        action, said, share = "back", f"{said}: it is worse", 0.0
    return RolloutStep(action, staged.deployment, share, f"{said}.", *seen, difference, low, high)


def estimate_mean(scores: Sequence[float]) -> tuple[float, float]:
    """The mean, and the variance of the mean; all alike does not mean that the next one is."""
    n = len(scores)
    mean = sum(scores) / n
    return mean, max(sum((score - mean) ** 2 for score in scores) / (n - 1), 1 / (n + 1)) / n
