"""Checks of the project's agents: a few attempts with a policy whose answers are fixed."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ....algorithms.on_policy import RolloutAlgorithm
from ....data.chat import text_of
from ....data.types import HarborTask
from ....errors import EvsysError, Problem
from ....eval.verifier import VerificationResult, VerifierInput, build_verifier
from ....rollouts.engine import EngineLimits, InlineEngine, RolloutRequest
from ....rollouts.rollout import Rollout, Turn, opening
from ....user_code import limit_user_code
from .context import Context, StageView, expected_text
from .rows import occurrences

_REPEATS, _MOST_TASKS = 7, 4
_WRONG = " Zxqv 8175309\n"
"""A wrong answer for every task, which an agent must return as it is."""
_SECONDS, _LONGEST_S = 5.0, 60.0
"""Time limit of an attempt, and of one that blocks its event loop."""
_MOST_TURNS = 30
"""An agent that acts more often waits for an answer that the policy never gives, and is not judged."""


@dataclass(slots=True)
class _Script:
    """A policy that always gives the same answer, and keeps the conversations that it is shown."""

    task: HarborTask
    answer: str
    shown: list[list[Any]] = field(default_factory=list[list[Any]])
    rollout: Rollout | None = None

    async def act(self, messages: Sequence[Any], *, tools: Any = None) -> Turn:
        self.shown.append([dict(one) for one in messages])
        await asyncio.sleep(1000 if len(self.shown) > _MOST_TURNS else 0)  # until the time limit ends the attempt
        message = {"role": "assistant", "content": self.answer}
        return Turn(message, [0], [0], [0.0], input_tokens=1, output_tokens=1)  # pyright: ignore[reportArgumentType]

    @property
    def reward(self) -> float:
        return (self.rollout and self.rollout.reward) or 0.0

    def saw(self, text: str | None, turn: int = 0) -> bool:
        """Whether the prompt of a turn contains a text more often than the task itself."""
        prompts = (
            "\n".join(text_of(one.get("content")) for one in some) for some in (opening(self.task), self.shown[turn])
        )
        task, shown = (len(occurrences(prompt, text or "")) for prompt in prompts)
        return shown > task


def _is_lost(one: _Script) -> bool:
    """Whether the returned conversation lacks the policy's answers."""
    return one.rollout is not None and not any(each.get("content") == one.answer for each in one.rollout.messages)


def _lacks_system(one: _Script) -> bool:
    """Whether the first prompt lacks the system prompt of the task."""
    wanted = [text_of(each.get("content")) for each in opening(one.task) if each.get("role") == "system"]
    return any(text not in "\n".join(text_of(each.get("content")) for each in one.shown[0]) for text in wanted)


def _is_asked_again(one: _Script) -> bool:
    """Whether the policy is asked twice with nothing new but its own answer."""
    pairs = zip(one.shown, one.shown[1:], strict=False)
    return any(
        len(after) - len(before) <= 1 and after[-1].get("content") in (before[-1].get("content"), one.answer)
        for before, after in pairs
    )


