"""Children of a config: legal, different, the same for the same seed, and honest about what was changed."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from evsys_sdk import ConfigError, load_yaml, register_algorithm, validate_yaml
from evsys_sdk.config.yaml_text import read_yaml
from evsys_sdk.experiment import Experiment
from evsys_sdk.experiment.mutation import Child, MutableField, mutation_space, propose, propose_from_file
from evsys_sdk.experiment.mutation.propose import move
from evsys_sdk.record.events import Journal, Kind

from ..test_examples import CODE, NEEDS_MORE

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(
    path.relative_to(ROOT)
    for path in (ROOT / "examples").glob("*/config.yaml")
    if path.parent.name not in (*NEEDS_MORE, "23_own_loop")  # a loop of one's own has no schema of what may change
)

BASE = """\
name: parent
output_dir: {out}
run:
  name: r
  data: {{ source_kind: in_memory, rows: [{{ text: x }}], transforms: [{{ kind: sample, params: {{ n: 5 }} }}] }}
  model: {{ name: tiny }}  # a small one
  algorithm:
    kind: sft
    params:
      learning_rate: 0.01 # the peak
      num_epochs: 4
  backend: {{ kind: mock }}
"""


@pytest.fixture
def base(tmp_path: Path) -> str:
    return BASE.format(out=tmp_path / "outputs")


@pytest.fixture
def load_code(examples: Path) -> Callable[[Path], None]:
    def load(config: Path) -> None:
        if file := CODE.get(config.parent.name):
            code = examples / config.parent.name / file
            spec = importlib.util.spec_from_file_location(f"mutated_{code.stem}", code)
            assert spec is not None
            assert spec.loader is not None
            spec.loader.exec_module(importlib.util.module_from_spec(spec))

    return load


def field_named(text: str, name: str) -> MutableField:
    data = read_yaml(text).data
    return {field.name: field for field in mutation_space(data, ("run",))}[name]


@pytest.mark.slow
@pytest.mark.parametrize("config", EXAMPLES, ids=[path.parent.name for path in EXAMPLES])
def test_two_hundred_children_of_the_examples_are_valid_and_different(
    config: Path, load_code: Callable[[Path], None], tmp_path: Path
) -> None:
    load_code(config)
    parent = read_yaml(config.read_text(encoding="utf-8")).data
    children = [child for seed in range(4) for child in propose_from_file(config, seed=seed, n=6)]
    assert len(children) == 24
    for child in children:
        path = child.write(tmp_path)
        again = validate_yaml(path, deep=True)
        assert again == child.config
        Experiment(again).validate()
        assert again.parent_experiment_id
        data = read_yaml(child.text).data
        assert data["metadata"]["mutation"] == {name: list(pair) for name, pair in child.changes.items()}
        assert _differences(parent, data) == {*child.changes, "name", "parent_experiment_id", "metadata.mutation"}
    by_content = {str(sorted(child.changes.items(), key=str)): child.name for child in children}
    assert len(set(by_content.values())) == len(by_content)


def _differences(one: Any, other: Any, path: str = "") -> set[str]:
    """Dotted paths of the leaves in which two configs differ; `metadata.mutation` counts as one."""
    if one == other:
        return set()
    if path == "metadata.mutation" or not (isinstance(other, dict | list) and other):
        return {path}
    if isinstance(other, dict):
        keys = {*other, *(one if isinstance(one, dict) else {})}
        parts = [(f"{path}.{key}".lstrip("."), _get(one, key), _get(other, key)) for key in keys]
    else:
        parts = [(f"{path}[{at}]", one[at], other[at]) for at in range(len(other))]
    return {found for name, left, right in parts for found in _differences(left, right, name)}


def _get(node: Any, key: str) -> Any:
    return node.get(key) if isinstance(node, dict) else None


def test_the_same_seed_gives_the_same_children(base: str) -> None:
    def texts(seed: int) -> list[str]:
        return [child.text for child in propose(base, seed=seed, n=5)]

    assert texts(7) == texts(7)
    assert texts(7) != texts(8)
    assert len(set(texts(7))) == 5


def test_a_value_that_is_shared_by_an_anchor_changes_in_one_place_only(base: str) -> None:
    text = """
