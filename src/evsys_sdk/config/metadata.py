"""The metadata of an experiment: hypothesis, success metric and benchmarks."""

from __future__ import annotations

from typing import Any, Literal, Self, cast

from pydantic import ConfigDict, Field, field_validator, model_validator

from ..errors import closest
from .base import MisplacedValue, Strict, StrictWithRemovedKeys
from .specs import AgentSpec, EnvironmentSpec, TransformSpec

type Split = Literal["val", "test"]
_ROLES: tuple[Split, Split] = ("val", "test")
BASE_MODEL = "base"
"""Name of the untrained model among a benchmark's baselines."""


class Hypothesis(StrictWithRemovedKeys):
    """A claim precise enough to be refuted."""

    REMOVED = {"max_cost_usd": None, "max_tokens": None}

    claim: str = Field(min_length=1)
    """The claim in one sentence."""
    metric: str | None = None
    """Metric of the claim; by default the success metric."""
    direction: Literal["increase", "decrease"] = "increase"
    """Expected change of the metric."""
    min_effect: float = Field(default=0.0, ge=0)
    """Smallest relevant difference; for a trend, from one end of the axis to the other."""
    baseline: str | None = None
    """Name of the run to compare with."""
    baseline_repeats: int | None = Field(default=None, ge=1, le=1000)
    """Seeds of the baseline, if more than `n_repeats`, because it is part of every comparison."""
    kind: Literal["better", "at_least", "not_worse", "trend"] = "better"
    """Better than the baseline, at least an absolute level, not worse than the baseline, or a trend over an axis."""
    level: float | None = None
    """For `at_least`: the level that is reached; for a decrease, the level that is not exceeded."""
    margin: float | None = Field(default=None, gt=0)
    """For `not_worse`: the non-inferiority margin."""
    axis: str | None = None
    """For `trend`: dotted path of the number that varies between the runs, e.g. `algorithm.params.max_steps`."""
    scale: Literal["linear", "log"] = "linear"
    """For `trend`: scale of the axis."""
    about: list[Literal["weights", "verifier", "agent"]] = Field(
        default_factory=list[Literal["weights", "verifier", "agent"]]
    )
    """Other differences between the compared runs that the claim is about; without this they make it invalid."""

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        needs = {"at_least": "level", "not_worse": "margin", "trend": "axis"}
        required = needs.get(self.kind)
        if required is not None and getattr(self, required) is None:
            raise MisplacedValue(f"a claim of kind '{self.kind}' needs '{required}'. Add it.", "kind")
        for kind, key in needs.items():
            if key != required and getattr(self, key) is not None:
                raise MisplacedValue(f"'{key}' belongs to claims of kind '{kind}'. Set that kind, or remove it.", key)
        if self.scale == "log" and self.kind != "trend":
            raise MisplacedValue("'scale' belongs to claims of kind 'trend'. Set that kind, or remove it.", "scale")
        if self.min_effect and self.kind in ("at_least", "not_worse"):
            message = f"a claim of kind '{self.kind}' has no 'min_effect'. Put the number into '{required}'."
            raise MisplacedValue(message, "min_effect")
        if self.baseline is not None and self.kind in ("at_least", "trend"):
            message = f"a claim of kind '{self.kind}' compares with no baseline. Remove it."
            raise MisplacedValue(message, "baseline")
        if self.baseline_repeats is not None and self.baseline is None:
            raise MisplacedValue("baseline_repeats needs the name of a run. Add 'baseline'.", "baseline_repeats")
        return self


class SuccessMetric(Strict):
    """The metric that ranks the arms."""

    name: str = Field(min_length=1)
    """Name of the metric, e.g. `pass@1`."""
    mode: Literal["max", "min"] = "max"
    """Whether a higher or a lower value is better."""


