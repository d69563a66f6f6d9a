"""The root of the YAML file: one experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from .base import MisplacedValue, Name, Strict
from .matrix import MatrixSpec, expand_matrix
from .metadata import Hypothesis, Metadata
from .prices import Price
from .run import RunConfig, refuse_repeated_names
from .search import SearchSpec, space_of
from .specs import CallbackSpec, DataStoreSpec, LauncherSpec, LogStoreSpec

_FEWEST_SEEDS, _MOST_LOOKS = 3, 5  # an interval needs two seeds, and early stopping must save at least one


def source_problem(fields: Mapping[str, Any]) -> MisplacedValue | None:
    """The problem of the choice between `run`, `runs` and `matrix`; None without one."""
    present = [field for field in ("run", "runs", "matrix") if fields.get(field) is not None]
    if space_of(fields):
        return _space_problem(fields, present)
    if fields.get("base_run") is not None and "matrix" not in present:
        remedy = "Remove it." if present else "Add 'matrix' with its axes, or rename 'base_run' to 'run'."
        return MisplacedValue(f"'base_run' needs a matrix, and there is none. {remedy}", "base_run")
    if not present:
        return MisplacedValue("the experiment has no runs. Add 'run', 'runs' or 'matrix'.")
    if len(present) > 1:
        message = f"set exactly one of 'run', 'runs' and 'matrix'; found {' and '.join(present)}. Keep one of them."
        return MisplacedValue(message, present[-1])
    return None


def _space_problem(fields: Mapping[str, Any], present: list[str]) -> MisplacedValue | None:
    """The problem of runs next to a search space, which needs `base_run` only."""
    if "matrix" in present:
        remedy = "Move its axes into search.space, where a list holds choices, and keep 'base_run'."
        return MisplacedValue(f"'matrix' and search.space both say which runs there are. {remedy}", "matrix")
    if present:
        remedy = "Rename it to 'base_run'." if present == ["run"] else "Write what they share as 'base_run'."
        return MisplacedValue(f"search.space makes runs from 'base_run', not from '{present[0]}'. {remedy}", present[0])
    if fields.get("base_run") is None:
        return MisplacedValue("search.space needs a run to vary. Add 'base_run' with what all runs share.", "search")
    return None


class Limits(Strict):
    """Limits on the spend; the first one that is reached applies."""

    usd: float | None = Field(default=None, gt=0)
    """US dollars, by the price table."""
    tokens: int | None = Field(default=None, gt=0)
    """Trained plus sampled tokens."""
    wall_s: float | None = Field(default=None, gt=0)
    """Seconds of wall-clock time; the time between a stop and `--resume` does not count."""
    gpu_s: float | None = Field(default=None, gt=0)
    """Seconds of GPU time on this machine's own GPUs."""


class Budget(Limits):
    """Limits that stop an experiment after the step that reaches them, with a checkpoint."""

    per_arm: Limits | None = None
    """Limits of each arm; an arm that reaches one stops, and the others continue."""
    prices: dict[str, Price | list[Price]] = {}
    """Name of a model, or kind of backend or inference client -> its price, which replaces the built-in one."""
    needs_approval: bool = False
    """Whether a person must approve the experiment before it starts: `evsys approve`, or on a dashboard."""