name: shared
runs:
  - name: a
    data: &data { source_kind: in_memory, rows: [{ text: x }] }
    model: &model { name: tiny }
    algorithm: &recipe { kind: sft, params: { batch_size: 4 } }
    backend: &backend { kind: mock }
  - { name: b, data: *data, model: *model, algorithm: *recipe, backend: *backend }
"""
    for child in propose(text, seed=0, n=6):
        one, other = child.config.all_runs()
        assert (one.algorithm.params != {"batch_size": 4}) + (other.algorithm.params != {"batch_size": 4}) == 1


def test_children_of_children_keep_short_names(base: str) -> None:
    text, names = base, list[str]()
    for seed in range(5):
        [child] = propose(text, seed=seed)
        text = child.text
        names.append(child.name)
        assert child.name.startswith("parent-m")
        assert len(child.name) == len("parent-m") + 8
    assert len(set(names)) == 5
    assert load_yaml_text(text).parent_experiment_id == names[-2]


def load_yaml_text(text: str) -> Any:
    from evsys_sdk.config.load import load_document

    return load_document(read_yaml(text))


def test_the_parent_is_the_latest_attempt_on_record(base: str, tmp_path: Path) -> None:
    for folder, known in (("parent", "parent-aaaaaaaa"), ("parent.2", "parent.2-bbbbbbbb"), ("parent.x", "no")):
        (tmp_path / "outputs" / folder).mkdir(parents=True)
        (tmp_path / "outputs" / folder / "config.json").write_text("{}", encoding="utf-8")
        with Journal.of(tmp_path / "outputs" / folder) as journal:
            journal.append(Kind.STARTED, experiment_id=known)
    (tmp_path / "outputs" / "parent.10").mkdir()  # an attempt that never started
    [child] = propose(base, seed=0)
    assert child.config.parent_experiment_id == "parent.2-bbbbbbbb"
    [named] = propose(base, seed=0, parent="given")
    assert named.config.parent_experiment_id == "given"


def test_what_is_measured_and_what_is_learned_from_stay_as_they_are(base: str) -> None:
    names = {name for child in propose(base, seed=2, n=40) for name in child.changes}
    assert all(name.startswith("run.algorithm.params.") for name in names)
    assert len(names) > 5
    operational = {"save_every", "eval_every", "selection_mode", "too_long", "max_length"}
    assert not {name.rpartition(".")[2] for name in names} & operational


def test_only_and_freeze_restrict_what_changes(base: str) -> None:
    only = propose(base, seed=1, n=4, only=["run.algorithm.params.learning_rate"])
    assert {name for child in only for name in child.changes} == {"run.algorithm.params.learning_rate"}
    frozen = propose(base, seed=1, n=20, freeze=["algorithm.params.learning_rate", "algorithm.params.batch_size"])
    names = {name.rpartition(".")[2] for child in frozen for name in child.changes}
    assert not names & {"learning_rate", "batch_size"}


def test_other_blocks_open_when_they_are_named(base: str) -> None:
    children = propose(base, seed=0, n=8, only=["data.transforms"])
    names = {name for child in children for name in child.changes}
    assert all(name.startswith("run.data.transforms[0].params.") for name in names)
    assert not any(name.endswith(".seed") for name in names)
    hidden = propose(base, seed=0, n=2, only=["backend.params.hidden"])
    assert {name for child in hidden for name in child.changes} == {"run.backend.params.hidden"}


def test_a_path_that_is_no_field_is_refused_with_the_closest_one(base: str) -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'algorithm\.params\.learning_rate'"):
        propose(base, seed=0, only=["algorithm.params.learning_rat"])
    with pytest.raises(ConfigError, match="leaves no field that may change"):
        propose(base, seed=0, freeze=["algorithm"])
    with pytest.raises(ConfigError, match="--freeze nonsense names no field"):
        propose(base, seed=0, freeze=["nonsense"])
    with pytest.raises(ConfigError, match="--only  names no field"):
        propose(base, seed=0, only=["algorithm.params.learning_rate", ""])


def test_an_invalid_parent_is_refused_with_its_line(base: str) -> None:
    with pytest.raises(ConfigError, match=r"mine\.yaml:8:\d+: run\.algorithm\.kind"):
        propose(base.replace("kind: sft", "kind: sfft"), seed=0, file="mine.yaml")


def test_axes_of_a_matrix_are_left_to_the_matrix(base: str) -> None:
    text = """
