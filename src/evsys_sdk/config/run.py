"""One training run: its data, model, recipe, backend and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Self, cast

from pydantic import Field, ValidationError, model_validator

from ..errors import EvsysError
from ..registry import config_model, get_algorithm
from .base import MisplacedValue, Name, Strict
from .fields import item_models_in
from .specs import AlgorithmConfig, BackendConfig, InferenceSpec, MetricSpec, TransformSpec

_SOURCE_FIELDS = {
    **dict.fromkeys(("jsonl", "json", "csv", "parquet"), "path"),
    "in_memory": "rows",
    "hf_dataset": "hf_dataset",
}
"""source_kind -> the field of its source."""


def refuse_repeated_names(names: list[str], field: str) -> None:
    """Raise at the first repeated name in a list of named blocks."""
    for index, name in enumerate(names):
        first = names.index(name)
        if first != index:
            raise MisplacedValue(f"this name is taken by {field}[{first}]. Rename one of them.", field, index, "name")


class DataConfig(Strict):
    """The source of raw rows, and the transforms that turn them into training rows."""

    source_kind: Literal["jsonl", "json", "csv", "parquet", "in_memory", "hf_dataset"] = "jsonl"
    """Loader of the rows; `jsonl` chooses by the path's extension: .jsonl .json .csv .tsv .parquet .arrow.

    Ignored when `dataset_id` or `dataset_name` is set."""
    path: str | None = None
    """File of rows, or folder of a dataset: relative to the data store's root, or absolute."""
    rows: list[dict[str, Any]] | None = None
    """The rows themselves, for `in_memory`."""
    hf_dataset: str | None = None
    """Hugging Face dataset id or local dataset folder, for `hf_dataset`."""
    hf_split: str = "train"
    """Split of the Hugging Face dataset or of the folder."""
    dataset_id: str | None = None
    """Id of a dataset in the workspace; the same id is always the same bytes."""
    dataset_name: str | None = None
    """Name of a dataset in the workspace; uses its latest version and records its id."""
    columns: dict[str, str] = {}
    """Column of the source -> its new name, e.g. {text: prompt, team: completion}."""
    on_bad_row: Literal["error", "skip"] = "error"
    """Handling of unusable rows: report all of them, or skip them and record their number."""
    transforms: list[TransformSpec] = []
    """Transforms of the raw rows, in this order."""

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if self.dataset_id and self.dataset_name:
            raise ValueError("dataset_id and dataset_name both name a dataset. Keep one of them.")
        if self.dataset_id or self.dataset_name:
            return self
        needed = _SOURCE_FIELDS[self.source_kind]
        unread = [field for field in ("path", "rows", "hf_dataset") if field != needed and getattr(self, field)]
        if unread:
            kinds = [kind for kind, field in _SOURCE_FIELDS.items() if field == unread[0]]
            message = f"source_kind '{self.source_kind}' does not read '{unread[0]}'"
            raise MisplacedValue(f"{message}. Set source_kind to {kinds[0]}, or remove the key.", unread[0])
        if getattr(self, needed) in (None, ""):
            raise ValueError(
                f"source_kind '{self.source_kind}' needs '{needed}'. Set it, "
                "or name a dataset with dataset_id or dataset_name."
            )
        return self


class ModelConfig(Strict):
    """The trained model and its initial weights."""

    name: str = Field(min_length=1)
    """Model id as the backend knows it, e.g. `Qwen/Qwen3-4B`, or a local path."""
    load_checkpoint_path: str | None = None
    """Continue from this checkpoint: weights and optimizer state."""
    init_from_checkpoint: str | None = None
    """Start from the weights of this checkpoint with a fresh optimizer."""
    renderer_name: str | None = None
    """Chat renderer, e.g. `qwen3`; by default the tokenizer's chat template.

    `chat_template+hermes` lists tools in the system message, for templates that do not show tools.
    """

    @model_validator(mode="after")
    def _has_one_start(self) -> Self:
        if self.load_checkpoint_path and self.init_from_checkpoint:
            raise ValueError(
                "load_checkpoint_path and init_from_checkpoint are both set. "
                "Keep load_checkpoint_path to continue a run, or init_from_checkpoint to start anew from its weights."
            )
        return self


class EvalConfig(Strict):
    """Scoring of a run on rows with known targets, after training."""

    enabled: bool = True
    """Whether to score at all."""
    metrics: list[MetricSpec] = []
    """Metrics to report; without any, nothing is scored."""
    inference: InferenceSpec | None = None
    """Client that queries the trained model; by default the backend's sampler."""
    eval_data: DataConfig | None = None
    """Held-out rows; without it the training rows are scored and reported as `train_fit/...`."""
    n_samples: int | None = Field(default=None, ge=1)
    """Score at most this many rows."""


class RolloutsConfig(Strict):
    """Recording of the training rollouts of recipes such as `rl`, `sdft` and `opd`.

    Every rollout is recorded with its reward. These settings limit the recorded messages, which take most space.
    """

    share: float = Field(default=1.0, ge=0, le=1)
    """Share of the groups whose messages are kept; failures and the extremes of each step are always kept."""
    max_mb: float = Field(default=200.0, ge=0)
    """File size in MB above which only the messages of failures and extremes are kept, shortened."""
    tokens: bool = False
    """Whether to record token ids and log-probabilities."""


