"""One template and some axes become many runs: which ones, under which names, and what is refused."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk import ConfigError, ExperimentConfig, dump_yaml, load_yaml
from evsys_sdk.config import MatrixSpec
from evsys_sdk.config.fields import join_path, resolve, split_dotted
from evsys_sdk.config.matrix import expand_matrix, slug

BASE: dict[str, Any] = {
    "name": "sweep",
    "data": {"path": "train.jsonl"},
    "model": {"name": "Qwen/Qwen3-4B"},
    "algorithm": {"kind": "sft", "params": {"lora_rank": 8, "learning_rate": 1e-4}},
}

REFERENCE = """\
name: ranks
matrix:
  base_run:
    name: sweep
    data: { path: train.jsonl }
    model: { name: Qwen/Qwen3-4B }
    algorithm: { kind: sft, params: { lora_rank: 8, learning_rate: 1e-4 } }
  axes:
    algorithm.params.lora_rank:     [1, 8, 32]
    algorithm.params.learning_rate: [1e-4, 5e-5]
  name_template: "{base}__rank{algorithm.params.lora_rank}__lr{algorithm.params.learning_rate}"
"""


def expand(axes: dict[str, list[Any]], base: dict[str, Any] = BASE, **spec: Any) -> list[dict[str, Any]]:
    return expand_matrix(MatrixSpec(base_run=base, axes=axes, **spec), shared_base=None, experiment="experiment")


def names(axes: dict[str, list[Any]], base: dict[str, Any] = BASE, **spec: Any) -> list[str]:
    return [cell["name"] for cell in expand(axes, base, **spec)]


def loaded(text: str, folder: Path) -> ExperimentConfig:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return load_yaml(path)


def test_the_reference_example_gives_six_runs_in_the_order_of_the_axes(tmp_path: Path) -> None:
    config = loaded(REFERENCE, tmp_path)
    assert config.matrix is None
    assert [run.name for run in config.all_runs()] == [
        "sweep__rank1__lr0p0001",
        "sweep__rank1__lr5e-05",
        "sweep__rank8__lr0p0001",
        "sweep__rank8__lr5e-05",
        "sweep__rank32__lr0p0001",
        "sweep__rank32__lr5e-05",
    ]
    assert [run.algorithm.params["lora_rank"] for run in config.all_runs()] == [1, 1, 8, 8, 32, 32]
    assert [run.algorithm.params["learning_rate"] for run in config.all_runs()] == [1e-4, 5e-5] * 3


def test_without_a_template_names_end_in_the_last_key_and_the_value(tmp_path: Path) -> None:
    text = "\n".join(line for line in REFERENCE.splitlines() if "name_template" not in line)
    assert [run.name for run in loaded(text, tmp_path).all_runs()][:3] == [
        "sweep__lora_rank1__learning_rate0p0001",
        "sweep__lora_rank1__learning_rate5e-05",
        "sweep__lora_rank8__learning_rate0p0001",
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1e-4, "0p0001"),
        (5e-5, "5e-05"),
        (1.5, "1p5"),
        (1e20, "1e20"),
        (-0.5, "-0p5"),
        (0.12345678, "0p12345678"),
        (2.0, "2"),
        (32, "32"),
        (-1, "-1"),
        (True, "true"),
        (None, "null"),
        ("sft", "sft"),
        ("Qwen/Qwen3-4B", "Qwen-Qwen3-4B"),
        ("../../etc", "..-..-etc"),
        ("", "empty"),
        ("  ", "empty"),
        ("ä", "empty"),
        ([1, 2], "1,2"),
        ({"a": 1}, "a-=1"),
        ("x" * 100, "x" * 60),
    ],
)
def test_a_value_becomes_a_safe_part_of_a_name(value: Any, expected: str) -> None:
    assert slug(value) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([-1, 1], ["-1", "1"]),
        ([0.1234567, 0.1234568], ["0p1234567", "0p1234568"]),
        (["a/b", "a-b", "c"], ["a-b-1", "a-b-2", "c"]),
        (["x" * 70, "x" * 80], ["x" * 60 + "-1", "x" * 60 + "-2"]),
        ([1, 1.0, True], ["1-1", "1-2", "true"]),
    ],
)
def test_values_that_look_the_same_get_different_names(values: list[Any], expected: list[str]) -> None:
    assert names({"algorithm.params.x": values}) == [f"sweep__x{label}" for label in expected]


def test_a_template_may_name_anything_in_the_run() -> None:
    template = "{model.name}_{base}_{seed}_{algorithm.params.lora_rank}_{data.path}"
    assert names({"seed": [1]}, name_template=template) == ["Qwen-Qwen3-4B_sweep_1_8_train.jsonl"]


def test_a_template_is_not_a_format_string() -> None:
    assert names({"seed": [1]}, name_template="{seed}-{base}}{{x-{seed}") == ["1-sweep}{{x-1"]


def test_base_run_may_be_next_to_the_matrix_and_take_its_name_from_the_experiment(tmp_path: Path) -> None:
    config = loaded(
        """\