name: m
matrix: { axes: { algorithm.params.learning_rate: [0.1, 0.2] } }
base_run:
  data: { source_kind: in_memory, rows: [{ text: x }] }
  model: { name: tiny }
  algorithm: { kind: sft, params: { learning_rate: 0.1 } }
  backend: { kind: mock }
"""
    for child in propose(text, seed=0, n=20):
        assert all(name.startswith("base_run.algorithm.params.") for name in child.changes)
        assert not any(name.endswith("learning_rate") for name in child.changes)
        assert len(child.config.all_runs()) == 2
    inside = """
name: m
matrix:
  axes: { algorithm.params.learning_rate: [0.1, 0.2] }
  base_run:
    data: { source_kind: in_memory, rows: [{ text: x }] }
    model: { name: tiny }
    algorithm: { kind: sft }
    backend: { kind: mock }
"""
    assert all(name.startswith("matrix.base_run.") for child in propose(inside, seed=0, n=3) for name in child.changes)


def test_fields_without_effect_do_not_change(base: str) -> None:
    steps = base.replace("num_epochs: 4", "max_steps: 8")
    names = {name.rpartition(".")[2] for child in propose(steps, seed=0, n=60) for name in child.changes}
    assert "max_steps" in names
    assert "num_epochs" not in names


def test_what_a_backend_only_records_does_not_change(base: str) -> None:
    names = {field.path[-1] for field in mutation_space(read_yaml(base).data, ("run",))}
    assert "batch_size" in names
    assert "lora_rank" not in names  # the mock backend has no adapter
    local = read_yaml(base.replace("{ kind: mock }", "{ kind: local }")).data
    assert "lora_rank" in {field.path[-1] for field in mutation_space(local, ("run",))}


def write_attempt(folder: Path) -> None:
    """The record of a parent that ran, as far as a proposal looks at it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    with Journal.of(folder) as journal:
        journal.append(Kind.STARTED, experiment_id=f"{folder.name}-aaaaaaaa")


def test_a_parent_that_was_invalidated_has_no_children(base: str, tmp_path: Path) -> None:
    folder = tmp_path / "outputs" / "parent"
    write_attempt(folder)
    with Journal.of(folder) as journal:
        journal.append(Kind.INVALIDATED, reason="The test set leaked.")
    with pytest.raises(ConfigError, match="parent-aaaaaaaa, is invalid: The test set leaked"):
        propose(base, seed=0)
    with Journal.of(folder) as journal:
        journal.append(Kind.REINSTATED)
    assert propose(base, seed=0)
    (folder / "conclusion.json").write_text('{"verdict": "invalid", "summary": "Invalid: no run."}', "utf-8")
    with pytest.raises(ConfigError, match="is invalid: Invalid: no run"):
        propose(base, seed=0)


def test_moves_on_a_log_scale_multiply(base: str) -> None:
    for name in ("run.algorithm.params.learning_rate", "run.algorithm.params.num_epochs"):
        field = field_named(base, name)
        assert field.log
        ratios = [_number(move(field, Random(seed))) / field.value for seed in range(300)]
        assert all(1.2 <= max(ratio, 1 / ratio) <= 3.3 for ratio in ratios)
        assert any(ratio > 1 for ratio in ratios)
        assert any(ratio < 1 for ratio in ratios)
    rate = field_named(base, "run.algorithm.params.learning_rate")
    logs = [math.log(_number(move(rate, Random(seed))) / 0.01) for seed in range(2000)]
    assert abs(sum(logs) / len(logs)) < 0.1  # as far up as down


