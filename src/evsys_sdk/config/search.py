"""`search`: which runs of an experiment are trained: all of them, some, or points drawn from a space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self, cast

from pydantic import Field, model_validator

from .base import MisplacedValue, Strict, StrictWithRemovedKeys
from .metadata import Metadata, SuccessMetric


class Interval(Strict):
    """Numbers to draw from; whole ones where both ends are written as whole numbers."""

    low: int | float
    """Smallest value."""
    high: int | float
    """Largest value."""
    scale: Literal["linear", "log"] = "linear"
    """`log` draws as many values between 1e-5 and 1e-4 as between 1e-4 and 1e-3; right for learning rates."""

    @model_validator(mode="after")
    def _is_not_empty(self) -> Self:
        if not self.low < self.high:
            remedy = f"Swap them, or list the one value as [{self.low}]."
            raise MisplacedValue(f"high must be more than low, which is {self.low}. {remedy}", "high")
        if self.scale == "log" and self.low <= 0:
            raise MisplacedValue("a log scale needs a low above 0. Raise it, or set scale: linear.", "low")
        return self


class SearchSpec(StrictWithRemovedKeys):
    """Which runs of the experiment are trained."""

    REMOVED = {"eta": 1.5, "rungs": None, "finalists": 2, "metric": None, "mode": None, "race": None}

    kind: Literal["grid", "random"] = "grid"
    """`grid` trains every run, `random` a few of them."""
    n: int | None = Field(default=None, ge=1, le=100_000)
    """How many runs to draw, from the runs of the experiment or from `space`."""
    seed: int = Field(default=0, ge=0)
    """Decides what is drawn; the same seed draws the same runs."""
    space: dict[str, Interval | list[Any]] = {}
    """Dotted path into the run -> `{low, high, scale}` or a list of choices; drawn around `base_run`."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for problem in self._misfits():
            raise problem
        return self

    def _misfits(self) -> Iterator[MisplacedValue]:
        if self.kind == "grid" and (self.space or self.n is not None):
            message = "a grid trains every run. Write kind: random to draw some, or remove this."
            yield MisplacedValue(message, "space" if self.space else "n")
        if self.kind == "random" and self.n is None:
            yield MisplacedValue("the number of runs to draw is missing. Set 'n'.")
        for path, values in self.space.items():
            if isinstance(values, list) and not values:
                yield MisplacedValue("there is nothing to choose from. Give it at least one value.", "space", path)


def space_of(fields: Mapping[str, Any]) -> Any:
    """The space of an experiment that may be raw data and wrong; falsy where it has none."""
    search = fields.get("search")
    if isinstance(search, SearchSpec):
        return search.space
    return cast("dict[str, Any]", search).get("space") if isinstance(search, dict) else None


def success_of(metadata: Metadata) -> SuccessMetric | None:
    """The success metric, however it was written."""
    metric = metadata.success_metric
    return SuccessMetric(name=metric) if isinstance(metric, str) else metric
