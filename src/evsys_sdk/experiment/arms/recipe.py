"""Build the recipe and the backend of an arm."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from ...algorithms.continual import Continual
from ...backends.client import ModelSpec
from ...config import DataConfig, RunConfig, RunStage
from ...errors import BackendError, show
from ...log import get_logger
from ...paths import in_project
from ...protocols import Algorithm, AlgorithmTraits, Backend, Row, traits_of
from ...record.evidence import check_weights
from ...record.run_files.checkpoints import locate_weights
from ...registry import get_algorithm, get_backend


def build_algorithm(run: RunConfig) -> Algorithm:
    """The recipe of a run, wrapped in `Continual` if the run has `continual`."""
    return Continual(run) if run.continual else get_algorithm(run.algorithm.kind)(**run.algorithm.params)


def pair_stages(run: RunConfig, algorithm: Algorithm) -> list[tuple[RunStage, Algorithm]]:
    """Each stage of a run with its algorithm; an algorithm that does not list its stages serves all of them."""
    stages, built = run.stages(), traits_of(algorithm).stages
    return [(stage, built[at] if len(built) == len(stages) else algorithm) for at, stage in enumerate(stages)]


def count_steps(run: RunConfig, algorithm: Algorithm, load_rows: Callable[[DataConfig], Sequence[Row]]) -> int | None:
    """The number of training steps over all stages; None if a stage does not know it before training."""
    stages = {id(recipe): (stage, traits_of(recipe)) for stage, recipe in pair_stages(run, algorithm)}
    steps = [_count_steps(stage, traits, load_rows) for stage, traits in stages.values()]
    return None if None in steps else sum(filter(None, steps))


def _count_steps(
    stage: RunStage, traits: AlgorithmTraits, load_rows: Callable[[DataConfig], Sequence[Row]]
) -> int | None:
    if traits.max_steps is not None or traits.planned_steps is None:
        return traits.max_steps
    return traits.planned_steps(load_rows(stage.data) if stage.data else [])


def build_backend(run: RunConfig, algorithm: Algorithm) -> Backend:
    """The backend of a run, or the one that its recipe requires."""
    pinned = traits_of(algorithm).pinned_backend
    if pinned is None or pinned == run.backend.kind:
        return get_backend(run.backend.kind)(**run.backend.arguments)
    # The config's params belong to the other backend.
    return get_backend(pinned)()


@contextmanager
def prepare_backend(backend: Backend, run: RunConfig, algorithm: Algorithm, run_dir: Path) -> Generator[dict[str, Any]]:
    """Prepare a backend and yield its handles; tear it down at the end."""
    handles: Any = backend.prepare(model=_model_spec(run, algorithm), run_dir=run_dir)
    if not isinstance(handles, dict):
        raise BackendError(f"the backend '{run.backend.kind}' prepared {show(handles)}. Return a dict of handles.")
    prepared = cast("dict[str, Any]", handles)
    try:
        yield prepared
    finally:
        _tear_down(backend, prepared)


def _tear_down(backend: Backend, handles: dict[str, Any]) -> None:
    """Release the backend; an error is logged and does not change the result of the run."""
    try:
        backend.teardown(handles)
    except Exception as error:
        get_logger(__name__).error("the backend could not be torn down: %s: %s", type(error).__name__, error)


def _model_spec(run: RunConfig, algorithm: Algorithm) -> ModelSpec:
    model = run.model
    return ModelSpec(
        name=str(in_project(model.name)) if is_local_path(run) else model.name,
        load_checkpoint_path=_resolve(model.load_checkpoint_path),
        init_from_checkpoint=_resolve(model.init_from_checkpoint),
        renderer_name=model.renderer_name,
        lora_rank=traits_of(algorithm).lora_rank,
        seed=run.seed,
    )


def is_local_path(run: RunConfig) -> bool:
    """Whether the model of a run is a path on this machine; names on the hub have at most one slash."""
    name = run.model.name
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith(".gguf")
    return run.backend.kind == "local" and is_path


def resolve_checkpoint(reference: str) -> str:
    """A checkpoint's reference for the backend; `record/run_files/checkpoints.py` lists the names it may have."""
    if "://" in reference:
        return reference
    path = locate_weights(str(in_project(reference)))
    check_weights(Path(path))
    return path


def _resolve(reference: str | None) -> str | None:
    return resolve_checkpoint(reference) if reference else None