def _number(value: Any) -> float:
    assert isinstance(value, int | float)
    return value


def test_powers_of_two_stay_so(base: str) -> None:
    field = field_named(base, "run.algorithm.params.batch_size")
    assert {move(field, Random(seed)) for seed in range(50)} == {8, 32}


@settings(max_examples=300)
@given(
    kind=st.sampled_from(["int", "float"]),
    low=st.integers(-50, 50),
    width=st.integers(1, 1000),
    at=st.floats(0, 1),
    bounded=st.sampled_from(["both", "low", "none"]),
    log=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_bounds_are_kept_and_values_really_change(
    kind: Any, low: int, width: int, at: float, bounded: str, log: bool, seed: int
) -> None:
    value = low + at * width
    field = MutableField(
        ("x",),
        kind,
        round(value) if kind == "int" else value,
        None if bounded == "none" else low,
        low + width if bounded == "both" else None,
        log=log,
    )
    moved = move(field, Random(seed))
    if moved is not None:
        assert moved != field.value
        assert field.allows(moved)
        assert isinstance(moved, int) == (kind == "int")


def test_open_bounds_are_never_reached() -> None:
    field = MutableField(("x",), "float", 0.011, 0.01, 0.012, low_open=True, high_open=True)
    values = [value for seed in range(200) if (value := move(field, Random(seed))) is not None]
    assert all(0.01 < _number(value) < 0.012 for value in values)


def test_zero_can_be_left_and_come_back(base: str) -> None:
    field = field_named(base, "run.algorithm.params.weight_decay")
    assert field.value == 0.0
    assert all(0 < _number(move(field, Random(seed))) <= 0.1 for seed in range(50))
    decayed = field_named(base.replace("num_epochs: 4", "weight_decay: 0.1"), "run.algorithm.params.weight_decay")
    assert 0.0 in [move(decayed, Random(seed)) for seed in range(100)]


def test_an_algorithm_of_ones_own_brings_its_own_space(base: str) -> None:
    @register_algorithm("spacious")
    class Spacious:
        class Config(BaseModel):
            flag: bool = False
            mode: str = "free text"
            share: float = Field(default=0.5, ge=0, le=1)
            needed: int | None = None

        def train(self, ctx: Any) -> Any: ...

    data = read_yaml(base.replace("kind: sft", "kind: spacious")).data
    data["run"]["algorithm"]["params"] = {}
    found = {field.path[-1]: field for field in mutation_space(data, ("run",))}
    assert set(found) == {"flag", "share"}
    assert (found["flag"].choices, found["share"].low, found["share"].high) == ((False, True), 0, 1)


def test_a_config_without_a_legal_neighbour_says_so(base: str) -> None:
    @register_algorithm("rigid")
    class Rigid:
        def train(self, ctx: Any) -> Any: ...

    text = base.replace("kind: sft", "kind: rigid").partition("    params:")[0] + "  backend: { kind: mock }\n"
    with pytest.raises(ConfigError, match="has no schema that says what is legal"):
        propose(text, seed=0)


def test_fewer_neighbours_than_asked_for_are_all_that_come(base: str) -> None:
    children = propose(base, seed=0, n=5, only=["algorithm.params.lr_schedule"])
    assert {child.changes["run.algorithm.params.lr_schedule"][1] for child in children} == {"constant", "cosine"}


def test_a_child_does_not_overwrite_another_file(base: str, tmp_path: Path) -> None:
    [child] = propose(base, seed=0)
    path = child.write(tmp_path)
    assert child.write(tmp_path) == path
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match="another file of this name"):
        child.write(tmp_path)
    assert path.read_text(encoding="utf-8") == "mine"


def test_children_can_be_loaded_from_the_files_they_are_written_to(base: str, tmp_path: Path) -> None:
    children: list[Child] = propose(base, seed=3, n=8)
    assert [load_yaml(child.write(tmp_path / "new")) for child in children] == [child.config for child in children]
