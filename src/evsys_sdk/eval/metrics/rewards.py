"""Metrics of what answers earn and of what they say: `mean_reward`, `exact_match` and `toolkit_match`."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ...data.shapes import is_object
from ...errors import EvalError, show


def read_rewards(
    given: Sequence[Any], against: Sequence[str] | None, by_hand: Mapping[str, Sequence[str]]
) -> Sequence[Sequence[float]]:
    """The rewards of each task, or of predictions and targets: 1 where they are equal."""
    if unknown := by_hand.keys() - {"predictions", "targets"}:
        raise TypeError(f"compute() takes no '{min(unknown)}'; it takes task_rewards, or predictions and targets.")
    predictions, targets = by_hand.get("predictions", given), by_hand.get("targets", against)
    if targets is None:
        return given
    return [[float(one.strip() == other.strip())] for one, other in zip(predictions, targets, strict=True)]


class MeanReward:
    """Mean reward: the mean over tasks of the mean over their samples."""

    name: ClassVar[str] = "mean_reward"

    def compute(
        self, task_rewards: Sequence[Any] = (), against: Sequence[str] | None = None, **by_hand: Sequence[str]
    ) -> float:
        """Every task counts the same, however often it was sampled; by hand also of `predictions` and `targets`."""
        task_rewards = read_rewards(task_rewards, against, by_hand)
        return statistics.fmean(statistics.fmean(rewards) for rewards in task_rewards)


class ExactMatchRate:
    """Share of predictions equal to their target, surrounding white space aside."""

    name: ClassVar[str] = "exact_match"

    def compute(self, *, predictions: Sequence[str], targets: Sequence[str]) -> float:
        """Between 0 and 1; without predictions there is nothing to report, which is an error of the caller."""
        if not predictions or len(predictions) != len(targets):
            raise ValueError(
                f"exact_match needs as many predictions as targets, got {len(predictions)} and {len(targets)}."
            )
        hits = sum(
            prediction.strip() == target.strip() for prediction, target in zip(predictions, targets, strict=True)
        )
        return hits / len(targets)


_MARKS = re.compile(r"__|[./:]")


class ToolkitMatch:
    """Share of predictions whose tool belongs to the target's toolkit: `GMAIL_SEND` and `GMAIL_READ` agree."""

    name: ClassVar[str] = "toolkit_match"

    def compute(
        self,
        *,
        predictions: Sequence[str],
        targets: Sequence[Any],
        metadata: Sequence[Mapping[str, Any]] | None = None,
    ) -> float:
        """The toolkit is the row's own `toolkit`, or else that of the target: a tool, or an object with `toolkit`."""
        if not predictions or len(predictions) != len(targets):
            raise EvalError(f"toolkits of {len(predictions)} predictions and {len(targets)} targets do not compare.")
        rows: Sequence[Mapping[str, Any]] = metadata or [dict[str, Any]()] * len(targets)
        return statistics.fmean(
            _belongs(prediction, _target_toolkit(target, row))
            for prediction, target, row in zip(predictions, targets, rows, strict=True)
        )


def toolkit_of(tool: str) -> str:
    """The toolkit that a tool's name begins with: before `__`, `.`, `/` or `:`, or else before the first `_`."""
    tool = tool.strip().casefold()
    mark = _MARKS.search(tool)
    return tool[: mark.start()] if mark else tool.partition("_")[0]


def _belongs(tool: str, toolkit: str) -> bool:
    """Whether a tool's name begins with the toolkit, which may be of several words: `google_drive`."""
    name = tool.strip().casefold()
    return toolkit_of(name) == toolkit or (name.startswith(toolkit) and name[len(toolkit) : len(toolkit) + 1] in "_./:")


def _target_toolkit(target: Any, row: Mapping[str, Any]) -> str:
    named: dict[str, Any] = target if is_object(target) else {"tool_slug": target, "toolkit": row.get("toolkit")}
    toolkit, tool = named.get("toolkit"), named.get("tool_slug") or named.get("answer")
    found = str(toolkit).strip().casefold() if toolkit else toolkit_of(str(tool or ""))
    if not found:
        raise EvalError(f"the target {show(target)} names no toolkit. Give a tool's name, or an object with 'toolkit'.")
    return found