def agents_of_the_project(context: Context) -> Iterator[Problem]:
    """Agents that reward silence, show the answer, share state between attempts, or lose what a tool returns."""
    for one in {getattr(stage.cfg, "agent_import_path", None): stage for stage in context.stages}.values():
        limit_s = context.config.arm_timeout_s or _LONGEST_S
        attempts = _attempts(one, limit_s) if getattr(one.cfg, "agent_import_path", None) and one.examples else []
        failed = next(
            (each.rollout.error for each in attempts if each.rollout and each.rollout.status == "infra"), None
        )
        if failed:
            hint = "It was tried with fixed answers: an attempt that raises earns no reward."
            yield Problem(failed, f"{one.params_place}.agent_import_path", one.cfg.agent_import_path, hint)
        if not attempts or failed:
            continue
        silent, wrong = ([each for each in attempts if each.answer == text][:2] for text in ("", _WRONG))
        (first, expected), (second, other) = ((each, _expected(each.task)) for each in silent)
        same = [each for each in attempts if each.answer == expected and each.task is first.task]
        answers = {_expected(each.task) for each in attempts}
        # Some agents judge more than the last answer: an answer counts if it passes where it is expected.
        passing = {each.answer for each in attempts if each.answer == _expected(each.task) and each.reward >= 1}
        crossed = [each for each in attempts if each.answer in answers and each.answer != _expected(each.task)]
        elsewhere = next((each for each in crossed if each.answer in passing and each.reward >= 1), first)
        corrected = [each for each in crossed if len(each.shown) > 1]
        given = [each.reward for each in silent]
        commands = [each for each in attempts if each.answer not in {"", _WRONG, *answers}]
        command = commands[0].answer if commands else ""
        faults = (
            (
                min(given) > 0,
                f"an attempt without an answer earns {min(given):g}",
                "Start at a reward of 0, and add what is earned",
            ),
            (
                first.saw(expected) and second.saw(other) and not first.saw(other) and not second.saw(expected),
                f"the first prompt shows the expected answer '{expected}', which is not in the task",
                "Leave it out of what the policy is shown",
            ),
            (
                first.shown[0] == second.shown[0] and opening(first.task) != opening(second.task),
                "the first prompt is the same for different tasks",
                "Start with opening(task), which has the messages of the task",
            ),
            (
                bool(corrected) and all(each.saw(_expected(each.task), 1) for each in corrected),
                "after a wrong answer the next prompt shows the expected one",
                "Leave it out of what the policy is shown",
            ),
            (
                elsewhere is not first,
                f"the answer '{elsewhere.answer}' earns 1 where '{_expected(elsewhere.task)}' is expected",
                "Compare the answer with that of the task",
            ),
            (
                second.saw(text_of(first.task.instruction)),
                "a prompt contains the task of another attempt",
                "Keep the state of an attempt in variables of `run`, not in the class or module",
            ),
            (
                _lacks_system(first),
                "the first prompt lacks the system prompt of the task",
                "Start with opening(task), which has all messages before the instruction",
            ),
            (
                len({one.reward for one in same}) > 1,
                f"the answer '{expected}' to one task earns different rewards",
                "Take what an attempt needs from the task, and seed what is random by it",
            ),
            (
                all(map(_is_lost, wrong)),
                "the returned conversation lacks the policy's answers as they were sampled",
                "Append turn.message to the messages that `run` returns",
            ),
            (
                any(map(_is_asked_again, commands)),
                f"after '{command}' the policy is asked again and shown nothing new",
                "Append what the tool returns to the messages",
            ),
            (
                any(len(each.shown) == 1 and _ends_unread(each) and not _is_lost(each) for each in commands),
                f"after '{command}' the attempt ends with a message that the policy never sees",
                "Let the policy act again after the tool",
            ),
        )
        for is_found, message, hint in faults:
            if is_found:
                yield Problem(message, f"{one.params_place}.agent_import_path", one.cfg.agent_import_path, f"{hint}.")


def _expected(task: HarborTask) -> str | None:
    return expected_text(getattr(task.verifier, "expected", None))


def _ends_unread(one: _Script) -> bool:
    messages: list[Any] = list(one.rollout.messages) if one.rollout else []
    return bool(messages) and messages[-1].get("role") != "assistant"


def _attempts(one: StageView, limit_s: float) -> list[_Script]:
    """Attempts at tasks with different answers: silence, a wrong answer, the expected ones, and quoted commands."""
    if not isinstance(one.algorithm, RolloutAlgorithm):
        return []
    tasks = list({_expected(task): task for task in one.tasks}.values())[:_MOST_TASKS]
    expected = [text for task in tasks if (text := _expected(task))]
    scripts: list[_Script] = []
    for task in tasks[:2] if len(tasks) > 1 else ():
        quoted = re.findall(r"`([^`\n]{1,60})`", text_of(task.instruction))[:2]
        scripts += [_Script(task, answer) for answer in ("", _expected(task) or "", *quoted, _WRONG)]
    scripts += [_Script(tasks[0], _expected(tasks[0]) or "") for _ in range(_REPEATS)] if scripts else []
    scripts += [_Script(task, answer) for task in tasks for answer in expected] if scripts else []
    with suppress(EvsysError):
        harness = one.algorithm.harness()
        environment = getattr(one.cfg, "environment", None)
        if harness.engine != "inline" or (environment is not None and environment.kind != "none"):
            return []
        engine = InlineEngine(EngineLimits(concurrency=1, timeout_s=_SECONDS, attempts=1))
        try:
            for each in scripts:
                began = time.monotonic()
                with limit_user_code(f"trying {one.cfg.agent_import_path} with fixed answers", limit_s=limit_s):
                    [each.rollout] = engine.submit([RolloutRequest(each.task, 0, each, harness, _verify)]).result()
                if time.monotonic() - began >= _SECONDS:
                    return []
        finally:
            engine.close()
        return scripts
    return []


async def _verify(task: HarborTask, rollout: Rollout, _: Any) -> VerificationResult:
    given = VerifierInput(
        prompt=text_of(task.instruction), completion=rollout.completion, messages=rollout.messages, task=task
    )
    return await build_verifier(task.verifier)(given)
