"""Every recipe on every backend: the cell works, or `validate --deep` (or the backend's capabilities) refuses it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig, get_algorithm, list_algorithms, list_backends, register_verifier
from evsys_sdk.backends.client import Capabilities, ModelSpec, TrainingClient
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.builtins import BUILTINS
from evsys_sdk.config.checks.deep import deep_problems
from evsys_sdk.errors import ConfigError, install_hint
from evsys_sdk.eval.verifier import verify_rollout
from evsys_sdk.experiment import Experiment
from evsys_sdk.inference.renderer import get_renderer
from evsys_sdk.training.callback import Observers, RunControl
from evsys_sdk.training.services import RunServices

CHATS = [
    {"messages": [{"role": "user", "content": word}, {"role": "assistant", "content": word.upper()}]}
    for word in ("amber", "birch", "cedar", "dune")
]
PAIRS = [{"prompt": word, "chosen": word.upper(), "rejected": word} for word in ("amber", "birch", "cedar", "dune")]
TASKS = [
    {
        "task_id": f"t{number}",
        "instruction": f"Number {number}: red or green?",
        "verifier": {"kind": "in_process", "fn_name": "every_other", "expected": ""},
    }
    for number in range(2)
]
SAMPLING = {"max_tokens": 4}
GROUPS = {"batch_size": 2, "group_size": 8, "sampling": SAMPLING, "max_steps": 2}
RECIPES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "sft": (CHATS, {"max_steps": 2, "batch_size": 2}),
    "dpo": (PAIRS, {"max_steps": 2, "batch_size": 2}),
    "rl": (TASKS, GROUPS),
    "sdft": (CHATS, {"max_steps": 2, "batch_size": 2, "sampling": SAMPLING, "top_k": 4}),
    "opd": (CHATS, {"max_steps": 2, "batch_size": 2, "sampling": SAMPLING, "top_k": 4}),
    "combo": (CHATS, {"phases": [{"kind": "sft", "params": {"max_steps": 1}}, {"kind": "sft"}]}),
    "mock_sft": (CHATS, {"max_steps": 2, "batch_size": 2}),
    "mock_rl": (TASKS, GROUPS),
    "local_sft": (CHATS, {"max_steps": 1}),
    "local_rl": (TASKS, GROUPS),
    "gepa_prompt": (
        [{"inputs": {"question": "a"}, "expected": "A"}],
        {"reflection": {"kind": "mock"}, "seed_prompt": "Go"},
    ),
}
PINNED = {"mock_sft": "mock", "mock_rl": "mock", "local_sft": "local", "local_rl": "local"}
ON_MOCK = [recipe for recipe in RECIPES if PINNED.get(recipe, "mock") == "mock" and recipe != "gepa_prompt"]
"""Those that update weights; how a prompt is tuned is shown in tests/algorithms/test_gepa_prompt.py."""


def test_the_table_is_complete() -> None:
    # How a loop in a file trains is shown in tests/experiment/test_loops.py.
    assert set(RECIPES) | {"script"} == set(BUILTINS["algorithm"]) <= set(list_algorithms())
    assert {"mock", "local", "tinker"} <= set(BUILTINS["backend"]) <= set(list_backends())


def config(tmp_path: Path, recipe: str, backend: str, **params: Any) -> ExperimentConfig:
    rows, given = RECIPES[recipe]
    teacher = {"teacher": "mock://teacher"} if recipe == "opd" and "teacher" not in params else {}
    run = {
        "name": recipe,
        "data": {"source_kind": "in_memory", "rows": rows},
        "model": {"name": "tiny"},
        "algorithm": {"kind": recipe, "params": {**given, **teacher, **params}},
        "backend": {"kind": backend, "params": _needed(backend)},
    }
    return ExperimentConfig.model_validate({"name": "e", "output_dir": str(tmp_path / "outputs"), "run": run})


def _needed(backend: str) -> dict[str, Any]:
    return {"tokenizer": "Qwen/Qwen3-8B"} if backend == "fireworks" else {}


@pytest.fixture(autouse=True)
def _rewards_that_differ() -> None:
    """A verifier that rewards every other attempt, so that each group of rollouts says something."""
    turn = itertools.count()
    register_verifier("every_other")(lambda completion, expected, **_: float(next(turn) % 2))


@pytest.fixture
def teacher(tmp_path: Path) -> str:
    """A sampler that another model left."""
    backend = MockBackend()
    handles = backend.prepare(model=ModelSpec("tiny", seed=1), run_dir=tmp_path / "teacher")
    try:
        return handles["training_client"].sampler("teacher").result().ref
    finally:
        backend.teardown(handles)


@pytest.mark.parametrize("recipe", ON_MOCK)
def test_a_recipe_passes_the_check_and_learns_on_the_mock_backend(recipe: str, tmp_path: Path, teacher: str) -> None:
    params = {"teacher": teacher} if recipe == "opd" else {}
    chosen = config(tmp_path, recipe, "mock", **params)
    assert deep_problems(chosen) == []
    [result] = Experiment(chosen).run().runs
    assert (result.status, result.error) == ("completed", None)
    assert result.notes.tokens is not None
    assert result.notes.tokens["trained"] > 0
    assert Path(result.artifacts["best_checkpoint"]).is_dir()


@pytest.mark.parametrize("backend", sorted(BUILTINS["backend"]))
@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_a_cell_is_accepted_or_refused_with_what_is_missing(recipe: str, backend: str, tmp_path: Path) -> None:
    trains_on = PINNED.get(recipe, backend)
    missing = [
        extra
        for entry in (BUILTINS["algorithm"][recipe], BUILTINS["backend"][trains_on])
        if (extra := entry.missing_extra) is not None
    ]
    problems = deep_problems(config(tmp_path, recipe, backend))
    if not missing:
        assert problems == []
    else:
        text = " ".join(str(problem) for problem in problems)
        assert all(install_hint(extra) in text for extra in missing)


class _LessCapable:
    """A client whose backend cannot do all that the mock can."""

    def __init__(self, client: TrainingClient, capabilities: Capabilities) -> None:
        self._client, self.capabilities = client, capabilities

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


LESSER = {
    "reference": {},
    "averages losses": {"summed_losses": False, "custom_loss": False},
    "samplers follow the weights": {"snapshot_samplers": False},
    "no alternatives": {"top_k_logprobs": 0},
}
REFUSED = {
    ("dpo", "averages losses"): "averages losses",
    ("rl", "averages losses"): "averages losses",
    ("mock_rl", "averages losses"): "averages losses",
    ("sdft", "samplers follow the weights"): "the teacher",
    ("opd", "samplers follow the weights"): "the teacher",
    ("sdft", "no alternatives"): "at most 0 tokens per position",
    ("opd", "no alternatives"): "at most 0 tokens per position",
}


@pytest.mark.parametrize("lacks", LESSER)
@pytest.mark.parametrize("recipe", [recipe for recipe in ON_MOCK if recipe != "combo"])
async def test_what_a_backend_cannot_do_is_refused_before_the_first_step(
    recipe: str, lacks: str, tmp_path: Path, teacher: str
) -> None:
    rows, params = RECIPES[recipe]
    backend = MockBackend()
    handles = backend.prepare(model=ModelSpec("tiny"), run_dir=tmp_path / "run")
    real: TrainingClient = handles["training_client"]
    client: Any = _LessCapable(real, replace(real.capabilities, **LESSER[lacks]))
    algorithm = get_algorithm(recipe)(**params, **({"teacher": teacher} if recipe == "opd" else {}))
    services = RunServices(Observers([]), RunControl(), verify_rollout, lambda _: [], client)
    algorithm.bind(
        client=client,
        renderer=get_renderer(real.tokenizer),
        rows=rows,
        seed=0,
        run_dir=tmp_path / "run",
        services=services,
    )
    try:
        if reason := REFUSED.get((recipe, lacks)):
            with pytest.raises(ConfigError, match=reason):
                await algorithm.setup()
        else:
            await algorithm.setup()
            assert (await algorithm.build_batch(0)).data
    finally:
        algorithm.close()
        backend.teardown(handles)
