"""Compare recorded answers with their rewards, scores and token counts, and verify a sample of them again.

book = AnswerBook(runs, recheck)
book.contradictions               scores that differ from their rewards, and rewards that differ from the answers
book.find_unpaid(tally, arms)     arms with more answer tokens than the ledger has
book.judge_again(tasks, ...)      a sample of answers whose reward is now different
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from ...data.task_identity import task_id
from ...data.types import HarborTask
from ...data.workspace.reference import slug
from ...eval.samples import ScoredSample, TaskSamples
from ...record.ledger import Tally
from ...record.runs import RunRecord
from ...record.values import number, part
from .recheck import NON_REPLAYABLE_VERIFIERS, TOLERANCE, Rechecker
from .report import Unchecked

type Answers = dict[tuple[str, int], dict[str, Any]]

_LATEST = 4
"""Number of latest evaluations per arm whose answers are verified again."""
_FEWEST = 24
"""Minimum number of answers per evaluation that are verified again, if it has as many."""
_LONGEST_S = 2.0
"""Time limit for the verification of further answers."""
_MOST_NAMED = 10
_PROVIDER = ":"
"""Separator in the name of a provider's model."""
_BASELINE = "baseline"
"""Split of evaluations that arms share; only one arm has their tokens in the ledger."""


