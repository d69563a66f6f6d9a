"""A config written as YAML is the same config when it is read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evsys_sdk import ConfigError, ExperimentConfig, dump_yaml, load_yaml
from evsys_sdk.config.load import load_document
from evsys_sdk.config.yaml_text import read_yaml

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=20)
WORD = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=20)
NAMES = st.from_regex(r"[A-Za-z0-9_@ä模][A-Za-z0-9_@ ä模.:#&*!|>'\"%-]{0,20}", fullmatch=True)
FLOATS = st.floats(allow_nan=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
PARAMS = st.dictionaries(TEXT, PLAIN, max_size=3)
POSITIVE = st.floats(0, exclude_min=True, allow_infinity=False)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A mapping with any of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


def spec(*, may_have_default: bool = False) -> st.SearchStrategy[dict[str, Any]]:
    required = {} if may_have_default else {"kind": WORD}
    return st.fixed_dictionaries(required, optional={"params": PARAMS} | ({"kind": WORD} if may_have_default else {}))


TRANSFORMS = some(transforms=st.lists(spec(), max_size=2))
SOURCES = st.one_of(
    st.fixed_dictionaries({"path": WORD}),
    st.fixed_dictionaries({"source_kind": st.just("json"), "path": WORD}),
    st.fixed_dictionaries({"source_kind": st.just("in_memory"), "rows": st.lists(PARAMS, max_size=2)}),
    st.fixed_dictionaries({"source_kind": st.just("hf_dataset"), "hf_dataset": WORD, "hf_split": TEXT}),
    st.fixed_dictionaries({"dataset_id": WORD}),
    st.fixed_dictionaries({"dataset_name": WORD}),
)
DATA = st.builds(lambda source, transforms: source | transforms, SOURCES, TRANSFORMS)
EVAL = some(
    enabled=st.booleans(),
    metrics=st.lists(spec(), max_size=2),
    inference=spec(),
    eval_data=DATA,
    n_samples=st.integers(1, 10**6),
)
MODEL = st.fixed_dictionaries({"name": WORD}, optional={"renderer_name": TEXT, "load_checkpoint_path": WORD})
STAGES = st.lists(
    st.fixed_dictionaries({"name": NAMES, "data": DATA}, optional={"eval_data": DATA, "params": PARAMS}),
    min_size=1,
    max_size=2,
    unique_by=lambda stage: stage["name"],
)


def run_config() -> st.SearchStrategy[dict[str, Any]]:
    common = {"name": NAMES, "model": MODEL, "algorithm": spec()}
    optional = {
        "backend": spec(may_have_default=True),
        "eval": EVAL,
        "seed": st.integers(0, 2**63 - 1),
        "tags": st.lists(TEXT, max_size=2),
    }
    plain = st.fixed_dictionaries({**common, "data": DATA}, optional=optional)
    continual = st.fixed_dictionaries({"stages": STAGES})
    return plain | st.fixed_dictionaries({**common, "continual": continual}, optional=optional)


BENCHMARK = st.fixed_dictionaries(
    {"name": WORD},
    optional={
        "id": WORD,
        "path": WORD,
        "split": st.sampled_from(["val", "test"]),
        "run_every": st.integers(1, 1000),
        "metrics": st.lists(TEXT, max_size=2),
        "models": st.lists(st.sampled_from(["base", "openai:gpt-4.1", "mock:tiny"]), max_size=2, unique=True),
    },
)
METADATA = some(
    hypothesis=TEXT | st.fixed_dictionaries({"claim": WORD}, optional={"min_effect": POSITIVE, "metric": TEXT}),
    success_metric=TEXT | st.fixed_dictionaries({"name": WORD, "mode": st.sampled_from(["max", "min"])}),
    tags=st.lists(TEXT, max_size=2),
    benchmark=BENCHMARK | st.lists(BENCHMARK, max_size=2, unique_by=lambda entry: entry["name"]),
    client=PLAIN,
)
TOP = some(
    version=st.just(1),
    description=TEXT,
    output_dir=TEXT,
    data_store=spec(may_have_default=True),
    log_store=spec(may_have_default=True),
    callbacks=st.lists(spec(), max_size=2),
    n_repeats=st.integers(1, 1000),
    base_seed=st.integers(0, 2**62 - 1),
    launcher=spec(),
    budget=some(usd=POSITIVE, tokens=st.integers(1), wall_s=POSITIVE, gpu_s=POSITIVE),
    parent_experiment_id=TEXT,
    metadata=METADATA,
)
RUNS = st.one_of(
    st.fixed_dictionaries({"run": run_config()}),
    st.fixed_dictionaries({"runs": st.lists(run_config(), min_size=1, max_size=2, unique_by=lambda run: run["name"])}),
)
CONFIGS = st.builds(lambda name, top, runs: {"name": name} | top | runs, NAMES, TOP, RUNS)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(CONFIGS)
def test_any_valid_config_comes_back_equal(raw: dict[str, Any]) -> None:
    config = ExperimentConfig.model_validate(raw)
    text = dump_yaml(config)
    assert load_document(read_yaml(text)) == config
    assert dump_yaml(load_document(read_yaml(text))) == text


RUN: dict[str, Any] = {
    "name": "r0",
    "data": {"path": "train.jsonl"},
    "model": {"name": "tiny"},
    "algorithm": {"kind": "sft"},
}


def with_params(params: dict[Any, Any]) -> ExperimentConfig:
    return ExperimentConfig(name="e", run=RUN | {"algorithm": {"kind": "sft", "params": params}})  # pyright: ignore[reportArgumentType]


def test_a_dump_holds_only_what_differs_from_the_defaults() -> None:
    config = ExperimentConfig.model_validate({"name": "e", "run": RUN, "n_repeats": 3, "log_store": {"kind": "jsonl"}})
    assert dump_yaml(config) == (
        "name: e\n"
        "run:\n"
        "  name: r0\n"
        "  data:\n"
        "    path: train.jsonl\n"
        "  model:\n"
        "    name: tiny\n"
        "  algorithm:\n"
        "    kind: sft\n"
        "n_repeats: 3\n"
    )


def test_a_dump_to_a_file_makes_its_folder_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.yaml"
    config = with_params({"x": 1})
    assert dump_yaml(config, path) == path.read_text("utf-8")
    assert load_yaml(str(path)) == config
    assert [file.name for file in path.parent.iterdir()] == ["config.yaml"]


def test_what_yaml_cannot_hold_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    for params in ({"x": {1: 2}}, {"x": {"1": Path("a")}}):
        with pytest.raises(ConfigError, match=r"^run\.algorithm\.params\.x\.1: "):
            dump_yaml(with_params(params), path)
    assert not path.exists()


def test_a_matrix_is_dumped_as_a_matrix_and_loads_as_its_runs() -> None:
    raw = {"name": "e", "matrix": {"axes": {"seed": [1, 2]}}, "base_run": {k: v for k, v in RUN.items() if k != "name"}}
    config = ExperimentConfig.model_validate(raw)
    assert "matrix:" in dump_yaml(config)
    assert load_document(read_yaml(dump_yaml(config))) == config.expanded()
