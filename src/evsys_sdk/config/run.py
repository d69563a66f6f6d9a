"""One training run: its data, model, recipe, backend and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, cast

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
"""source_kind -> the field that says where the rows are."""


def refuse_repeated_names(names: list[str], field: str) -> None:
    """Raise at the first name in a list of named blocks that an earlier one has."""
    for index, name in enumerate(names):
        first = names.index(name)
        if first != index:
            raise MisplacedValue(f"this name is taken by {field}[{first}]. Rename one of them.", field, index, "name")


class DataConfig(Strict):
    """Where raw rows come from, and the transforms that turn them into training rows."""

    source_kind: Literal["jsonl", "json", "csv", "parquet", "in_memory", "hf_dataset"] = "jsonl"
    """Which loader reads the rows; `jsonl` stands for the ending of the path: .jsonl .json .csv .tsv .parquet .arrow.

    Ignored when `dataset_id` or `dataset_name` is set."""
    path: str | None = None
    """File of rows, or folder of a dataset: relative to the data store's root, or absolute."""
    rows: list[dict[str, Any]] | None = None
    """The rows themselves, for `in_memory`."""
    hf_dataset: str | None = None
    """Hugging Face dataset id or local dataset folder, for `hf_dataset`."""
    hf_split: str = "train"
    """Which split of the Hugging Face dataset, or of the folder, to read."""
    dataset_id: str | None = None
    """Id of a dataset in the workspace; the same id is always the same bytes."""
    dataset_name: str | None = None
    """Name of a dataset in the workspace; resolves to its latest version, whose id is recorded."""
    columns: dict[str, str] = {}
    """Column of the source -> the name it has from there on, e.g. {text: prompt, team: completion}."""
    on_bad_row: Literal["error", "skip"] = "error"
    """What to do with rows that cannot be used: report all of them, or leave them out and record how many."""
    transforms: list[TransformSpec] = []
    """Applied to the raw rows in this order."""

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
    """Which model is trained, and from where it starts."""

    name: str = Field(min_length=1)
    """Model id as the backend knows it, e.g. `Qwen/Qwen3-4B`, or a local path."""
    load_checkpoint_path: str | None = None
    """Continue from this checkpoint: weights and optimizer state."""
    init_from_checkpoint: str | None = None
    """Start from the weights of this checkpoint with a fresh optimizer."""
    renderer_name: str | None = None
    """Chat renderer, e.g. `qwen3`; without it the tokenizer's own chat template is used.

    `chat_template+hermes` is that template with tools listed in the system message, where it shows none itself.
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
    """Scoring of one run on rows with known targets, after training."""

    enabled: bool = True
    """Whether to score at all."""
    metrics: list[MetricSpec] = []
    """What to report; nothing is scored when this is empty."""
    inference: InferenceSpec | None = None
    """How to query the trained model; by default the backend's own sampler."""
    eval_data: DataConfig | None = None
    """Held-out rows; without it the training rows are scored and reported as `train_fit/...`."""
    n_samples: int | None = Field(default=None, ge=1)
    """Score at most this many rows."""


class RolloutsConfig(Strict):
    """What is kept of the attempts that recipes such as `rl`, `sdft` and `opd` learn from.

    Every attempt is recorded with its reward. These settings are about its conversation, which takes the room.
    """

    share: float = Field(default=1.0, ge=0, le=1)
    """Share of the groups whose conversations are kept; failures and the extremes of each step always are."""
    max_mb: float = Field(default=200.0, ge=0)
    """Once the file is this large, only the conversations of failures and extremes are kept, shortened."""
    tokens: bool = False
    """Whether to keep token ids and log-probabilities too."""


class ContinualStage(Strict):
    """One dataset of a continual run."""

    name: Name
    """Label of the stage in metrics and in the retention matrix."""
    data: DataConfig
    """What this stage trains on."""
    eval_data: DataConfig | None = None
    """Held-out rows of this stage; it and all earlier stages are scored after each stage."""
    params: dict[str, Any] = {}
    """Overrides of `algorithm.params` for this stage."""


class ContinualConfig(Strict):
    """Train across an ordered list of datasets, each stage from the last one's weights."""

    stages: list[ContinualStage] = Field(min_length=1)
    """The datasets, in the order they are learned."""

    @model_validator(mode="after")
    def _stage_names_differ(self) -> Self:
        refuse_repeated_names([stage.name for stage in self.stages], "stages")
        return self


@dataclass(frozen=True, slots=True)
class RunStage:
    """One recipe of a run, the rows it trains on, and where the run's config names both."""

    kind: str
    params: Mapping[str, Any]
    data: DataConfig | None
    """None where the recipe of a third party brings its own rows."""
    path: str = "algorithm"
    data_path: str = "data"
    eval_data: DataConfig | None = None
    """Held-out rows of a continual stage."""


class RunConfig(Strict):
    """One training run: a choice of data and a choice of recipe."""

    name: Name
    """Unique within the experiment; also the name of the run's folder."""
    data: DataConfig | None = None
    """What to train on; required unless `continual` gives the data of each stage, or a `script` brings its own."""
    model: ModelConfig
    """Which model to train."""
    algorithm: AlgorithmConfig
    """How to train it."""
    backend: BackendConfig = Field(default_factory=BackendConfig)
    """Where to train it."""
    eval: EvalConfig = Field(default_factory=EvalConfig)
    """How to score it."""
    rollouts: RolloutsConfig = Field(default_factory=RolloutsConfig)
    """What to keep of the attempts it learns from."""
    continual: ContinualConfig | None = None
    """Train on several datasets in order instead of one."""
    seed: int = Field(default=42, ge=0, lt=2**63)
    """Drives data order, adapter initialisation, sampling and dropout."""
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
        """Every recipe of the run in order: the stages of `continual`, the recipes in its params, or the only one."""
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
        """The run with changed params in each of its recipes; `change` maps the kind of a recipe to its new params."""
        algorithm, (field, phases) = self.algorithm, self._phases()
        if phases:
            raw = cast("list[Mapping[str, Any]]", algorithm.params[field])
            changed = [
                {**dict(one), "params": {**phase.params, **change(phase.kind)}}
                for one, phase in zip(raw, phases, strict=True)
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
        own = getattr(phase, "data", None)
        data = own if isinstance(own, DataConfig) else None
        return RunStage(phase.kind, phase.params, data or self.data, path, f"{path}.data" if data else "data")

    def _phases(self) -> tuple[str, list[AlgorithmConfig]]:
        """The recipes that the algorithm's params list, as those of `combo` do, and the param that lists them."""
        try:
            model: Any = config_model(get_algorithm(self.algorithm.kind))
            fields: dict[str, Any] = getattr(model, "model_fields", {})
            for name, field in fields.items():
                items = self.algorithm.params.get(name)
                kinds = [one for one in item_models_in(field.annotation) if issubclass(one, AlgorithmConfig)]
                if kinds and isinstance(items, list):
                    return name, [kinds[0].model_validate(item) for item in cast("list[Any]", items)]
        except (EvsysError, ValidationError):  # validation reports them
            pass
        return "", []
