"""`search`: which runs of an experiment are tried, and how far each of them is trained.

Without it every run is trained in full. What a search decides, and why, is written to the journal of the experiment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, model_validator

from .base import MisplacedValue, Strict
from .metadata import BenchmarkEntry, Metadata, SuccessMetric

_ETA = 1.5
_FINALISTS = 2


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


class SearchSpec(Strict):
    """How the runs of an experiment share its work."""

    kind: Literal["grid", "random", "halving"] = "grid"
    """`grid` trains every run, `random` a few of them, `halving` all of them a little and the best ones to the end."""
    n: int | None = Field(default=None, ge=1, le=100_000)
    """How many runs to draw, from the runs of the experiment or from `space`."""
    seed: int = Field(default=0, ge=0)
    """Decides what is drawn; the same seed draws the same runs."""
    space: dict[str, Interval | list[Any]] = {}
    """Dotted path into the run -> `{low, high, scale}` or a list of choices; drawn around `base_run`."""
    eta: float = Field(default=_ETA, ge=1.1, le=100)
    """Halving: one in `eta` runs continues after each comparison. 3 is cheap; 1.5 seldom drops the best."""
    rungs: list[Annotated[float, Field(gt=0, lt=1)]] | None = Field(default=None, min_length=1)
    """Halving: when to compare, as shares of a run's own length; by default as many powers of 1/eta as are needed."""
    finalists: int = Field(default=_FINALISTS, ge=1)
    """Halving: how many runs are trained to the end; with two, the winner has somebody to be compared with."""
    metric: str | None = None
    """Val metric to compare by, e.g. `pass@1` or `val/tools/pass@1`; by default the success metric."""
    mode: Literal["max", "min"] | None = None
    """Whether more or less of it is better; by default as the success metric says, else `max`."""

    race: dict[str, Any] | None = Field(default=None, repr=False)
    """Removed; only experiments that an earlier version has begun may have it, and it does nothing."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for problem in self._misfits():
            raise problem
        return self

    def _misfits(self) -> Iterator[MisplacedValue]:
        if self.kind == "grid" and (self.space or self.n is not None):
            message = "a grid tries every run there is. Write kind: random or kind: halving to draw some"
            yield MisplacedValue(f"{message}, or remove this.", "space" if self.space else "n")
        if self.n is None and (self.space or self.kind == "random"):
            yield MisplacedValue("the number of runs to draw is missing. Set 'n'.")
        given = {"rungs": self.rungs is not None, "eta": self.eta != _ETA, "finalists": self.finalists != _FINALISTS}
        if self.kind != "halving" and any(given.values()):
            where = next(field for field, is_given in given.items() if is_given)
            yield MisplacedValue(
                f"only halving compares runs on the way. Write kind: halving, or remove '{where}'.", where
            )
        if self.rungs is not None and sorted(set(self.rungs)) != self.rungs:
            yield MisplacedValue("each comparison must come later than the one before. Sort them.", "rungs")
        for path, values in self.space.items():
            if isinstance(values, list) and not values:
                yield MisplacedValue("there is nothing to choose from. Give it at least one value.", "space", path)
        if self.kind != "halving" and (self.metric is not None or self.mode is not None):
            where = "mode" if self.metric is None else "metric"
            yield MisplacedValue(f"nothing is compared here. Write kind: halving, or remove '{where}'.", where)


def space_of(fields: Mapping[str, Any]) -> Any:
    """The space of an experiment that may be raw data and wrong; falsy where it has none."""
    search = fields.get("search")
    if isinstance(search, SearchSpec):
        return search.space
    return cast("dict[str, Any]", search).get("space") if isinstance(search, dict) else None


def val_metrics(metadata: Metadata) -> Iterator[tuple[BenchmarkEntry, str]]:
    """Entry and name of every metric that may choose among runs while they are trained."""
    success = success_of(metadata)
    for entry in metadata.benchmark:
        if entry.role == "val" and entry.run_every is not None:
            names = entry.metrics or ([success.name] if success else []) or ["pass@1"]
            yield from ((entry, name) for name in names)


def success_of(metadata: Metadata) -> SuccessMetric | None:
    """The success metric, however it was written."""
    given = metadata.success_metric
    return SuccessMetric(name=given) if isinstance(given, str) else given


def full_names(entry: BenchmarkEntry, metric: str) -> tuple[str, str]:
    """How a metric of a val entry may be called: plainly, and as it is logged."""
    label = entry.label
    return metric, f"val/{metric}" if label in ("", "val") else f"val/{label}/{metric}"


def search_problem(search: SearchSpec | None, metadata: Metadata, n_repeats: int) -> MisplacedValue | None:
    """Why a halving has nothing to go by; None where it has."""
    if search is None or search.kind != "halving":
        return None
    if n_repeats > 1:
        message = "halving compares runs by one seed each, and then trains a few to the end"
        return MisplacedValue(f"{message}. Remove n_repeats.", "n_repeats")
    found = list(val_metrics(metadata))
    if not found:
        message = "halving compares runs while they train, for which there is nothing to score"
        return MisplacedValue(
            f"{message}. Add a benchmark with split: val and run_every to metadata.benchmark.", "search"
        )
    if search.metric is not None and all(search.metric not in full_names(entry, name) for entry, name in found):
        known = ", ".join(dict.fromkeys(full_names(entry, name)[1] for entry, name in found))
        message = "no val benchmark with run_every has this metric"
        return MisplacedValue(f"{message}. Use one of {known}, or add it to the metrics of one.", "search", "metric")
    return None
