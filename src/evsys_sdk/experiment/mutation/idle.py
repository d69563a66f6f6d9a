"""Changes that would change nothing: a child that trains exactly like its parent is a run paid for twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from ...config import DataConfig, ExperimentConfig
from ...config.fields import Path
from ...errors import EvsysError
from ...record.reader import ExperimentRecord
from ...registry import get_data_store
from ..rows import load_transformed
from .space import MutableField, value_at

_LIMITS = {"grad_clip_norm": "grad_clipped", "max_tokens": "rollouts/truncated"}
"""A limit -> what is logged when it is reached. Raising one that was never reached does nothing."""
_ROWS_LOOKED_AT = 200


class IdleChanges:
    """What the data and the record of the parent say about changes to it."""

    def __init__(self, config: ExperimentConfig, data: Mapping[str, Any], parent: FilePath | None) -> None:
        self._config, self._data, self._parent = config, data, parent
        self._turns: dict[Path, bool] = {}

    def holds(self, run: Path, field: MutableField, new: Any) -> bool:
        """Whether training would not notice this change."""
        name = field.path[-1]
        if name in _LIMITS:
            return self._is_raised(name, field.value, new) and _LIMITS[name] in self._never_reached
        if name == "supervise":  # of a single turn, all are the last
            if run not in self._turns:
                self._turns[run] = self._has_one_turn(run)
            return self._turns[run]
        return False

    def _is_raised(self, name: str, old: Any, new: Any) -> bool:
        return new > old or (name == "grad_clip_norm" and new == 0)  # no limit at all

    @cached_property
    def _never_reached(self) -> set[str]:
        """The limits that no arm of the parent came to at any step."""
        arms = ExperimentRecord(self._parent).runs_on_disk if self._parent else []
        logged = [arm.logged for arm in arms if arm.logged]
        return {
            name
            for name in _LIMITS.values()
            if logged and all(name in one and not any(value for _, value in one[name]) for one in logged)
        }

    def _has_one_turn(self, run: Path) -> bool:
        """Whether no row has more than one answer to learn from; False where the rows cannot be read here."""
        try:
            store = get_data_store(self._config.data_store.kind)(**self._config.data_store.params)
            source = DataConfig.model_validate(value_at(self._data, (*run, "data")))
            rows = load_transformed(source, store)[0][:_ROWS_LOOKED_AT]
        except (EvsysError, ValidationError, OSError):
            return False
        return bool(rows) and all(_count_answers(row) == 1 for row in rows)


def _count_answers(row: Any) -> int:
    messages: Sequence[Any] = row.get("messages") or () if isinstance(row, Mapping) else ()  # pyright: ignore[reportUnknownVariableType,reportUnknownMemberType]
    target = 1 if isinstance(row, Mapping) and row.get("target_assistant") else 0  # pyright: ignore[reportUnknownMemberType]
    return target + sum(isinstance(one, Mapping) and one.get("role") == "assistant" for one in messages)  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType,reportUnknownArgumentType]
