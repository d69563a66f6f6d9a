"""Records the rollouts of a run, within limits of its config.

The selection depends on the seed, the step and the file on disk, so a resumed run writes the same bytes as an
uninterrupted one. The best, worst, longest and all failed rollouts of each step are always kept, for debugging.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ..config.run import RolloutsConfig
from ..record.layout import RunFiles
from ..record.run_files.rollouts import DROPPED, RolloutLog
from .callback import Callback, RunControl, RunInfo

if TYPE_CHECKING:
    from ..rollouts.rollout import Message, Rollout

_LONGEST_WHEN_FULL = 1000
"""Characters kept per message once the file is full."""


class RolloutRecorder(Callback):
    """Records every rollout with its reward, and conversations up to the size limit."""

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
        free = self._settings.max_mb * 1e6 - self._log.size
        extremes, groups = find_extremes(rollouts), dict[str, int]()
        lines: list[bytes] = []
        for at, rollout in enumerate(rollouts):
            group = groups.setdefault(rollout.task_id, len(groups))
            numbers = _numbers(step, group, rollout)
            texts: dict[str, Any] = {"task_id": rollout.task_id} | ({"error": rollout.error} if rollout.error else {})
            # Rollouts for debugging are kept even in a full file, shortened.
            is_special = at in extremes or rollout.reward is None
            if not is_special and self._draw(step, rollout.task_id) >= self._settings.share:
                texts[DROPPED] = "share"
            elif not is_special and free <= 0:
                texts[DROPPED] = "size"
            else:
                texts |= _conversation(rollout, whole=free > 0)
                if self._settings.tokens and free > 0:
                    numbers["sampled"] = [
                        {"prompt": turn.prompt_tokens, "completion": turn.completion_tokens, "logprobs": turn.logprobs}
                        for turn in rollout.turns
                    ]
            lines.append(self._log.encode(numbers, texts))
            free -= len(lines[-1])
        seconds = [round(rollout.seconds, 4) for rollout in rollouts]
        attempts = [rollout.attempts for rollout in rollouts]
        self._log.add(lines, {"step": step, "seconds": seconds, "attempts": attempts})

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def _draw(self, step: int, task: str) -> float:
        """A pseudorandom number between 0 and 1, the same for all samples of a group."""
        # Not `hash`, which differs between processes.
        digest = hashlib.blake2b(repr((self._seed, step, task)).encode(), digest_size=7).digest()
        return int.from_bytes(digest) / 2**56


def find_extremes(rollouts: Sequence[Rollout]) -> set[int]:
    """Indices of the first rollout with the highest reward, the first with the lowest, and the longest."""
    scored = [(rollout.reward, at) for at, rollout in enumerate(rollouts) if rollout.reward is not None]
    if not scored:
        return set()
    best, worst = max(scored, key=itemgetter(0))[1], min(scored, key=itemgetter(0))[1]
    return {best, worst, max(range(len(rollouts)), key=lambda at: _output_tokens(rollouts[at]))}


def _numbers(step: int, group: int, rollout: Rollout) -> dict[str, Any]:
    """The numeric fields of every rollout."""
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
    """Messages and verifier info; with little space, the start of each message."""
    fields: dict[str, Any] = {"error_at": rollout.error_at} if rollout.error_at else {}
    fields["messages"] = rollout.messages if whole else [_shorten(message) for message in rollout.messages]
    return fields | ({"info": rollout.info} if rollout.info else {})


def _shorten(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, str) or len(content) <= _LONGEST_WHEN_FULL:
        return message
    omitted = len(content) - _LONGEST_WHEN_FULL
    return {**message, "content": f"{content[:_LONGEST_WHEN_FULL]}… ({omitted} more characters)"}


def _output_tokens(rollout: Rollout) -> int:
    return sum(turn.output_tokens for turn in rollout.turns)
