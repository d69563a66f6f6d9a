"""Deep validation: do the kinds exist, and do their params fit, for every built-in there is?"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from pydantic import BaseModel

from evsys_sdk.builtins import BUILTINS
from evsys_sdk.config import ExperimentConfig, RunConfig, specs
from evsys_sdk.config.base import KindSpec
from evsys_sdk.config.checks.deep import KindCheck, deep_problems
from evsys_sdk.errors import Problem
from evsys_sdk.registry import config_model, register_algorithm, register_backend, register_metric, registry

SPECS: dict[str, type[KindSpec]] = {
    spec.registry: spec
    for spec in vars(specs).values()
    if isinstance(spec, type) and issubclass(spec, KindSpec) and spec is not KindSpec
}


BUILT_INS = [
    pytest.param(kind, name, id=f"{kind}-{name}")
    for kind, rows in BUILTINS.items()
    for name, builtin in rows.items()
    if kind in SPECS and builtin.missing_extra is None
]


def fields_of(kind: str, name: str) -> list[str]:
    """The params of an extension; none when it has no Config."""
    model = config_model(registry(kind).get(name))
    return list(model.model_fields) if model else []


def problems_of(kind: str, name: str, params: dict[str, Any]) -> list[Problem]:
    return list(KindCheck().problems(SPECS[kind], SPECS[kind](kind=name, params=params)))


def test_there_is_a_block_for_each_registry_that_a_config_refers_to() -> None:
    expected = {"algorithm", "backend", "transform", "verifier", "metric", "inference_client", "agent", "environment"}
    assert set(SPECS) == expected | {"data_store", "log_store", "callback", "launcher"}


@pytest.mark.parametrize(("kind", "name"), BUILT_INS)
def test_a_built_in_refuses_a_param_it_does_not_have(kind: str, name: str) -> None:
    problems = problems_of(kind, name, {"no_such_param_xyz": 1})
    (problem,) = [problem for problem in problems if "missing" not in problem.message]
    assert problem.path in (".params.no_such_param_xyz", ".params")
    assert problem.message in ("unknown key 'no_such_param_xyz'", f"{kind} '{name}' takes no params")
    assert problem.hint


@pytest.mark.parametrize(("kind", "name"), BUILT_INS)
def test_a_built_in_names_the_param_that_was_probably_meant(kind: str, name: str) -> None:
    for field in fields_of(kind, name):
        hints = {problem.path: problem.hint for problem in problems_of(kind, name, {f"{field}x": 1})}
        assert hints[f".params.{field}x"] == f"Did you mean '{field}'?"


@pytest.mark.parametrize(("kind", "name"), BUILT_INS)
def test_a_value_that_a_built_in_refuses_is_explained_in_words(kind: str, name: str) -> None:
    values: list[Any] = [True, 3.5, -1, "text", "", None, [], [{}], [3], {"a": 1}]
    for field, value in product(fields_of(kind, name), values):
        for problem in problems_of(kind, name, {field: value}):
            if problem.path.startswith(f".params.{field}"):
                assert not re.search(r"Input|valid(ation)? |type=|instance of|literal", problem.message), problem
                assert problem.hint, problem


BEYOND: dict[str, Callable[[float], float]] = {
    "minimum": lambda bound: bound - 1,
    "exclusiveMinimum": lambda bound: bound,
    "maximum": lambda bound: bound + 1,
    "exclusiveMaximum": lambda bound: bound,
}


@pytest.mark.parametrize(("kind", "name"), BUILT_INS)
def test_a_value_beyond_a_bound_is_refused_with_the_bound(kind: str, name: str) -> None:
    for field, spec in registry(kind).schema(name)["properties"].items():
        for option, word in product(spec.get("anyOf", [spec]), BEYOND):
            if word not in option:
                continue
            value = BEYOND[word](option[word])
            params = {field: int(value) if option["type"] == "integer" else value}
            problems = [problem for problem in problems_of(kind, name, params) if problem.path == f".params.{field}"]
            assert len(problems) == 1, (field, word)
            assert re.search(r"at least|more than|at most|less than", problems[0].message), problems[0]


def test_an_extension_without_config_takes_no_params() -> None:
    @register_metric("plain")
    class Plain:
        def compute(self, task_rewards: list[list[float]]) -> float:
            return 0.0

    assert problems_of("metric", "plain", {}) == []
    (problem,) = problems_of("metric", "plain", {"k": 3})
    assert str(problem) == ".params: metric 'plain' takes no params (got {'k': 3}). Remove them."


def test_a_function_may_take_params_that_no_one_can_check() -> None:
    @register_metric("as_function")
    def as_function(task_rewards: list[list[float]], **params: Any) -> float:
        return 0.0

    assert problems_of("metric", "as_function", {"k": 3}) == []


class Toy:
    """A recipe with params of its own."""

    class Config(BaseModel, extra="forbid"):
        rate: float = 0.1
        steps: int = 10


def toy_run(**changes: Any) -> dict[str, Any]:
    base = {"name": "r", "data": {"path": "a"}, "model": {"name": "m"}}
    return base | {"algorithm": {"kind": "toy"}, "backend": {"kind": "toy"}} | changes


@pytest.fixture
def _toys() -> None:
    register_algorithm("toy")(Toy)
    register_backend("toy")(type("ToyBackend", (), {}))


@pytest.mark.usefixtures("_toys")
def test_a_config_is_checked_in_all_its_parts() -> None:
    wrong = {"kind": "none_such"}
    config = ExperimentConfig.model_validate(
        {
            "name": "e",
            "data_store": wrong,
            "log_store": wrong,
            "callbacks": [wrong],
            "launcher": wrong,
            "runs": [
                toy_run(
                    algorithm=wrong,
                    backend=wrong,
                    data={"path": "a", "transforms": [wrong]},
                    eval={
                        "metrics": [wrong],
                        "inference": wrong,
                        "eval_data": {"path": "b", "transforms": [wrong]},
                    },
                ),
                toy_run(
                    name="s",
                    data=None,
                    continual={
                        "stages": [
                            {
                                "name": "one",
                                "data": {"path": "a", "transforms": [wrong]},
                                "eval_data": {"path": "a", "transforms": [wrong]},
                            }
                        ]
                    },
                ),
            ],
        }
    )
    assert sorted(problem.path for problem in deep_problems(config)) == [
        "callbacks[0].kind",
        "data_store.kind",
        "launcher.kind",
        "log_store.kind",
        "runs[0].algorithm.kind",
        "runs[0].backend.kind",
        "runs[0].data.transforms[0].kind",
        "runs[0].eval.eval_data.transforms[0].kind",
        "runs[0].eval.inference.kind",
        "runs[0].eval.metrics[0].kind",
        "runs[1].continual.stages[0].data.transforms[0].kind",
        "runs[1].continual.stages[0].eval_data.transforms[0].kind",
    ]


@pytest.mark.usefixtures("_toys")
def test_a_mistake_of_all_arms_is_reported_once_for_a_config_without_a_file() -> None:
    runs = [toy_run(name=f"r{index}", algorithm={"kind": "toy", "params": {"stepz": 1}}) for index in range(20)]
    config = ExperimentConfig.model_validate({"name": "e", "runs": runs})
    assert [problem.path for problem in deep_problems(config)] == ["runs[0].algorithm.params.stepz"]


@pytest.mark.usefixtures("_toys")
def test_params_of_a_stage_are_checked_together_with_those_they_change() -> None:
    stages = [
        {"name": "one", "data": {"path": "a"}},
        {"name": "two", "data": {"path": "b"}, "params": {"steps": "many"}},
        {"name": "three", "data": {"path": "c"}, "params": {"rate": 0.5}},
    ]
    run = toy_run(data=None, continual={"stages": stages}, algorithm={"kind": "toy", "params": {"rat": 1}})
    config = ExperimentConfig(name="e", run=RunConfig.model_validate(run))
    assert [problem.path for problem in deep_problems(config)] == [
        "run.algorithm.params.rat",
        "run.continual.stages[1].params.steps",
    ]


@pytest.mark.usefixtures("_toys")
def test_blocks_that_are_not_valid_as_such_are_left_to_the_ordinary_check() -> None:
    raw = {"name": "e", "run": toy_run(algorithm={"knd": "toy"}, backend="toy", data={"transforms": [3, {"kind": 3}]})}
    raw["run"]["continual"] = {"stages": "none"}
    assert list(KindCheck().problems(ExperimentConfig, raw)) == []


@pytest.mark.usefixtures("_toys")
def test_params_that_yaml_could_not_hold_are_checked_too() -> None:
    config = ExperimentConfig.model_validate({"name": "e", "run": toy_run()})
    params: dict[Any, Any] = {1: object(), "a": {2, 3}}
    algorithm = config.run and config.run.algorithm.model_copy(update={"params": params})
    run = config.run and config.run.model_copy(update={"algorithm": algorithm})
    (problem, *_) = deep_problems(config.model_copy(update={"run": run}))
    assert problem.path.startswith("run.algorithm.params")


class Layer(BaseModel):
    depth: int


def test_the_config_of_an_extension_may_be_any_pydantic_model() -> None:
    @register_algorithm("nested")
    class Nested:
        class Config(BaseModel):
            layers: list[Layer] = []
            choice: int | str | None = None

    (problem,) = problems_of("algorithm", "nested", {"layers": [{"depth": 1}, {"depth": "deep"}]})
    assert str(problem) == ".params.layers[1].depth: should be a whole number (got 'deep'). Write a number."
    (problem,) = problems_of("algorithm", "nested", {"choice": [1]})
    assert problem.message == "should be a whole number or text"
    (problem,) = problems_of("algorithm", "nested", {"layers": [{}]})
    assert str(problem) == ".params.layers[0].depth: the key 'depth' is missing. Add it."


@pytest.mark.parametrize("path", ["no.such.Agent", "no.such:Agent", "json:dumps_not_there", "json:JSONDecoder"])
def test_an_agent_that_cannot_be_used_is_refused_before_anything_is_spent(path: str) -> None:
    [problem] = problems_of("algorithm", "rl", {"agent_import_path": path})
    assert problem.path == ".params.agent_import_path"
    assert problem.value == path
    assert problem.hint


def test_an_agent_of_ones_own_passes() -> None:
    path = "evsys_sdk.rollouts.agents.chat"
    assert problems_of("algorithm", "rl", {"agent_import_path": f"{path}:ChatAgent"}) == []
    assert problems_of("algorithm", "rl", {"agent_import_path": f"{path}.ChatAgent"}) == []


@pytest.mark.parametrize("kind", ["mock_sft", ["mock_sft"], None, 3])
def test_a_recipe_that_insists_on_a_backend_needs_no_other(kind: Any) -> None:
    run = {"algorithm": {"kind": kind}, "backend": {"kind": "no_such_backend"}}
    paths = [problem.path for problem in KindCheck().problems(ExperimentConfig, {"run": run})]
    assert ("run.backend.kind" in paths) == (kind != "mock_sft")