def plan_looks(seeds: int) -> list[int]:
    """The numbers of seeds at which interim analyses run: from a third of the seeds, five times at most."""
    first = max(2, -(-seeds // 3))  # a third, rounded up; an interval needs two
    n_looks = min(_MOST_LOOKS, seeds - first + 1)
    return [first + (seeds - first) * at // max(n_looks - 1, 1) for at in range(n_looks)]


class ExperimentConfig(Strict):
    """One experiment: hypothesis, data, recipe and evaluation. Set exactly one of `run`, `runs` and `matrix`."""

    version: int = 1
    """Version of this schema; another version gives a warning only."""
    name: Name
    """Name of the experiment; also the name of its folder below `output_dir`."""
    description: str = ""
    """Free text for readers."""
    output_dir: str = "./outputs"
    """Folder for the record of the experiment."""
    data_store: DataStoreSpec = Field(default_factory=DataStoreSpec.model_construct)
    """Where data files are read from."""
    log_store: LogStoreSpec = Field(default_factory=LogStoreSpec.model_construct)
    """Where metrics go."""
    callbacks: list[CallbackSpec] = []
    """Observers of training: progress, loggers, early stopping."""
    run: RunConfig | None = None
    """A single run."""
    runs: list[RunConfig] | None = Field(default=None, min_length=1)
    """Several runs, written out."""
    matrix: MatrixSpec | None = None
    """Several runs, as the product of some axes; expanded into `runs` when the file is loaded."""
    base_run: dict[str, Any] | None = None
    """Settings that all runs of a matrix or of `search.space` share; also allowed inside `matrix`."""
    search: SearchSpec | None = None
    """Which of the runs are trained; by default all of them."""
    n_repeats: int = Field(default=1, ge=1, le=1000)
    """Number of seeds of each run; with `until: decided`, at most."""
    until: Literal["all", "decided"] = "all"
    """`decided`: run an interim analysis after each of `looks`, and stop when the claim is decided or futile."""
    looks: list[int] | None = Field(default=None, min_length=1)
    """With `until: decided`: numbers of seeds per run after which the claim is tested; by default up to five."""
    base_seed: int | None = Field(default=None, ge=0, lt=2**62)  # repeats are added, and a seed stays below 2**63
    """First seed of the repeats; by default each run's own `seed`."""
    max_concurrent_arms: int | None = Field(default=None, ge=1)
    """Number of arms that run at the same time; by default one, or the capacity of the `launcher`."""
    arm_timeout_s: float | None = Field(default=None, gt=0)
    """Time limit of an arm; it stops with a checkpoint before that, or is killed. Other arms continue."""
    arm_retries: int = Field(default=0, ge=0, le=100)
    """How often an arm that failed for a reason outside of its config is resumed from its last checkpoint."""
    launcher: LauncherSpec | None = None
    """Where the arms are executed; by default on this machine."""
    budget: Budget | None = None
    """Limits on the spend; see `evsys plan` for an estimate."""
    parent_experiment_id: str | None = None
    """Id of the experiment that this one was derived from."""
    metadata: Metadata = Field(default_factory=Metadata.model_construct)
    """Hypothesis, success metric, benchmarks, tags, and free-form keys."""

    @model_validator(mode="after")
    def _has_exactly_one_source_of_runs(self) -> Self:
        if problem := source_problem(vars(self)):
            raise problem
        refuse_repeated_names([run.name for run in self.runs or ()], "runs")
        for problem in self._until_problems():  # a validator can raise one only
            raise problem
        return self

    def _until_problems(self) -> Iterator[MisplacedValue]:
        """The problems of `until` and `looks`."""
        claim = self.metadata.hypothesis
        if self.until == "all":
            if self.looks is not None:
                yield MisplacedValue("only `until: decided` looks before the end. Set it, or remove 'looks'.", "looks")
            return
        if claim is None:
            yield MisplacedValue("there is no claim to decide. Add metadata.hypothesis, or remove 'until'.", "until")
        if self.search is not None:
            yield MisplacedValue("a search decides about arms itself. Remove 'until', or the search.", "until")
        if self.n_repeats < _FEWEST_SEEDS:
            message = f"stopping early needs seeds that can be saved. Set n_repeats to {_FEWEST_SEEDS} or more."
            yield MisplacedValue(message, "n_repeats")
        if isinstance(claim, Hypothesis) and claim.baseline_repeats is not None:
            message = "with `until: decided` all runs have the same number of seeds at each look. Remove it."
            yield MisplacedValue(message, "metadata", "hypothesis", "baseline_repeats")
        looks = self.looks or [2, self.n_repeats]
        if looks[0] < 2 or looks[-1] != self.n_repeats or sorted(set(looks)) != looks:
            message = f"looks grow from 2 seeds or more to n_repeats, which is {self.n_repeats}"
            yield MisplacedValue(f"{message}. Write e.g. looks: {plan_looks(self.n_repeats)}.", "looks")

    @property
    def planned_looks(self) -> list[int]:
        """Numbers of seeds at which the claim is tested; empty if it is tested only at the end."""
        return [] if self.until == "all" else self.looks or plan_looks(self.n_repeats)

    def expanded(self) -> ExperimentConfig:
        """The experiment with its matrix or search space expanded into `runs`, reduced to the drawn ones."""
        if self.search is not None and self.search.space:
            from .space import sample_space

            cells = sample_space(self.search, self.base_run or {}, experiment=self.name).cells
        elif self.matrix is not None:
            cells = expand_matrix(self.matrix, shared_base=self.base_run, experiment=self.name)
        else:
            return self._only_drawn()
        return self.with_runs([RunConfig.model_validate(cell) for cell in cells])

    def with_runs(self, runs: list[RunConfig]) -> ExperimentConfig:
        """The experiment with these runs instead of its run, matrix or search space."""
        # Without the space, so that runs are not drawn a second time.
        search = self.search and self.search.model_copy(update={"space": {}})
        changed = {"run": None, "runs": runs, "matrix": None, "base_run": None, "search": search}
        return self.model_copy(update=changed)._only_drawn()

    def _only_drawn(self) -> ExperimentConfig:
        if self.search is None or self.search.n is None or self.runs is None:
            return self
        from .space import draw

        runs = draw(self.runs, self.search.n, self.search.seed)
        return self if len(runs) == len(self.runs) else self.model_copy(update={"runs": runs})

    def all_runs(self) -> list[RunConfig]:
        """Every run of the experiment, with a matrix or search space expanded."""
        return [self.run] if self.run is not None else list(self.expanded().runs or ())
