"""Writes down what a run learned from, within bounds that its config sets.

Which conversations are kept follows from the seed, the step and what is on disk already, so that a run that was killed
and resumed leaves the same bytes as one that was not. Of each step the best, the worst and the longest attempt are
kept, and all that failed: those are what one looks for when a run does not learn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..config.run import RolloutsConfig
from ..record.layout import RunFiles
from ..record.run_files.rollouts import DROPPED, RolloutLog
from .callback import Callback, RunControl, RunInfo

if TYPE_CHECKING:
    from ..rollouts.rollout import Message, Rollout

_LONGEST_WHEN_FULL = 1000
"""Characters of a message that are kept once the file has reached its bound."""


class RolloutRecorder(Callback):
    """Records every attempt with its reward, and as many conversations as there is room for."""

    name = "rollouts"

    def __init__(self, settings: RolloutsConfig) -> None:
        self._settings = settings
        self._seed = 0
        self._log: RolloutLog | None = None

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        self._seed = int(info.config.get("seed", 0))
        self._log = RolloutLog(RunFiles(info.run_dir))
        self._log.rewind(info.next_step)

    def on_rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        assert self._log is not None
        room = self._settings.max_mb * 1e6 - self._log.size
        extremes, groups = find_extremes(rollouts), dict[str, int]()
        lines: list[bytes] = []
        for at, rollout in enumerate(rollouts):
            group = groups.setdefault(rollout.task_id, len(groups))
            numbers = _numbers(step, group, rollout)
            said: dict[str, Any] = {"task_id": rollout.task_id} | ({"error": rollout.error} if rollout.error else {})
            # What one looks for when a run does not learn has a place even in a full file, shortened.
            is_special = at in extremes or rollout.reward is None
            if not is_special and self._draw(step, rollout.task_id) >= self._settings.share:
                said[DROPPED] = "share"
            elif not is_special and room <= 0:
                said[DROPPED] = "size"
            else:
                said |= _conversation(rollout, whole=room > 0)
                if self._settings.tokens and room > 0:
                    numbers["sampled"] = [
                        {"prompt": turn.prompt_tokens, "completion": turn.completion_tokens, "logprobs": turn.logprobs}
                        for turn in rollout.turns
                    ]
            lines.append(self._log.encode(numbers, said))
            room -= len(lines[-1])
        seconds, attempts = [round(one.seconds, 4) for one in rollouts], [one.attempts for one in rollouts]
        self._log.add(lines, {"step": step, "seconds": seconds, "attempts": attempts})

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def _draw(self, step: int, task: str) -> float:
        """A number between 0 and 1; one for all samples of a group, which are worth most next to each other."""
        # Not `hash`, which differs from process to process: a resumed run keeps the same conversations.
        digest = hashlib.blake2b(repr((self._seed, step, task)).encode(), digest_size=7).digest()
        return int.from_bytes(digest) / 2**56


def find_extremes(rollouts: Sequence[Rollout]) -> set[int]:
    """The places of the first attempt with the highest reward, of the first with the lowest, and of the longest."""
    scored = [(rollout.reward, at) for at, rollout in enumerate(rollouts) if rollout.reward is not None]
    if not scored:
        return set()
    best, worst = max(scored, key=lambda one: one[0])[1], min(scored, key=lambda one: one[0])[1]
    return {best, worst, max(range(len(rollouts)), key=lambda at: _output_tokens(rollouts[at]))}


def _numbers(step: int, group: int, rollout: Rollout) -> dict[str, Any]:
    """What is recorded of every attempt."""
    return {
        "step": step,
        "group": group,
        "sample": rollout.sample,
        "status": rollout.status,
        "reward": rollout.reward,
        "tokens": _output_tokens(rollout),
        "turns": len(rollout.turns),
    }


def _conversation(rollout: Rollout, *, whole: bool) -> dict[str, Any]:
    """What was said, and what was made of it; where there is little room, the beginning of each message."""
    found: dict[str, Any] = {"error_at": rollout.error_at} if rollout.error_at else {}
    found["messages"] = rollout.messages if whole else [_shorten(message) for message in rollout.messages]
    return found | ({"info": rollout.info} if rollout.info else {})


def _shorten(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, str) or len(content) <= _LONGEST_WHEN_FULL:
        return message
    left_out = len(content) - _LONGEST_WHEN_FULL
    return {**message, "content": f"{content[:_LONGEST_WHEN_FULL]}… ({left_out} more characters)"}


def _output_tokens(rollout: Rollout) -> int:
    return sum(turn.output_tokens for turn in rollout.turns)
