"""The config models: the defaults that the reference promises, and what each model accepts."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from evsys_sdk import config as models
from evsys_sdk.config import (
    AlgorithmConfig,
    BackendConfig,
    BenchmarkEntry,
    Budget,
    DataConfig,
    DataStoreSpec,
    EvalConfig,
    ExperimentConfig,
    Hypothesis,
    LogStoreSpec,
    Metadata,
    MetricSpec,
    ModelConfig,
    RunConfig,
    SuccessMetric,
)
from evsys_sdk.config.base import Strict, field_docs
from evsys_sdk.config.run import RolloutsConfig

RUN: dict[str, Any] = {
    "name": "r0",
    "data": {"path": "train.jsonl"},
    "model": {"name": "tiny"},
    "algorithm": {"kind": "sft"},
}
ALL_MODELS = [
    model
    for name in models.__all__
    if isinstance(model := getattr(models, name), type) and issubclass(model, BaseModel)
]


def experiment(**fields: Any) -> ExperimentConfig:
    return ExperimentConfig.model_validate({"name": "e", "run": RUN} | fields)


@pytest.mark.parametrize(
    ("model", "defaults"),
    [
        (
            ExperimentConfig,
            {
                "version": 1,
                "description": "",
                "output_dir": "./outputs",
                "data_store": DataStoreSpec(kind="local"),
                "log_store": LogStoreSpec(kind="jsonl"),
                "run": None,
                "runs": None,
                "matrix": None,
                "parent_experiment_id": None,
                "metadata": Metadata(),
                "callbacks": [],
                "n_repeats": 1,
                "base_seed": None,
                "until": "all",
                "looks": None,
                "max_concurrent_arms": None,
                "arm_timeout_s": None,
                "arm_retries": 0,
                "search": None,
                "launcher": None,
                "budget": None,
                "base_run": None,
            },
        ),
        (
            RunConfig,
            {
                "backend": BackendConfig(kind="tinker"),
                "eval": EvalConfig(enabled=True, metrics=[]),
                "rollouts": RolloutsConfig(share=1.0, max_mb=200.0, tokens=False),
                "seed": 42,
                "tags": [],
                "continual": None,
                "data": None,
            },
        ),
        (
            DataConfig,
            {
                "source_kind": "jsonl",
                "path": None,
                "rows": None,
                "hf_dataset": None,
                "hf_split": "train",
                "columns": {},
                "on_bad_row": "error",
                "transforms": [],
                "dataset_id": None,
                "dataset_name": None,
            },
        ),
        (ModelConfig, {"load_checkpoint_path": None, "renderer_name": None, "init_from_checkpoint": None}),
        (BackendConfig, {"kind": "tinker", "params": {}}),
        (EvalConfig, {"enabled": True, "metrics": [], "inference": None, "eval_data": None, "n_samples": None}),
        (AlgorithmConfig, {"params": {}}),
        (MetricSpec, {"params": {}}),
        (DataStoreSpec, {"kind": "local", "params": {}}),
        (LogStoreSpec, {"kind": "jsonl", "params": {}}),
        (
            Budget,
            {
                "usd": None,
                "tokens": None,
                "wall_s": None,
                "gpu_s": None,
                "per_arm": None,
                "prices": {},
                "needs_approval": False,
            },
        ),
    ],
)
def test_the_defaults_are_those_of_the_reference(model: type[BaseModel], defaults: dict[str, Any]) -> None:
    fields = model.model_fields
    assert {
        name: field.get_default(call_default_factory=True) for name, field in fields.items() if not field.is_required()
    } == defaults


@pytest.mark.parametrize(
    ("model", "required"),
    [
        (ExperimentConfig, {"name"}),
        (RunConfig, {"name", "model", "algorithm"}),
        (ModelConfig, {"name"}),
        (AlgorithmConfig, {"kind"}),
        (DataConfig, set()),
        (EvalConfig, set()),
    ],
)
def test_only_what_has_no_good_default_is_required(model: type[BaseModel], required: set[str]) -> None:
    assert {name for name, field in model.model_fields.items() if field.is_required()} == required


@pytest.mark.parametrize("model", ALL_MODELS, ids=lambda model: model.__name__)
def test_every_model_is_strict_frozen_and_documented(model: type[BaseModel]) -> None:
    assert issubclass(model, Strict)
    assert model.model_config.get("frozen")
    assert model.model_config.get("strict")
    assert model.model_config.get("extra") == ("allow" if model is Metadata else "forbid")
    assert set(model.model_fields) <= set(field_docs(model)), "write a docstring under each field"
    properties = model.model_json_schema()["properties"]
    assert all(properties[name]["description"] for name in model.model_fields)


def test_the_smallest_config_is_a_name_and_a_run() -> None:
    config = ExperimentConfig.model_validate({"name": "e", "run": RUN})
    assert [run.name for run in config.all_runs()] == ["r0"]
    assert config.expanded() is config


def test_a_config_cannot_be_changed_after_loading() -> None:
    config = experiment()
    with pytest.raises(ValidationError, match="frozen"):
        config.name = "other"  # pyright: ignore[reportAttributeAccessIssue]


def test_defaults_are_not_shared_between_configs() -> None:
    first, other = RunConfig.model_validate(RUN), RunConfig.model_validate(RUN)
    first.algorithm.params["x"] = 1
    assert other.algorithm.params == {}


def test_a_whole_number_is_a_number_but_text_is_not() -> None:
    assert experiment(budget={"usd": 5}).budget == Budget(usd=5.0)
    with pytest.raises(ValidationError, match="valid number"):
        experiment(budget={"usd": "5"})


@pytest.mark.parametrize(
    "name", ["a", "a b", "sweep__lr0p0001", "naïve", "模型", "pass@1", "x.y", "UPPER", "-dash", "x" * 200]
)
def test_a_name_may_be_anything_that_is_one_folder(name: str) -> None:
    assert experiment(name=name).name == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "a\\b", " a", "\ta", "a\nb", "a\x00b", "x" * 201, "é" * 101]
)
def test_a_name_that_cannot_be_one_folder_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        experiment(name=name)
    with pytest.raises(ValidationError):
        experiment(run=RUN | {"name": name})


def test_a_benchmark_may_be_a_mapping_or_a_list() -> None:
    entry = {"name": "val", "id": "b1"}
    for label in ({"split": "val"}, {"tags": ["test"]}):
        labelled = {**entry, **label}
        assert experiment(metadata={"benchmark": labelled}) == experiment(metadata={"benchmark": [labelled]})


def test_a_mapping_without_a_label_is_the_test_set() -> None:
    [entry] = experiment(metadata={"benchmark": {"name": "b", "id": "b1", "tags": ["big"]}}).metadata.benchmark
    assert entry.role == "test"


@pytest.mark.parametrize(
    ("entry", "role"),
    [
        ({}, None),
        ({"split": "val"}, "val"),
        ({"tags": ["val"]}, "val"),
        ({"tags": ["nightly", "test"]}, "test"),
        ({"split": "test", "tags": ["test", "big"]}, "test"),
    ],
)
def test_split_and_tags_are_two_spellings_of_the_role(entry: dict[str, Any], role: str | None) -> None:
    assert BenchmarkEntry.model_validate({"name": "b"} | entry).role == role


def test_two_tags_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValidationError, match="disagree"):
        BenchmarkEntry(name="b", tags=["val", "test"])


def test_benchmarks_may_share_a_name_when_their_roles_differ() -> None:
    entries = [{"name": "b", "split": "val"}, {"name": "b", "split": "test"}]
    assert len(experiment(metadata={"benchmark": entries}).metadata.benchmark) == 2


def test_metadata_takes_free_keys_and_keeps_them() -> None:
    config = experiment(metadata={"client": "acme", "cost_center": 7, "nested": {"a": [1]}})
    assert config.metadata.model_extra == {"client": "acme", "cost_center": 7, "nested": {"a": [1]}}


@pytest.mark.parametrize("key", ["benchmarks", "hypothesys", "Hypothesis", "sucess_metric", "success_metrics", "tag"])
def test_a_free_key_that_looks_like_a_known_one_is_refused(key: str) -> None:
    with pytest.raises(ValidationError, match="looks like"):
        experiment(metadata={key: "x"})


@pytest.mark.parametrize("key", ["budget", "client_tag", "bench", "metrics", "note", "dataset", "hypo", "stage"])
def test_a_free_separate_key_is_fine(key: str) -> None:
    assert key in (experiment(metadata={key: "x"}).metadata.model_extra or {})


def test_a_hypothesis_and_a_success_metric_may_be_a_word_or_a_mapping() -> None:
    short = experiment(metadata={"hypothesis": "more data helps", "success_metric": "pass@1"}).metadata
    assert (short.hypothesis, short.success_metric) == ("more data helps", "pass@1")
    long = experiment(
        metadata={
            "hypothesis": {"claim": "less", "direction": "decrease", "min_effect": 1, "baseline": "r0"},
            "success_metric": {"name": "loss", "mode": "min"},
        }
    ).metadata
    assert long.hypothesis == Hypothesis(claim="less", direction="decrease", min_effect=1.0, baseline="r0")
    assert long.success_metric == SuccessMetric(name="loss", mode="min")


@pytest.mark.parametrize(
    "source",
    [
        {"path": "a.jsonl"},
        {"source_kind": "json", "path": "a.json"},
        {"source_kind": "in_memory", "rows": []},
        {"source_kind": "in_memory", "rows": [{"a": 1}]},
        {"source_kind": "hf_dataset", "hf_dataset": "org/name", "hf_split": "test"},
        {"dataset_id": "d1"},
        {"dataset_name": "routing"},
        {"dataset_id": "d1", "source_kind": "json", "path": "ignored.json"},
    ],
)
def test_a_source_of_data_is_complete(source: dict[str, Any]) -> None:
    assert DataConfig.model_validate(source)


@pytest.mark.parametrize(
    "source",
    [
        {},
        {"path": ""},
        {"source_kind": "in_memory"},
        {"source_kind": "in_memory", "path": "a.jsonl", "rows": [{}]},
        {"rows": [{"a": 1}]},
        {"path": "a.jsonl", "hf_dataset": "org/name"},
        {"dataset_id": "d1", "dataset_name": "routing"},
    ],
)
def test_a_source_that_says_too_little_or_too_much_is_refused(source: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DataConfig.model_validate(source)


def test_a_continual_run_has_its_data_in_the_stages() -> None:
    stages = [{"name": "a", "data": {"path": "a.jsonl"}}, {"name": "b", "data": {"path": "b.jsonl"}}]
    run = {key: value for key, value in RUN.items() if key != "data"} | {"continual": {"stages": stages}}
    parsed = RunConfig.model_validate(run)
    assert parsed.data is None
    assert parsed.continual is not None
    assert [stage.name for stage in parsed.continual.stages] == ["a", "b"]


def test_backends_of_other_packages_are_not_ruled_out_by_the_schema() -> None:
    assert RunConfig.model_validate(RUN | {"backend": {"kind": "my_pkg/cluster"}}).backend.kind == "my_pkg/cluster"
