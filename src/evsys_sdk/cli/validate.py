"""`evsys validate`: everything that is wrong with a config, before anything is spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import click

from .output import emit, import_option, json_option

if TYPE_CHECKING:
    from ..config import ExperimentConfig
    from ..errors import Problem


@click.command()
@click.argument("path", type=click.Path())
@click.option("--deep", is_flag=True, help="Also check that every kind exists and that its params fit.")
@json_option
@import_option
def validate(path: str, deep: bool, as_json: bool) -> None:
    """Check the experiment in PATH and report all of its problems at once."""
    config = _deeply_validated(path) if deep else _validated(path)
    runs = [run.name for run in config.all_runs()]
    warnings = _warnings(config) if deep else []
    answer = {"ok": True, "path": path, "name": config.name, "deep": deep, "runs": runs}
    answer |= {"warnings": warnings} if warnings else {}

    def render() -> None:
        plural = "run" if len(runs) == 1 else "runs"
        shown = ", ".join(runs[:5]) + (", …" if len(runs) > 5 else "")
        click.echo(f"{path}: OK. Experiment '{config.name}' has {len(runs)} {plural}: {shown}")
        for warning in warnings:
            click.echo(f"warning: {warning}.", err=True)
        if not deep:
            click.echo("Kinds and params were not checked; add --deep for that.", err=True)

    emit(answer, as_json, render)


def _validated(path: str) -> ExperimentConfig:
    from ..config import validate_yaml

    return validate_yaml(path)


def _warnings(config: ExperimentConfig) -> list[str]:
    """What does not keep it from running, but from being believed."""
    from ..experiment.contamination import contamination_warnings

    return contamination_warnings(config)


def _deeply_validated(path: str) -> ExperimentConfig:
    """What `evsys run` would refuse must not be called OK here; and wrong kinds must not hide wrong benchmarks."""
    from ..config import validate_yaml
    from ..errors import ConfigError
    from ..experiment import Experiment

    try:
        config = validate_yaml(path, deep=True)
    except ConfigError as error:
        found = [*error.problems, *_benchmark_problems(path, error.problems)]
        raise ConfigError(sorted(found, key=lambda one: (one.line or 0, one.column or 0))) from None
    if problems := _benchmark_problems(path):
        raise ConfigError(problems)
    Experiment(config).validate()
    return config


def _benchmark_problems(path: str, known: Sequence[Problem] = ()) -> list[Problem]:
    """What is wrong with the benchmarks of a file, with its lines; nothing where the block itself is malformed."""
    from pathlib import Path

    from pydantic import ValidationError

    from ..config import Metadata
    from ..config.fields import resolve
    from ..config.yaml_text import read_yaml_file
    from ..errors import EvsysError
    from ..experiment.benchmark_plan import benchmark_problems

    try:
        document = read_yaml_file(Path(path))
        data: Any = document.data
        metadata = Metadata.model_validate(cast("dict[str, Any]", data).get("metadata") or {})
    except (EvsysError, ValidationError, AttributeError):
        return []  # said already, by whoever read the file before
    seen = {(problem.path, problem.message) for problem in known}
    located: list[Problem] = []
    for problem in benchmark_problems(metadata):
        if (problem.path, problem.message) not in seen:
            line, column = document.position(resolve(data, problem.path)) or (None, None)
            located.append(problem.located(file=document.file, line=line, column=column))
    return located
