"""What an experiment says about itself: why it runs, how success is measured, and on which benchmarks."""

from __future__ import annotations

from typing import Any, Literal, Self, cast

from pydantic import ConfigDict, Field, field_validator, model_validator

from ..errors import closest
from .base import MisplacedValue, Strict
from .specs import AgentSpec, EnvironmentSpec, TransformSpec

type Split = Literal["val", "test"]
_ROLES: tuple[Split, Split] = ("val", "test")
BASE_MODEL = "base"
"""How the model before training is called among a benchmark's baselines."""


class Hypothesis(Strict):
    """A claim precise enough to be refuted."""

    claim: str = Field(min_length=1)
    """The claim in one sentence."""
    metric: str | None = None
    """Metric it is about; by default the success metric."""
    direction: Literal["increase", "decrease"] = "increase"
    """Which way the metric should move."""
    min_effect: float = Field(default=0.0, ge=0)
    """Smallest difference that would matter; for a trend, from one end of the axis to the other."""
    baseline: str | None = None
    """Name of the run it is compared with."""
    baseline_repeats: int | None = Field(default=None, ge=1, le=1000)
    """Seeds of the baseline, where it gets more than the `n_repeats` of the other runs: it is in every comparison."""
    kind: Literal["better", "at_least", "not_worse", "trend"] = "better"
    """Better than the baseline, at least an absolute level, not worse than the baseline, or a trend over an axis."""
    level: float | None = None
    """For `at_least`: the level that is reached; for a decrease, the level that is not exceeded."""
    margin: float | None = Field(default=None, gt=0)
    """For `not_worse`: by how much it may be worse without that mattering."""
    axis: str | None = None
    """For `trend`: dotted path of the number that varies between the runs, e.g. `algorithm.params.max_steps`."""
    scale: Literal["linear", "log"] = "linear"
    """For `trend`: whether equal steps of the axis are equal differences or equal ratios."""
    about: list[Literal["weights", "verifier", "agent"]] = Field(
        default_factory=list[Literal["weights", "verifier", "agent"]]
    )
    """What else may differ between the compared runs because the claim is about it; otherwise that makes it invalid."""
    max_cost_usd: float | None = Field(default=None, gt=0)
    """What an arm of the run may cost, in dollars; a run that costs more does not fulfil the claim."""
    max_tokens: int | None = Field(default=None, ge=1)
    """How many tokens an arm of the run may train on and sample."""

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        needs = {"at_least": "level", "not_worse": "margin", "trend": "axis"}
        wanted = needs.get(self.kind)
        if wanted is not None and getattr(self, wanted) is None:
            raise MisplacedValue(f"a claim of kind '{self.kind}' needs '{wanted}'. Add it.", "kind")
        for kind, key in needs.items():
            if key != wanted and getattr(self, key) is not None:
                raise MisplacedValue(f"'{key}' belongs to claims of kind '{kind}'. Set that kind, or remove it.", key)
        if self.scale == "log" and self.kind != "trend":
            raise MisplacedValue("'scale' belongs to claims of kind 'trend'. Set that kind, or remove it.", "scale")
        if self.min_effect and self.kind in ("at_least", "not_worse"):
            message = f"a claim of kind '{self.kind}' has no 'min_effect'. Put the number into '{wanted}'."
            raise MisplacedValue(message, "min_effect")
        if self.baseline is not None and self.kind in ("at_least", "trend"):
            message = f"a claim of kind '{self.kind}' compares with no baseline. Remove it."
            raise MisplacedValue(message, "baseline")
        if self.baseline_repeats is not None and self.baseline is None:
            raise MisplacedValue("baseline_repeats needs the name of a run. Add 'baseline'.", "baseline_repeats")
        if self.kind == "trend" and (self.max_cost_usd is not None or self.max_tokens is not None):
            key = "max_cost_usd" if self.max_cost_usd is not None else "max_tokens"
            raise MisplacedValue("a trend is about all runs, so that no cost limit applies. Remove it.", key)
        return self


