"""Metrics of rewards and answer texts: `mean_reward`, `exact_match` and `toolkit_match`."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ...data.shapes import is_object
from ...errors import EvalError, show


def read_rewards(
    task_rewards: Sequence[Any], positional_targets: Sequence[str] | None, named_texts: Mapping[str, Sequence[str]]
) -> Sequence[Sequence[float]]:
    """The rewards per task; for predictions and targets, 1 where they are equal."""
    if unknown := named_texts.keys() - {"predictions", "targets"}:
        raise TypeError(f"compute() takes no '{min(unknown)}'; it takes task_rewards, or predictions and targets.")
    predictions, targets = named_texts.get("predictions", task_rewards), named_texts.get("targets", positional_targets)
    if targets is None:
        return task_rewards
    return [[float(text.strip() == target.strip())] for text, target in zip(predictions, targets, strict=True)]


class MeanReward:
    """Mean reward: the mean over tasks of the mean over their samples."""

    name: ClassVar[str] = "mean_reward"

    def compute(
        self, task_rewards: Sequence[Any] = (), against: Sequence[str] | None = None, **by_hand: Sequence[str]
    ) -> float:
        """Every task weighs the same, whatever its sample count; also takes `predictions` and `targets`."""
        task_rewards = read_rewards(task_rewards, against, by_hand)
        return statistics.fmean(statistics.fmean(rewards) for rewards in task_rewards)


class ExactMatchRate:
    """Share of predictions equal to their target, ignoring surrounding white space."""

    name: ClassVar[str] = "exact_match"

    def compute(self, *, predictions: Sequence[str], targets: Sequence[str]) -> float:
        """A value between 0 and 1; no predictions are an error."""
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
        """Match toolkits: the row's `toolkit`, else that of the target, a tool name or an object with `toolkit`."""
        if not predictions or len(predictions) != len(targets):
            raise EvalError(
                f"toolkit_match needs as many predictions as targets, got {len(predictions)} and {len(targets)}."
            )
        rows: Sequence[Mapping[str, Any]] = metadata or [dict[str, Any]()] * len(targets)
        return statistics.fmean(
            _belongs(prediction, _target_toolkit(target, row))
            for prediction, target, row in zip(predictions, targets, rows, strict=True)
        )


def toolkit_of(tool: str) -> str:
    """The toolkit prefix of a tool name: up to `__`, `.`, `/` or `:`, else up to the first `_`."""
    tool = tool.strip().casefold()
    mark = _MARKS.search(tool)
    return tool[: mark.start()] if mark else tool.partition("_")[0]


def _belongs(tool: str, toolkit: str) -> bool:
    """Whether a tool name starts with the toolkit, which may have several words (`google_drive`)."""
    name = tool.strip().casefold()
    return toolkit_of(name) == toolkit or (name.startswith(toolkit) and name[len(toolkit) : len(toolkit) + 1] in "_./:")


def _target_toolkit(target: Any, row: Mapping[str, Any]) -> str:
    fields: dict[str, Any] = target if is_object(target) else {"tool_slug": target, "toolkit": row.get("toolkit")}
    toolkit, tool = fields.get("toolkit"), fields.get("tool_slug") or fields.get("answer")
    name = str(toolkit).strip().casefold() if toolkit else toolkit_of(str(tool or ""))
    if not name:
        raise EvalError(f"the target {show(target)} names no toolkit. Give a tool's name, or an object with 'toolkit'.")
    return name