class AnswerBook:
    """Checks of the answers of an experiment's arms; it keeps hashes and counts instead of the answers of arms."""

    def __init__(
        self,
        runs: Sequence[RunRecord],
        recheck: Rechecker,
        shared: Mapping[str, list[dict[str, Any]]] | None = None,
        *,
        agent_rewards: bool = False,
    ) -> None:
        """Read and check all answers. `shared` maps a baseline model to its answers.

        With `agent_rewards`, an agent of the config may give rewards, which do not follow from the answers.
        """
        self._runs, self._recheck, self._agent_rewards = runs, recheck, agent_rewards
        self._shared = {model: _by_task(answers) for model, answers in (shared or {}).items()}
        self.contradictions: list[str] = []
        self._written: dict[str, dict[Any, float]] = {}
        """Arm -> evaluation -> tokens of its answers."""
        self._earned: dict[int, tuple[str, Any]] = {}
        """Hash of task and answer -> the first arm with it, and its reward."""
        for run in runs:
            is_certain = not _is_judged_by_chance(run)
            for line in run.score_lines:
                answers = _read_answers(run, line)
                place = name_scoring(run, line)
                self.contradictions += [f"{place}: {what}" for what in self._recompute(line, answers)]
                if answers is None:
                    continue
                if line.get("split") != _BASELINE:
                    key = line.get("split"), line.get("name"), line.get("step")
                    self._written.setdefault(run.name, {})[key] = _count_tokens(answers)
                self.contradictions += self._find_unequal(run, answers) if is_certain else []

    def _recompute(self, line: Mapping[str, Any], answers: Answers | None) -> Iterator[str]:
        """Yield the contradictions between an evaluation, its samples and the answers on disk."""
        tasks: list[str] = line.get("tasks") or []
        samples: list[list[float | None]] = line.get("samples") or []
        if len(tasks) != len(samples) or not tasks:
            return
        rewards = dict(zip(tasks, samples, strict=True))
        for task, given in rewards.items():
            kept = given if answers is None else [answers.get((task, at), {}).get("reward") for at in range(len(given))]
            if kept != given:
                yield f"task '{task}' has rewards {given} in the score and {kept} in the answers"
                break
        shaped = [TaskSamples(task, [ScoredSample(reward=one) for one in given]) for task, given in rewards.items()]
        metrics: dict[str, dict[str, Any]] = line.get("metrics") or {}
        for name, value in metrics.items():
            expected = self._recheck.measure(name, shaped)
            given = number(value.get("value"))
            if expected is None or (given is None and not math.isfinite(expected)):
                continue  # the metric cannot be recomputed, or has no value for these samples
            if given is None or not math.isclose(expected, given, abs_tol=TOLERANCE):
                yield f"recomputed value differs: {name}, stored {value.get('value')}, recomputed {expected:.6g}"

    def _find_unequal(self, run: RunRecord, answers: Answers) -> Iterator[str]:
        """Yield equal answers to the same task with different rewards: the verifier used other inputs."""
        for (task, _), one in answers.items():
            if not self._follows_from_text(one):
                continue
            # A hash instead of the text: the answers of a large experiment do not fit into memory.
            answer = hash((task, one.get("task"), one.get("text")))
            arm, reward = self._earned.setdefault(answer, (run.name, one["reward"]))
            if reward != one["reward"]:
                yield f"one answer to task '{task}' earned {reward:g} in {arm} and {one['reward']:g} in {run.name}"
                break

    def _follows_from_text(self, answer: dict[str, Any]) -> bool:
        """Whether a verifier gave the reward for the text alone; in a conversation, it sees more than the last text."""
        by_agent = self._agent_rewards and part(answer, "info").get("reward_from") == "agent"
        return answer.get("reward") is not None and not answer.get("messages") and not by_agent

    def find_unpaid(self, tally: Tally, arms: Collection[str]) -> Iterator[str]:
        """Yield the arms among `arms` whose answers have more tokens than the ledger has sampled tokens."""
        for arm in sorted(self._written.keys() & {*arms} & {*tally.arms()}):
            stated, paid = sum(self._written[arm].values()), float(tally.of(arm).tokens_sampled)
            if stated > paid:
                yield f"{arm} has answers of {stated:,.0f} tokens, and {paid:,.0f} were sampled for it"
        # Arms sample from the untrained models; a provider's models are not in their ledger.
        own = [_count_tokens(answers) for model, answers in self._shared.items() if _PROVIDER not in model]
        stated, paid = sum(own + [sum(one.values()) for one in self._written.values()]), tally.total().tokens_sampled
        # The ledger of a killed arm may be incomplete, and so may the total.
        if own and self._written.keys() <= {*arms} and stated > paid:
            yield f"with the models before training there are {stated:,.0f} tokens, and {paid:,.0f} were sampled"

    def judge_again(self, tasks: Mapping[str, HarborTask], *, thorough: bool) -> list[str]:
        """Verify a sample of answers again; return changed rewards. Raises `Unchecked` if none can be verified."""
        checked, changed = 0, 0
        found: list[str] = []
        for place, answer in self._choose(thorough):
            task = tasks.get(str(answer.get("task_id")))
            if task is None or answer.get("task") not in ("", None, task_id(task)):
                changed += 1
            elif (reward := self._recheck.judge(task, str(answer.get("text") or ""))) is not None:
                checked += 1
                if not math.isclose(reward, float(answer["reward"]), abs_tol=TOLERANCE):
                    found.append(
                        f"{place}: the answer to task '{answer['task_id']}' earned {answer['reward']:g}, "
                        f"and earns {reward:g} when it is judged again"
                    )
        if not checked and not self._recheck.failure:
            raise Unchecked("its tasks have changed since" if changed else "none of its rewards can be recomputed here")
        return [*found[:_MOST_NAMED], *filter(None, [self._recheck.failure])]

    def _choose(self, thorough: bool) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield random answers of each evaluation: at least `_FEWEST`, and more until the time limit.

        The last arms come first: a verifier that depends on the order of calls then gives other rewards.
        """
        latest = [(run, line) for run in reversed(self._runs) for line in run.score_lines[-_LATEST:]]
        until = time.monotonic() + (_LONGEST_S if thorough else 0.0)
        own = ((run.name, _read_answers(run, line) or {}) for run, line in latest)
        for place, answers in chain(own, self._shared.items()):
            judged = [one for one in answers.values() if self._follows_from_text(one)]
            random.shuffle(judged)
            for at, one in enumerate(judged):
                if at >= _FEWEST and time.monotonic() >= until:
                    break
                yield place, one


def name_scoring(run: RunRecord, line: Mapping[str, Any]) -> str:
    """Name an evaluation in a message."""
    return f"{run.name}: {line.get('split')}/{line.get('name')} after step {line.get('step')}"


def _read_answers(run: RunRecord, line: Mapping[str, Any]) -> Answers | None:
    """The recorded answers of an evaluation, by task and sample; None if they are missing."""
    answers = run.read_answers(slug(f"{line.get('split')}-{line.get('name')}"), int(line.get("step") or 0))
    return None if answers is None else _by_task(answers)


def _by_task(answers: Sequence[dict[str, Any]]) -> Answers:
    return {(str(one["task_id"]), int(one.get("sample") or 0)): one for one in answers if "task_id" in one}


def _count_tokens(answers: Answers) -> float:
    return sum(number(one.get("output_tokens")) or 0.0 for one in answers.values())


def _is_judged_by_chance(run: RunRecord) -> bool:
    """Whether a verifier of the run may be nondeterministic, such as a judge model or a sandbox, or is unknown."""
    benchmarks: dict[str, dict[str, Any]] = (run.identity or {}).get("benchmarks") or {}
    return not benchmarks or any(
        one.get("nondeterministic") or NON_REPLAYABLE_VERIFIERS & {*(one.get("verifiers") or {})}
        for one in benchmarks.values()
    )
