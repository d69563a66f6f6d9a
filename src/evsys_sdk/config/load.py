"""YAML file -> ExperimentConfig, with every problem of the file in one error.

cfg = load_yaml("config.yaml")     # matrix expanded into runs
text = dump_yaml(cfg)              # loads back to the same config
validate_yaml("config.yaml", deep=True)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from ..errors import ConfigError, Problem
from .base import NO_CREDENTIALS, USE_A_VARIABLE, find_credentials
from .checks.problems import describe_failed_check, join_path, problems_in
from .experiment import ExperimentConfig, source_problem
from .fields import resolve
from .matrix import Expansion, expand_file
from .run import RunConfig
from .search import space_of
from .yaml_text import Document, read_yaml_file

if TYPE_CHECKING:
    from .base import Strict
    from .checks.deep import KindCheck
    from .space import SpaceExpansion


def load_yaml(path: str | Path) -> ExperimentConfig:
    """Read an experiment from a YAML file, with its matrix expanded into `runs`."""
    return load_document(read_yaml_file(Path(path)))


def dump_yaml(config: ExperimentConfig, path: str | Path | None = None) -> str:
    """The experiment as YAML text without default values; also written to `path` if it is given."""
    from .yaml_write import write_yaml

    text = write_yaml(config.model_dump(exclude_defaults=True))
    if path is not None:
        from ..files import write_text

        write_text(Path(path), text, verbatim=True)
    return text


def validate_yaml(path: str | Path, *, deep: bool = False) -> ExperimentConfig:
    """Load a file and, with `deep`, check every kind and its params; raises ConfigError with all problems."""
    return load_document(read_yaml_file(Path(path)), deep=deep)


def load_document(document: Document, *, deep: bool = False, dry: bool = False) -> ExperimentConfig:
    """The config of a parsed YAML document; raises ConfigError with all problems and their lines."""
    data = document.data
    if not isinstance(data, dict):
        message, hint = "the file must hold a mapping of keys to values", "Start with 'name: my_experiment'."
        raise ConfigError(locate_problem(Problem(message, value=data, hint=hint), document))
    config, problems = _load(cast("dict[str, Any]", data), _check_kinds(dry) if deep else None)
    if problems or config is None:
        raise _collect_error(problems, document)
    return config


def load_settings[M: Strict](path: str | Path, model: type[M]) -> M:
    """The settings of a model in a YAML file, e.g. a `GatePolicy`; raises ConfigError with all problems."""
    document = read_yaml_file(Path(path))
    data = document.data
    if not isinstance(data, dict):
        hint = f"Its keys are {', '.join(model.model_fields)}."
        raise ConfigError(Problem("the file must hold a mapping of keys to values", file=document.file, hint=hint))
    fields = cast("dict[str, Any]", data)
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _collect_error(problems_in(error, model=model, data=fields), document) from None


def _load(data: dict[str, Any], check: KindCheck | None) -> tuple[ExperimentConfig | None, list[Problem]]:
    problems: list[Problem] = []
    # Each check reads the raw data, so that all problems are reported at once.
    config = _validate(data, problems)
    paths = {problem.path for problem in problems}
    for path in map(join_path, find_credentials(data)):
        if path not in paths:  # credentials in params are reported by their model
            problems.append(Problem(NO_CREDENTIALS, path=path, value="[redacted]", hint=USE_A_VARIABLE))
    expansion = _expand(data, problems)
    if expansion is not None:
        runs, run_problems = _expand_runs(expansion, check)
        problems += run_problems
        config = config and config.with_runs(runs)
    elif config is not None and not problems:
        config = config.expanded()
    if check is not None:
        problems += check.problems(ExperimentConfig, data)
        if config and not problems:
            from .checks.deep import price_problems

            problems += price_problems(config)
    return config, problems


def _check_kinds(dry: bool) -> KindCheck:
    from .checks.deep import KindCheck  # imports the registry, which shallow validation does not need

    return KindCheck(dry=dry)


def _validate(data: dict[str, Any], problems: list[Problem]) -> ExperimentConfig | None:
    try:
        return ExperimentConfig.model_validate(data)
    except ValidationError as error:
        problems += problems_in(error, model=ExperimentConfig, data=data)
    misplaced = source_problem(data)  # pydantic skips checks across fields if a field is invalid
    if misplaced and misplaced.path and (problem := describe_failed_check(misplaced)) not in problems:
        problems.append(problem)
    return None


def _expand(data: dict[str, Any], problems: list[Problem]) -> Expansion | SpaceExpansion | None:
    expansion = None
    if space_of(data):
        from .space import expand_space

        expansion = expand_space(data, problems)
    return expansion or expand_file(data, problems)


def _expand_runs(
    expansion: Expansion | SpaceExpansion, check: KindCheck | None
) -> tuple[list[RunConfig], list[Problem]]:
    """The runs of a matrix or a space, and their problems; a problem of several cells is reported once."""
    runs: list[RunConfig] = []
    located: dict[tuple[str, str], Problem] = {}
    for cell, position in zip(expansion.cells, expansion.positions(), strict=True):
        problems: list[Problem] = []
        try:
            runs.append(RunConfig.model_validate(cell))
        except ValidationError as error:
            problems += problems_in(error, model=RunConfig, data=cell)
        if check is not None:
            problems += check.problems(RunConfig, cell)
        for problem in problems:
            moved = expansion.in_file(problem, position)
            located.setdefault((moved.path, moved.message), moved)
    return runs, list(located.values())


def _collect_error(problems: list[Problem], document: Document) -> ConfigError:
    """The problems of a file as an error, in the order of its lines."""
    located = [locate_problem(problem, document) for problem in problems]
    return ConfigError(sorted(located, key=lambda problem: (problem.line or 0, problem.column or 0)))


def locate_problem(problem: Problem, document: Document) -> Problem:
    """The problem with the line of its path, or of the nearest existing parent."""
    line, column = document.position(resolve(document.data, problem.path)) or (None, None)
    return problem.located(file=document.file, line=line, column=column)
