"""`search` in a file: what is drawn from a space or from the runs, and what is refused with its place and remedy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ConfigError, ExperimentConfig, dump_yaml, load_yaml, validate_yaml
from evsys_sdk.config import SearchSpec
from evsys_sdk.config.space import draw, sample_space

HEAD = """\
name: e
"""
BASE = """\
base_run:
  name: r
  data: { path: train.jsonl }
  model: { name: tiny }
  algorithm: { kind: sft, params: { max_steps: 90 } }
  backend: { kind: mock }
"""
RUN = BASE.replace("base_run:", "run:")
MATRIX = BASE + "matrix: { axes: { algorithm.params.batch_size: [1, 2, 3, 4, 5, 6] } }\n"
SPACE = """\
search:
  kind: random
  n: 5
  space:
    algorithm.params.learning_rate: { low: 1e-5, high: 1e-2, scale: log }
    algorithm.params.batch_size: { low: 4, high: 64, scale: log }
    algorithm.params.lr_schedule: [constant, linear]
"""


def write(text: str, folder: Path) -> Path:
    path = folder / "config.yaml"
    path.write_text(HEAD + text, encoding="utf-8")
    return path


def params(config: ExperimentConfig) -> list[dict[str, Any]]:
    return [run.algorithm.params for run in config.all_runs()]


def test_points_of_a_space_become_plain_runs(tmp_path: Path) -> None:
    config = load_yaml(write(BASE + SPACE, tmp_path))
    assert config.base_run is None
    assert config.search is not None
    assert config.search.space == {}
    assert len(config.runs or ()) == 5
    for point in params(config):
        assert 1e-5 <= point["learning_rate"] <= 1e-2
        assert isinstance(point["batch_size"], int)
        assert 4 <= point["batch_size"] <= 64
        assert point["lr_schedule"] in ("constant", "linear")
        assert point["max_steps"] == 90
    names = [run.name for run in config.all_runs()]
    assert len(set(names)) == 5
    assert all(name.startswith("r__learning_rate") for name in names)


def test_the_seed_decides_what_is_drawn(tmp_path: Path) -> None:
    first = params(load_yaml(write(BASE + SPACE, tmp_path)))
    assert params(load_yaml(write(BASE + SPACE, tmp_path))) == first
    assert params(load_yaml(write(BASE + SPACE.replace("n: 5", "n: 5\n  seed: 1"), tmp_path))) != first
    assert params(load_yaml(write(BASE + SPACE.replace("n: 5", "n: 3"), tmp_path))) == first[:3]


def test_what_was_drawn_is_written_and_read_back_as_it_is(tmp_path: Path) -> None:
    config = load_yaml(write(BASE + SPACE, tmp_path))
    assert config.expanded() == config
    dump_yaml(config, tmp_path / "again.yaml")
    assert load_yaml(tmp_path / "again.yaml") == config
    assert ExperimentConfig.model_validate(config.model_dump(mode="json")) == config


def test_a_config_made_in_python_is_expanded_the_same_way(tmp_path: Path) -> None:
    from evsys_sdk.config.yaml_text import read_yaml

    data: Any = read_yaml(HEAD + BASE + SPACE).data
    assert ExperimentConfig.model_validate(data).expanded() == load_yaml(write(BASE + SPACE, tmp_path))


def test_some_runs_of_a_matrix_are_drawn_in_their_own_order(tmp_path: Path) -> None:
    config = load_yaml(write(MATRIX + "search: { kind: random, n: 3 }\n", tmp_path))
    sizes = [point["batch_size"] for point in params(config)]
    assert len(sizes) == 3
    assert sizes == sorted(sizes)
    assert config.expanded() == config
    everything = load_yaml(write(MATRIX + "search: { kind: random, n: 60 }\n", tmp_path))
    assert len(everything.all_runs()) == 6


def test_every_run_is_drawn_equally_often() -> None:
    counts = Counter(item for seed in range(3000) for item in draw(range(6), 2, seed))
    assert all(900 < counts[item] < 1100 for item in range(6))


def test_a_log_scale_gives_each_decade_its_share_and_whole_numbers_reach_both_ends() -> None:
    space = {"a": {"low": 1e-4, "high": 1e-1, "scale": "log"}, "b": {"low": 1, "high": 3}}
    spec = SearchSpec.model_validate({"kind": "random", "n": 1, "space": space})
    from evsys_sdk.config.space import _value  # pyright: ignore[reportPrivateUsage]

    chances = [(index + 0.5) / 900 for index in range(900)]
    rates = [_value(spec.space["a"], chance) for chance in chances]
    assert sum(1e-3 < rate < 1e-2 for rate in rates) == pytest.approx(300, abs=2)
    assert Counter(_value(spec.space["b"], chance) for chance in chances) == {1: 300, 2: 300, 3: 300}
    assert _value(spec.space["a"], 0.0) == 1e-4
    assert _value(spec.space["a"], 0.9999999) == 1e-1


def test_a_space_that_is_too_small_says_how_many_points_it_has() -> None:
    spec = SearchSpec.model_validate({"kind": "random", "n": 5, "space": {"seed": [1, 2], "tags": [["x"], ["y"]]}})
    with pytest.raises(
        ConfigError, match=r"no more than 4 different points, and 5 are to be drawn .* Set search.n to 4"
    ):
        sample_space(spec, {"name": "r"}, experiment="e")


def test_values_that_look_alike_in_a_name_are_numbered() -> None:
    spec = SearchSpec.model_validate({"kind": "random", "n": 2, "space": {"model.name": ["a/b", "a b"]}})
    assert [cell["name"] for cell in sample_space(spec, {"name": "r"}, experiment="e").cells] == [
        "r__namea-b",
        "r__namea-b-2",
    ]


BAD_SPACE = "search: { kind: random, n: 4, space: { %s } }\n"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (BASE + BAD_SPACE % "algorithm.prams.x: [1]", "search.space.algorithm.prams.x", "Did you mean 'params'"),
        (BASE + BAD_SPACE % "name: [a]", "search.space.name", "the name of a run cannot be drawn"),
        (BASE + BAD_SPACE % "run.seed: [1]", "search.space.run.seed", "Write 'seed'"),
        (BASE + BAD_SPACE % "seed: []", "search.space.seed", "there is nothing to choose from"),
        (BASE + BAD_SPACE % "seed: { low: 3, high: 1 }", "search.space.seed.high", "high must be more than low"),
        (BASE + BAD_SPACE % "seed: { low: 0, high: 1, scale: log }", "search.space.seed.low", "needs a low above 0"),
        (BASE + BAD_SPACE % "seed: { low: -9, high: -2 }", "search.space.seed", "should be at least 0"),
        (BASE + BAD_SPACE % "seed: [1, x, 3, 4]", "search.space.seed[1]", "should be a whole number"),
        (BASE + "search: { kind: random, n: 9, space: { seed: [1, 2] } }\n", "search.n", "no more than 2 different"),
        (BASE + "search: { kind: random, space: { seed: [1] } }\n", "search", "Set 'n'"),
        (MATRIX + BAD_SPACE % "seed: [1]", "matrix", "Move its axes into search.space"),
        (RUN + BAD_SPACE % "seed: [1]", "run", "Rename it to 'base_run'"),
        (BAD_SPACE % "seed: [1]", "search", "Add 'base_run'"),
        (MATRIX + "search: { kind: random }\n", "search", "Set 'n'"),
        (MATRIX + "search: { kind: grid, n: 3 }\n", "search.n", "a grid trains every run"),
        (MATRIX + "search: { kind: random, n: 2, rungs: [0.5] }\n", "search.rungs", "unknown key"),
        (MATRIX + "search: { kind: halving }\n", "search.kind", "should be 'grid' or 'random'"),
    ],
)
def test_what_cannot_be_searched_is_refused_where_it_stands(
    text: str, place: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_yaml(write(text, tmp_path))
    [problem] = caught.value.problems
    assert problem.path == place
    assert message in str(problem)
    assert problem.hint or "Did you mean" in str(problem)
    assert problem.line is not None or place in ("run", "search")


def test_every_drawn_run_is_checked_deeply(tmp_path: Path) -> None:
    text = BASE + BAD_SPACE % "algorithm.params.batch_size: [1, 0, -1, 2]"
    load_yaml(write(text, tmp_path))
    with pytest.raises(ConfigError) as caught:
        validate_yaml(write(text, tmp_path), deep=True)
    assert sorted(problem.path for problem in caught.value.problems) == [
        "search.space.algorithm.params.batch_size[1]",
        "search.space.algorithm.params.batch_size[2]",
    ]
    assert all(problem.line for problem in caught.value.problems)


def test_a_search_that_an_earlier_version_recorded_is_read() -> None:
    recorded = {"eta": 1.5, "rungs": None, "finalists": 2, "metric": None, "mode": None, "race": None}
    spec = SearchSpec(kind="random", n=2)
    assert SearchSpec.model_validate({**spec.model_dump(), **recorded}) == spec
