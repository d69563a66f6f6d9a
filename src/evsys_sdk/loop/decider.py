"""Whether it is time to learn: rules over the traces that no round has taken yet, each with its reason.

    decision = decide(system)
    decision.learn, decision.why

Enough must have happened, and something must have changed: answers fail, questions are new, rewards fell, or it was
waited long enough. Shares are believed by the end of their interval, so that a few bad answers are not an alarm.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..experiment.statistics.student_t import t_quantile
from .system import SystemConfig
from .traces.rounds import read_rounds
from .traces.store import TraceStore

_Z = 1.96
_DAY_S = 86_400.0
_WORD = re.compile(r"\w+")
_KNOWN_SHARE = 0.5
"""A question is new when less than this share of its pairs of words was seen in training."""


@dataclass(frozen=True, slots=True)
class Reason:
    """What one rule saw."""

    rule: str
    votes: bool | None
    """For learning, against it, or neither."""
    text: str
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class LearnDecision:
    """Whether to learn, and why."""

    learn: bool
    why: list[Reason]
    new: int
    """Traces that no round has taken."""
    hypothesis: str = ""
    expected_effect: float = 0.0
    """How much better answers to questions like the new ones can become, at most."""
    facts: dict[str, float] = field(default_factory=dict[str, float])

    def to_dict(self) -> dict[str, Any]:
        why = [{"rule": one.rule, "votes": one.votes, "text": one.text, "value": one.value} for one in self.why]
        about = {"learn": self.learn, "why": why, "new_traces": self.new, "hypothesis": self.hypothesis}
        return {**about, "expected_effect": self.expected_effect}


def decide(system: SystemConfig, *, now: float | None = None, without: Iterable[int] = ()) -> LearnDecision:
    """Judge the new traces of a system; traces of the rounds in `without` were not trained on."""
    rules, refused = system.decide, set(without)
    rounds = read_rounds(system.traces.store)
    taken = {id for one in rounds for key in ("trained", "held_out") for id in one[key]}
    trained = {id for one in rounds if one["number"] not in refused for id in one["trained"]}
    traces = list(TraceStore(system.traces.store).read())
    new, known = [one for one in traces if one["id"] not in taken], [one for one in traces if one["id"] in trained]
    if len(new) < rules.min_new:
        return LearnDecision(
            False, [Reason("volume", False, f"{len(new)} new traces, {rules.min_new} are needed.")], len(new)
        )
    why = [
        Reason("volume", None, f"{len(new)} new traces, {rules.min_new} are needed."),
        _judge_failures(new, rules.failure_rate),
        _judge_novelty(new, known, rules.novelty),
        _judge_drift(new, known, rules.drift),
        _judge_contradiction(new, known, rules.max_contradiction),
    ]
    if rules.max_wait_days is not None:
        why.append(_judge_waiting(new, rules.max_wait_days, time.time() if now is None else now))
    learn = any(one.votes is True for one in why) and not any(one.votes is False for one in why)
    if not learn:
        return LearnDecision(False, why, len(new))
    cause = next(one for one in why if one.votes is True)
    effect = max(_failure_share(new), min(1.0, next(one.value for one in why if one.rule == "novelty")))
    hypothesis = f"Learning from {len(new)} new traces helps, because {cause.text[0].lower()}{cause.text[1:]}"
    return LearnDecision(True, why, len(new), hypothesis, effect)


def _rewards(traces: Sequence[dict[str, Any]]) -> list[float]:
    return [one["reward"] for one in traces if one["reward"] is not None]


def _failure_share(traces: Sequence[dict[str, Any]]) -> float:
    rewards = _rewards(traces)
    return sum(reward < 0.5 for reward in rewards) / len(rewards) if rewards else 0.0


def _judge_failures(new: Sequence[dict[str, Any]], most: float) -> Reason:
    rewards = _rewards(new)
    share, low = _failure_share(new), _lower_end(sum(reward < 0.5 for reward in rewards), len(rewards))
    told = f"{share:.0%} of {len(rewards)} judged answers failed (at least {low:.0%}; {most:.0%} are allowed)."
    return Reason("failures", True if rewards and low > most else None, told, share)


def _judge_novelty(new: Sequence[dict[str, Any]], known: Sequence[dict[str, Any]], most: float) -> Reason:
    seen = {pair for one in known for pair in _pairs(_question(one))}
    strange = sum(_is_new(_pairs(_question(one)), seen) for one in new)
    share, low = strange / len(new), _lower_end(strange, len(new))
    told = f"{share:.0%} of the questions are unlike those that were trained on ({most:.0%} are allowed)."
    return Reason("novelty", True if low > most else None, told, share)


def _judge_drift(new: Sequence[dict[str, Any]], known: Sequence[dict[str, Any]], most: float) -> Reason:
    before, after = _rewards(known), _rewards(new)
    if len(before) < 2 or len(after) < 2:
        return Reason("drift", None, "There are too few rewards to tell whether they fell.")
    drop = _mean(before) - _mean(after)
    error = math.sqrt(_variance(before) / len(before) + _variance(after) / len(after))
    low = drop - t_quantile(0.975, min(len(before), len(after)) - 1) * error
    told = f"Rewards changed by {-drop:+.3f} since what was trained on (a fall of {most:.3f} is allowed)."
    return Reason("drift", True if low > most else None, told, drop)


def _judge_contradiction(new: Sequence[dict[str, Any]], known: Sequence[dict[str, Any]], most: float) -> Reason:
    """Good feedback for another answer than the one that was good before: a change of the world, or poison."""
    before = {_question(one): _answer(one) for one in known if (one["reward"] or 0) >= 0.5}
    again = [one for one in new if (one["reward"] or 0) >= 0.5 and _question(one) in before]
    other = sum(_answer(one) != before[_question(one)] for one in again)
    share, low = other / len(again) if again else 0.0, _lower_end(other, len(again))
    told = f"{other} of {len(again)} questions that were asked before now have another good answer."
    if again and low > most:
        return Reason("contradiction", False, f"{told} Look at them before anything is learned from them.", share)
    return Reason("contradiction", None, told, share)


def _judge_waiting(new: Sequence[dict[str, Any]], most_days: float, now: float) -> Reason:
    times = [one["time"] for one in new if one["time"] is not None]
    days = (now - min(times)) / _DAY_S if times else 0.0
    told = f"The oldest new trace has waited for {days:.1f} days ({most_days:g} are allowed)."
    return Reason("waiting", True if days > most_days else None, told, days)


def _question(trace: dict[str, Any]) -> str:
    said = next((one["content"] for one in trace["messages"] if one["role"] == "user"), "")
    return " ".join(_WORD.findall(said.lower()))


def _answer(trace: dict[str, Any]) -> str:
    return " ".join(_WORD.findall(trace["messages"][-1]["content"].lower()))


def _pairs(question: str) -> list[tuple[str, str]]:
    """Neighbouring words, numbers as one word: order 7 and order 8 are the same kind of question."""
    words = ["0" if word.isdigit() else word for word in question.split()]
    return list(zip(["", *words], [*words, ""], strict=True))


def _is_new(pairs: Sequence[tuple[str, str]], seen: set[tuple[str, str]]) -> bool:
    return sum(pair in seen for pair in pairs) < _KNOWN_SHARE * len(pairs)


def _lower_end(count: int, total: int) -> float:
    """Lower end of Wilson's interval of a share."""
    if not total:
        return 0.0
    share, square = count / total, _Z**2
    middle = share + square / (2 * total)
    half = _Z * math.sqrt(share * (1 - share) / total + square / (4 * total**2))
    return (middle - half) / (1 + square / total)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    middle = _mean(values)
    return sum((value - middle) ** 2 for value in values) / (len(values) - 1)