class SuccessMetric(Strict):
    """The metric that decides which arm is best."""

    name: str = Field(min_length=1)
    """Name of the metric, e.g. `pass@1`."""
    mode: Literal["max", "min"] = "max"
    """Whether more or less of it is better."""


class BenchmarkEntry(Strict):
    """One set of tasks that runs are scored on."""

    name: str | None = None
    """Label in the metrics; alone, it also names the benchmark, at its latest version."""
    id: str | None = None
    """Id of a benchmark in the workspace; the same id is always the same tasks."""
    path: str | None = None
    """Folder or JSONL file of tasks, for work without a workspace."""
    columns: dict[str, str] = {}
    """Column of the source -> the name it has from there on, as in `data.columns`."""
    transforms: list[TransformSpec] = []
    """Make the tasks out of other rows, applied in this order, as in `data.transforms`."""
    split: Split | None = None
    """Label that separates metrics: `val` scores may select, `test` scores only report."""
    tags: list[str] = []
    """Labels; `val` or `test` here is another spelling of `split`."""
    run_every: int | None = Field(default=None, ge=1)
    """Score the live model every this many steps; without it, once after training."""
    share: float = Field(default=1.0, gt=0, le=1)
    """Share of the time that scoring may take while training continues; with less, scores come later."""
    metrics: list[str] = []
    """Which registered metrics to report; by default the success metric if it is one, else `pass@1`."""
    breakdown_keys: list[str] = []
    """Metadata keys of the tasks to report separate scores for."""
    cluster_by: str | None = Field(default=None, min_length=1)
    """Metadata key of the group that a task was drawn with, such as its document; by default `cluster`."""
    samples: int = Field(default=1, ge=1)
    """Attempts at each task; `pass@k` needs at least k."""
    temperature: float | None = Field(default=None, ge=0)
    """Of sampling; by default 0 for a single attempt and 1 for several."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest answer, per turn; by default that of the recipe where it samples, else 256."""
    n_tasks: int | None = Field(default=None, ge=1)
    """Score only the first this many tasks."""
    agent: AgentSpec | None = None
    """Harness that drives the model; by default the one it was trained in, else a single question and answer."""
    agent_import_path: str | None = None
    """A harness of your own as `package.module:Class`, instead of `agent`."""
    environment: EnvironmentSpec | None = None
    """Where the agent's commands run; by default where the model was trained, else nowhere."""
    engine: str | None = None
    """Rollout engine that runs the tasks: `inline` or `harbor`; by default that of the recipe, else
    `harbor` for its agents and environments."""
    concurrency: int = Field(default=32, ge=1)
    """How many attempts may run at once."""
    timeout_s: float = Field(default=600.0, gt=0)
    """How long one attempt may take."""
    models: list[str] = []
    """Baselines to score too: `base` for the model before training, or `kind:model` of an inference client."""

    @model_validator(mode="before")
    @classmethod
    def _name_source(cls, value: Any) -> Any:
        """`{kind: inspect, task: TASK, params: {n: 5}}` is another spelling of `path: "inspect:TASK?n=5"`."""
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
        query = "&".join(f"{key}={quote(str(one))}" for key, one in params.items())
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
        """What its metrics are called after."""
        return self.name or self.id or self.path

    @property
    def role(self) -> Split | None:
        """`val` or `test`, however it was spelled."""
        return self.split or next((role for role in _ROLES if role in self.tags), None)


class Metadata(Strict):
    """Typed keys the SDK reads, and any other key you like."""

    model_config = ConfigDict(extra="allow")

    hypothesis: str | Hypothesis | None = None
    """Why the experiment runs: a sentence, or a claim with metric, direction and smallest effect."""
    success_metric: str | SuccessMetric | None = None
    """Which metric decides; a name, or `{name, mode}` where less is better."""
    tags: list[str] = []
    """Labels for filtering the record."""
    benchmark: list[BenchmarkEntry] = []
    """What runs are scored on: a list, or one mapping, which is the test set unless it is labelled otherwise."""

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
            # Stricter than elsewhere: keys are free here, and one's own word is refused only where it is surely a slip.
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