class ContinualStage(Strict):
    """One dataset of a continual run."""

    name: Name
    """Label of the stage in metrics and in the retention matrix."""
    data: DataConfig
    """Training data of this stage."""
    eval_data: DataConfig | None = None
    """Held-out rows of this stage; it and all earlier stages are scored after each stage."""
    params: dict[str, Any] = {}
    """Overrides of `algorithm.params` for this stage."""


class ContinualConfig(Strict):
    """Train on a list of datasets in order, each stage from the last stage's weights."""

    stages: list[ContinualStage] = Field(min_length=1)
    """The datasets, in the order of training."""

    @model_validator(mode="after")
    def _stage_names_differ(self) -> Self:
        refuse_repeated_names([stage.name for stage in self.stages], "stages")
        return self


class RunStage(NamedTuple):
    """One recipe of a run with its data, and their paths in the run's config."""

    kind: str
    params: Mapping[str, Any]
    data: DataConfig | None
    """None if a third-party recipe has its own rows."""
    path: str = "algorithm"
    data_path: str = "data"
    eval_data: DataConfig | None = None
    """Held-out rows of a continual stage."""


class RunConfig(Strict):
    """One training run: data and recipe."""

    name: Name
    """Unique within the experiment; also the name of the run's folder."""
    data: DataConfig | None = None
    """Training data; required unless `continual` has the data of each stage, or a `script` loads its own."""
    model: ModelConfig
    """The model to train."""
    algorithm: AlgorithmConfig
    """The training recipe."""
    backend: BackendConfig = Field(default_factory=BackendConfig.model_construct)
    """The training backend."""
    eval: EvalConfig = Field(default_factory=EvalConfig.model_construct)
    """Scoring after training."""
    rollouts: RolloutsConfig = Field(default_factory=RolloutsConfig.model_construct)
    """Recording of training rollouts."""
    continual: ContinualConfig | None = None
    """Train on several datasets in order instead of one."""
    seed: int = Field(default=42, ge=0, lt=2**63)
    """Seed of data order, adapter initialisation, sampling and dropout."""
    tags: list[str] = []
    """Labels for filtering the record."""

    @model_validator(mode="after")
    def _has_data(self) -> Self:
        if self.data is None and self.continual is None and self.algorithm.kind != "script":
            raise ValueError(
                "a run needs 'data' (what to train on) or 'continual' (several datasets in order). Add one."
            )
        if self.data is not None and self.continual is not None:
            raise ValueError(
                "'data' and 'continual' are both set. Put each dataset into continual.stages, or drop 'continual'."
            )
        return self

    def stages(self) -> list[RunStage]:
        """The recipes of the run in order: the stages of `continual`, the recipes in its params, or the only one."""
        kind, params = self.algorithm.kind, self.algorithm.params
        if self.continual is not None:
            return [
                RunStage(
                    kind,
                    {**params, **stage.params},
                    stage.data,
                    f"continual.stages[{index}]" if stage.params else "algorithm",
                    f"continual.stages[{index}].data",
                    stage.eval_data,
                )
                for index, stage in enumerate(self.continual.stages)
            ]
        field, phases = self._phases()
        return [
            self._phase_stage(phase, f"algorithm.params.{field}[{index}]") for index, phase in enumerate(phases)
        ] or [RunStage(kind, params, self.data)]

    def with_params(self, change: Callable[[str], Mapping[str, Any]]) -> RunConfig:
        """The run with changed params in each of its recipes; `change` maps the kind of a recipe to new params."""
        algorithm, (field, phases) = self.algorithm, self._phases()
        if phases:
            raw = cast("list[Mapping[str, Any]]", algorithm.params[field])
            changed = [
                {**dict(raw_phase), "params": {**phase.params, **change(phase.kind)}}
                for raw_phase, phase in zip(raw, phases, strict=True)
            ]
            new = {**algorithm.params, field: changed}
        else:
            new = {**algorithm.params, **change(algorithm.kind)}
        update: dict[str, Any] = {"algorithm": algorithm.model_copy(update={"params": new})}
        if self.continual is not None:
            stages = [
                stage.model_copy(update={"params": {**stage.params, **change(algorithm.kind)}})
                for stage in self.continual.stages
            ]
            update["continual"] = self.continual.model_copy(update={"stages": stages})
        return self.model_copy(update=update)

    def _phase_stage(self, phase: AlgorithmConfig, path: str) -> RunStage:
        phase_data = getattr(phase, "data", None)
        data = phase_data if isinstance(phase_data, DataConfig) else None
        return RunStage(phase.kind, phase.params, data or self.data, path, f"{path}.data" if data else "data")

    def _phases(self) -> tuple[str, list[AlgorithmConfig]]:
        """The param that lists recipes, as in `combo`, and these recipes; empty without one."""
        try:
            model: Any = config_model(get_algorithm(self.algorithm.kind))
            fields: dict[str, Any] = getattr(model, "model_fields", {})
            for name, field in fields.items():
                items = self.algorithm.params.get(name)
                kinds = [model for model in item_models_in(field.annotation) if issubclass(model, AlgorithmConfig)]
                if kinds and isinstance(items, list):
                    return name, [kinds[0].model_validate(item) for item in cast("list[Any]", items)]
        except (EvsysError, ValidationError):  # validation reports them
            pass
        return "", []
