"""What answers in use earned, as a roll-out is judged by it: rewards of traces, and pairs of a shadow's answers.

A pair is scored once, by the verifier or judge that the policy names, and its scores are kept in the order in which
they were made; so whoever looks again finds the same pairs first.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from ..data.chat import text_of
from ..deploy.deployments import Deployment
from ..deploy.policy import Shadow
from ..deploy.rollout import Pair
from ..errors import EvalError
from ..eval.verifier import BuiltVerifier, VerifierInput, build_verifier
from ..log import get_logger
from ..record.jsonl_file import JsonlFile, read_records
from .traces.feedback import CORRECTION
from .traces.request_log import FAILED, MISSED
from .traces.store import TraceStore

_SCORES: Final = "shadow-scores.jsonl"
_AT_ONCE: Final = 8
_GOOD: Final = 0.5

type Trace = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ShadowCounts:
    """How far a shadow has come."""

    answered: int
    failed: int
    """Of those, without an answer."""
    missed: int
    """Requests that it did not get round to."""

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


class TracedScores:
    """The scores in a store of traces."""

    def __init__(self, store: str, policy: Shadow) -> None:
        self._store, self._policy = TraceStore(store), policy
        self._verifier = build_verifier(policy.verifier)  # what is wrong with it should show before anything is read
        about = policy.model_dump(mode="json")
        # Scores by another verifier, or by other params of it, are of another kind and are not mixed with these.
        self._about = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]

    def of(self, deployment: Deployment, since: float) -> Sequence[float]:
        """The rewards of a deployment's answers."""
        answered = (one for one in self._store.read() if one["model"] == deployment.id)
        # By time: what was told once must come first again, whatever was imported since.
        timed = sorted((one["time"] or 0.0, one["reward"]) for one in answered if one["reward"] is not None)
        return [reward for time, reward in timed if time >= since]

    def pairs(self, candidate: Deployment, live: Deployment, since: float) -> Sequence[Pair]:
        """The scores of both for every request that both answered; those that have none yet are scored now."""
        path = self._store.folder / _SCORES
        ours = {"verifier": self._about, "candidate": candidate.id, "live": live.id}
        kept = [one for one in (read_records(path) if path.is_file() else ()) if ours.items() <= one.items()]
        done = {one["id"] for one in kept}
        waiting = [pair for pair in self._find(candidate, live, since) if pair[0]["id"] not in done]
        if waiting:
            with JsonlFile(path) as file:
                for trace, scores in asyncio.run(self._score_all(waiting)):
                    line = {"id": trace["id"], **ours, "scores": list(scores)}
                    file.append(line)
                    kept.append(line)
        return [(one["scores"][0], one["scores"][1]) for one in kept]

    def _find(self, candidate: Deployment, live: Deployment, since: float) -> list[tuple[Trace, Trace]]:
        """What was answered, next to what the shadow would have."""
        answers = {
            one["id"]: one
            for one in self._store.shadows.read()
            if one["model"] == candidate.id and (one["time"] or 0.0) >= since
        }
        given = (one for one in self._store.read() if one["id"] in answers and one["model"] == live.id)
        return [(one, answers[one["id"]]) for one in given]

    async def _score_all(self, waiting: Sequence[tuple[Trace, Trace]]) -> list[tuple[Trace, Pair]]:
        """Each pair that can be scored; what cannot is told, and tried again next time."""
        room, problems = asyncio.Semaphore(_AT_ONCE), list[EvalError]()

        async def score(given: Trace, shadow: Trace) -> tuple[Trace, Pair] | None:
            expected = _read_expected(given) if self._policy.expects == "feedback" else None
            if expected is None and self._policy.expects == "feedback":
                return None
            async with room:
                try:
                    theirs = await _score(self._verifier, given, given["messages"][-1], expected)
                    # A shadow without an answer has earned nothing, which no verifier needs to be asked about.
                    is_none = any(one["name"] == FAILED for one in shadow["feedback"])
                    ours = 0.0 if is_none else await _score(self._verifier, given, shadow["messages"][-1], expected)
                except EvalError as error:
                    problems.append(error)
                    return None
            return given, (ours, theirs)

        found = [one for one in await asyncio.gather(*(score(*pair) for pair in waiting)) if one is not None]
        # One pair that cannot be scored is told and left for next time; when none can, the judge itself is at fault.
        if problems and not found:
            raise problems[0]
        if problems:
            get_logger(__name__).warning("%d pairs could not be scored, first: %s", len(problems), problems[0])
        return found


def count_shadow(store: str, candidate: str) -> ShadowCounts:
    """How many requests a candidate has answered as a shadow."""
    traces = TraceStore(store)
    answered = [one for one in traces.shadows.read() if one["model"] == candidate]
    failed = sum(any(said["name"] == FAILED for said in one["feedback"]) for one in answered)
    missed, path = Counter[str](), traces.folder / MISSED
    for line in read_records(path) if path.is_file() else ():
        missed[str(line["candidate"])] += int(line["missed"])
    return ShadowCounts(len(answered), failed, missed[candidate])


def _read_expected(given: Trace) -> str | None:
    """What should have been answered, as far as somebody said so."""
    if CORRECTION in given:
        return given[CORRECTION]
    is_good = given["reward"] is not None and given["reward"] >= _GOOD
    return given["messages"][-1]["content"] if is_good else None


async def _score(verifier: BuiltVerifier, given: Trace, answer: dict[str, Any], expected: str | None) -> float:
    asked = given["messages"][:-1]
    prompt = next((text_of(one["content"]) for one in reversed(asked) if one["role"] == "user"), "")
    said = VerifierInput(prompt, text_of(answer["content"]), [*asked, answer], expected)
    return (await verifier(said)).reward