class BenchmarkEntry(Strict):
    """A set of tasks that scores the runs."""

    name: str | None = None
    """Label in the metrics; alone, it also names the benchmark, at its latest version."""
    id: str | None = None
    """Id of a benchmark in the workspace; the same id is always the same tasks."""
    path: str | None = None
    """Folder or JSONL file of tasks, for work without a workspace."""
    columns: dict[str, str] = {}
    """Column of the source -> its new name, as in `data.columns`."""
    transforms: list[TransformSpec] = []
    """Transforms that turn rows into tasks, in this order, as in `data.transforms`."""
    on_bad_row: Literal["error", "skip"] = "error"
    """Handling of unusable rows of `path`, as in `data.on_bad_row`."""
    split: Split | None = None
    """`val` scores may select, `test` scores are only reported."""
    tags: list[str] = []
    """Labels; `val` or `test` here sets `split`."""
    run_every: int | None = Field(default=None, ge=1)
    """Score the model every this many steps; by default once after training."""
    share: float = Field(default=1.0, gt=0, le=1)
    """Share of the time that scoring may take during training; with less, scores arrive later."""
    metrics: list[str] = []
    """Registered metrics to report; by default the success metric if it is registered, else `pass@1`."""
    breakdown_keys: list[str] = []
    """Metadata keys of the tasks; each value gets separate scores."""
    cluster_by: str | None = Field(default=None, min_length=1)
    """Metadata key of a task's sampling cluster, such as its document; by default `cluster`."""
    samples: int = Field(default=1, ge=1)
    """Samples per task; `pass@k` needs at least k."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature; by default 0 for one sample and 1 for several."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Token limit of an answer, per turn; by default that of a sampling recipe, else 256."""
    n_tasks: int | None = Field(default=None, ge=1)
    """Score only this many tasks, from the first."""
    agent: AgentSpec | None = None
    """Harness that drives the model; by default the one of training, else a single question and answer."""
    agent_import_path: str | None = None
    """Your own harness as `package.module:Class`, instead of `agent`."""
    environment: EnvironmentSpec | None = None
    """Environment of the agent's commands; by default that of training, else none."""
    engine: str | None = None
    """Rollout engine that runs the tasks: `inline` or `harbor`; by default that of the recipe, else
    `harbor` for its agents and environments."""
    concurrency: int = Field(default=32, ge=1)
    """Number of rollouts that run at once."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Time limit of a rollout in seconds."""
    models: list[str] = []
    """Baselines to score too: `base` for the untrained model, or `kind:model` of an inference client."""

    @model_validator(mode="before")
    @classmethod
    def _name_source(cls, value: Any) -> Any:
        """Convert `{kind: inspect, task: TASK, params: {n: 5}}` to `path: "inspect:TASK?n=5"`."""
        if not isinstance(value, dict) or "kind" not in value:
            return cast("Any", value)
        entry = cast("dict[str, Any]", value).copy()
        kind, task, params = (
            entry.pop("kind"),
            entry.pop("task", None) or entry.pop("tasks", None),
            entry.pop("params", {}),
        )
        if not task or "path" in entry:
            raise ValueError("kind goes with task, and without path. Write {kind: inspect, task: FILE.py@NAME}.")
        from urllib.parse import quote

        named = task if isinstance(task, str) else ",".join(task)
        query = "&".join(f"{key}={quote(str(value))}" for key, value in params.items())
        return {**entry, "path": f"{kind}:{named}{'?' if query else ''}{query}"}

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if not self.label:
            raise ValueError("a benchmark needs 'id', 'name' or 'path'. Add the one that says where its tasks are.")
        roles = {role for role in _ROLES if role in self.tags or role == self.split}
        if len(roles) > 1:
            raise ValueError("split and tags disagree about val and test. Keep one of the two labels.")
        if self.agent is not None and self.agent_import_path is not None:
            raise MisplacedValue("agent and agent_import_path are both set. Keep one of them.", "agent_import_path")
        for index, model in enumerate(self.models):
            if model != BASE_MODEL and not all(model.partition(":")):
                message = f"'{model}' names no model. Write `{BASE_MODEL}` or `kind:model`, e.g. `openai:gpt-4.1`."
                raise MisplacedValue(message, "models", index)
        return self

    @property
    def label(self) -> str | None:
        """The name in its metrics."""
        return self.name or self.id or self.path

    @property
    def role(self) -> Split | None:
        """`val` or `test`, from `split` or `tags`."""
        return self.split or next((role for role in _ROLES if role in self.tags), None)


class Metadata(Strict):
    """Typed keys that the SDK reads, and any other keys."""

    model_config = ConfigDict(extra="allow")

    hypothesis: str | Hypothesis | None = None
    """Why the experiment runs: a sentence, or a claim with metric, direction and smallest effect."""
    success_metric: str | SuccessMetric | None = None
    """The metric that ranks the arms: a name, or `{name, mode}` if a lower value is better."""
    tags: list[str] = []
    """Labels for filtering the record."""
    benchmark: list[BenchmarkEntry] = []
    """Benchmarks that score the runs: a list, or one mapping, which is the test set by default."""

    @field_validator("benchmark", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        entry = cast("dict[str, Any]", value)
        tags: Any = entry.get("tags")
        labelled = entry.get("split") is not None or (isinstance(tags, list) and any(role in tags for role in _ROLES))
        return [entry if labelled else {**entry, "split": "test"}]

    @model_validator(mode="after")
    def _is_unmistakable(self) -> Self:
        for key in self.model_extra or ():
            # Free keys are allowed, so only a very close match counts as a typo.
            if guess := closest(key, type(self).model_fields, cutoff=0.85):
                message = f"nothing reads the free key '{key}', and it looks like '{guess}'"
                raise MisplacedValue(f"{message}. Write '{guess}', or choose another word.", key)
        labels: set[tuple[Split | None, str | None]] = set()
        for index, entry in enumerate(self.benchmark):
            label = (entry.role, entry.label)
            if label in labels:
                message = f"two benchmarks would report their scores as '{entry.label}'. Give each its own 'name'."
                raise MisplacedValue(message, "benchmark", index)
            labels.add(label)
        return self