name: methods
matrix:
  axes:
    algorithm.kind: [sft, focal_sft]
    algorithm.params.learning_rate: [1.0e-5, 1.0e-4]
base_run: { data: { path: train.jsonl }, model: { name: m }, backend: { kind: tinker } }
""",
        tmp_path,
    )
    assert [run.name for run in config.all_runs()] == [
        "methods__kindsft__learning_rate1e-05",
        "methods__kindsft__learning_rate0p0001",
        "methods__kindfocal_sft__learning_rate1e-05",
        "methods__kindfocal_sft__learning_rate0p0001",
    ]
    assert config.base_run is None
    assert {run.algorithm.kind for run in config.all_runs()} == {"sft", "focal_sft"}


def test_lists_are_addressed_by_index_in_either_spelling() -> None:
    base = BASE | {"data": {"path": "a", "transforms": [{"kind": "identity"}, {"kind": "sample", "params": {"n": 1}}]}}
    for axis in ("data.transforms.1.params.n", "data.transforms[1].params.n"):
        cells = expand({axis: [5, 6]}, base)
        assert [cell["data"]["transforms"][1]["params"]["n"] for cell in cells] == [5, 6]
        assert [cell["data"]["transforms"][0] for cell in cells] == [{"kind": "identity"}] * 2


def test_an_axis_may_replace_whole_blocks() -> None:
    cells = expand({"data": [{"path": "a"}, {"dataset_name": "b"}], "algorithm": [{"kind": "sft"}, {"kind": "dpo"}]})
    assert [(cell["data"], cell["algorithm"]["kind"]) for cell in cells] == [
        ({"path": "a"}, "sft"),
        ({"path": "a"}, "dpo"),
        ({"dataset_name": "b"}, "sft"),
        ({"dataset_name": "b"}, "dpo"),
    ]


def test_an_axis_may_set_what_the_template_leaves_out() -> None:
    (cell,) = expand({"eval.inference.params.temperature": [0.5]})
    assert cell["eval"] == {"inference": {"params": {"temperature": 0.5}}}


def test_a_config_made_in_python_expands_like_a_file(tmp_path: Path) -> None:
    axes = {"algorithm.params.lora_rank": [1, 8, 32], "algorithm.params.learning_rate": [1e-4, 5e-5]}
    matrix = MatrixSpec(base_run=BASE, axes=axes, name_template=loaded_template())
    config = ExperimentConfig(name="ranks", matrix=matrix)
    assert config.expanded() == loaded(REFERENCE, tmp_path)
    assert config.all_runs() == config.expanded().runs


def loaded_template() -> str:
    return REFERENCE.partition('name_template: "')[2].partition('"')[0]


def problem_of(axes: dict[str, list[Any]], base: dict[str, Any] = BASE, **spec: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        expand(axes, base, **spec)
    (problem,) = caught.value.problems
    return str(problem)


def test_axes_that_overwrite_each_other_are_refused() -> None:
    assert "a part of what the axis 'algorithm' sets" in problem_of({"algorithm": [{}], "algorithm.kind": ["sft"]})
    twice = problem_of({"data.transforms[0].kind": ["a"], "data.transforms.0.kind": ["b"]})
    assert twice.startswith("matrix.axes.data.transforms.0.kind: this axis sets a part of")


def test_axes_that_only_look_alike_are_fine() -> None:
    assert len(expand({"algorithm.params.a": [1], "algorithm.params.ab": [2], "algorithm.params.b": [3]})) == 1


def test_values_are_equal_when_they_mean_the_same() -> None:
    assert "lists a value twice" in problem_of({"algorithm.params.x": [{"a": 1, "b": 2}, {"b": 2, "a": 1}]})


@pytest.mark.parametrize(
    ("axis", "remedy"),
    [
        ("algorithm.parms.x", "Did you mean 'params'?"),
        ("data.transforms[0].kid", "Did you mean 'kind'?"),
        ("data.transforms.kind", "'data.transforms' is a list: say which item, as in 'data.transforms[0].kind'."),
        ("run.seed", "Write 'seed'"),
        ("base_run.model.name", "Write 'model.name'"),
        ("continual.stages[0].nme", "Did you mean 'name'?"),
        ("", "Known: algorithm, backend"),
        ("seed.", "Check the dotted path."),
        ("budget.usd", "Known: algorithm, backend"),
    ],
)
def test_an_axis_that_no_run_could_have_is_refused_with_the_closest(axis: str, remedy: str) -> None:
    assert remedy in problem_of({axis: [1]})


def test_a_template_with_scalars_in_the_way_of_an_axis_is_refused() -> None:
    assert "inside 'sft'" in problem_of({"algorithm.params.x": [1]}, BASE | {"algorithm": "sft"})
    deep = BASE | {"algorithm": {"kind": "sft", "params": {"x": 3}}}
    assert "'y' would have to be set inside 3" in problem_of({"algorithm.params.x.y": [1]}, deep)


def test_a_large_matrix_is_refused_before_it_is_built() -> None:
    axes = {f"algorithm.params.p{index}": list(range(10)) for index in range(12)}
    assert "expands into 1000000000000 runs; the limit is 1000" in problem_of(axes)


def test_several_problems_come_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        expand({"sede": [1], "seed": [], "model.nam": ["x", "x"]})
    assert [problem.path.removeprefix("matrix.axes.") for problem in caught.value.problems] == [
        "sede",
        "seed",
        "model.nam",
        "model.nam",
    ]


AXIS_VALUES = st.one_of(
    st.integers(-5, 5),
    st.floats(-10, 10, allow_nan=False),
    st.booleans(),
    st.none(),
    st.text("abc/_-. ", max_size=8),
    st.dictionaries(st.sampled_from(["x", "y"]), st.integers(0, 3), max_size=2),
)
AXIS_PATHS = [
    "seed",
    "model.name",
    "algorithm.kind",
    "algorithm.params.lora_rank",
    "algorithm.params.optimizer.beta",
    "eval.n_samples",
    "data.transforms[0].params.n",
    "tags",
]


@st.composite
def axes_strategy(draw: st.DrawFn) -> dict[str, list[Any]]:
    paths = draw(st.lists(st.sampled_from(AXIS_PATHS), min_size=1, max_size=4, unique=True))
    return {path: draw(st.lists(AXIS_VALUES, min_size=1, max_size=3, unique_by=repr_of)) for path in paths}


def repr_of(value: Any) -> str:
    return repr(sorted(value.items())) if isinstance(value, dict) else repr(value)


def value_at(run: Any, path: str) -> Any:
    for part in split_dotted(path):
        run = run[part]
    return run


def without(run: dict[str, Any], paths: list[str]) -> dict[str, Any]:
    """`run` with the values at `paths` removed, and then whatever became empty."""
    run = copy.deepcopy(run)
    for path in paths:
        *parents, last = split_dotted(path)
        chain = [run]
        for part in parents:
            if not (part in chain[-1] if isinstance(chain[-1], dict) else part < len(chain[-1])):
                break
            chain.append(chain[-1][part])
        else:
            chain[-1].pop(last, None)
            for parent, part in reversed(list(zip(chain, parents, strict=False))):
                if isinstance(parent, dict) and parent[part] == {}:
                    del parent[part]
    return run


@given(axes_strategy())
def test_every_combination_appears_once_with_its_values_and_nothing_else_changes(axes: dict[str, list[Any]]) -> None:
    base = copy.deepcopy(BASE) | {"data": {"path": "a", "transforms": [{"kind": "sample"}]}}
    untouched = copy.deepcopy(base)
    cells = expand(axes, base)

    assert base == untouched
    assert len(cells) == math.prod(len(values) for values in axes.values())
    assert len({cell["name"] for cell in cells}) == len(cells)
    assert cells == expand(axes, base)
    combinations = [[repr_of(value_at(cell, path)) for path in axes] for cell in cells]
    assert len({tuple(row) for row in combinations}) == len(cells)
    for path, values in axes.items():
        assert {repr_of(value_at(cell, path)) for cell in cells} == {repr_of(value) for value in values}
    for cell in cells:
        assert without(cell | {"name": "sweep"}, list(axes)) == without(base, list(axes))


@given(
    ranks=st.lists(st.integers(1, 999), min_size=1, max_size=4, unique=True),
    rates=st.lists(st.floats(1e-9, 1, exclude_max=True), min_size=1, max_size=3, unique=True),
    models=st.lists(st.sampled_from(["a/b", "a-b", "c", "d é", "e" * 90]), min_size=1, max_size=3, unique=True),
)
def test_an_expanded_config_survives_dump_and_load(
    tmp_path_factory: pytest.TempPathFactory, ranks: list[int], rates: list[float], models: list[str]
) -> None:
    axes = {"algorithm.params.lora_rank": ranks, "algorithm.params.learning_rate": rates, "model.name": models}
    expanded = ExperimentConfig(name="e", matrix=MatrixSpec(base_run=BASE, axes=axes)).expanded()
    path = tmp_path_factory.mktemp("dump") / "config.yaml"
    dump_yaml(expanded, path)
    assert load_yaml(path) == expanded


def test_a_dotted_path_is_found_again_in_data_whose_keys_hold_dots() -> None:
    data = {"matrix": {"axes": {"a.b": [1, {"c.d": 2}], "a": 3}}, "list": [[{"x": 1}]]}
    assert resolve(data, "matrix.axes.a.b[1].c.d") == ("matrix", "axes", "a.b", 1, "c.d")
    assert resolve(data, "matrix.axes.a") == ("matrix", "axes", "a")
    assert resolve(data, "matrix.axes.a.b[7].x") == ("matrix", "axes", "a.b")
    assert resolve(data, "list[0][0].x") == ("list", 0, 0, "x")
    assert resolve(data, "nothing.here") == ()
    assert join_path(("list", 0, 0, "x")) == "list[0][0].x"
