"""Load and check a config file, with the line of each problem."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from pydantic import ValidationError

from ...config import ExperimentConfig, Metadata
from ...config.load import load_document, locate_problem
from ...config.matrix import expand_file
from ...config.space import expand_space
from ...config.yaml_text import Document, read_yaml_file
from ...errors import ConfigError, EvsysError, Problem, suggest
from ...paths import is_project, project_root
from ...registry import get_callback
from ...training.callback import HOOKS, Callback
from ..benchmark_plan import benchmark_problems

if TYPE_CHECKING:
    from .report import CheckReport


_NOT_FOUND = re.compile("there is no such|is not registered|is not known|cannot import")

type Adapt = Callable[[ExperimentConfig], ExperimentConfig]


class ConfigCheck(Protocol):
    """The signature of `check_config`."""

    def __call__(self, config: ExperimentConfig, *, kinds: bool) -> CheckReport: ...


def load_checked(
    path: str | Path, check: ConfigCheck, *, dry: bool, adapt: Adapt | None
) -> tuple[ExperimentConfig, CheckReport]:
    """Load and check a config; return it with its report, or raise ConfigError with all problems together."""
    document = read_yaml_file(Path(path))
    known: Sequence[Problem] = ()
    try:
        config = load_document(document, deep=True, dry=dry)
    except ConfigError as error:
        known = error.problems
        try:
            config = load_document(document)
        except ConfigError:  # the config is malformed, so that only its benchmarks can be checked further
            raise _all_problems(document, None, known, _benchmarks(document)) from None
    config = adapt(config) if adapt is not None and not known else config
    report = check(config, kinds=False)
    if known or report.problems:
        raise _all_problems(document, config, known, report.problems)
    report.warnings = [locate_problem(one, document) for one in _in_file(document, config, report.warnings)]
    return config, report


def _all_problems(
    document: Document, config: ExperimentConfig | None, known: Sequence[Problem], found: Iterable[Problem]
) -> ConfigError:
    """Join problems in the order of the file; drop new ones that a known problem at an overlapping place may cause."""
    known, found = _hint_at_project(document, known), _hint_at_project(document, found)
    wrong = {problem.path for problem in known if problem.path}
    located = [locate_problem(problem, document) for problem in _in_file(document, config, found)]
    new = [one for one in located if not any(_overlap(one.path, path) for path in wrong)]
    return ConfigError(sorted([*known, *new], key=lambda one: (one.line or 0, one.column or 0)))


def _hint_at_project(document: Document, problems: Iterable[Problem]) -> list[Problem]:
    """Extend the hints of "not found" problems if the file belongs to another project than the working directory."""
    home = project_root(Path(document.file or ".").absolute().parent)
    if home == project_root() or not is_project(home):
        return list(problems)
    said = f" This file belongs to the project in {home}, whose pyproject.toml was not read: start evsys there."
    return [replace(one, hint=f"{one.hint}{said}") if _NOT_FOUND.search(one.message) else one for one in problems]


def _overlap(one: str, other: str) -> bool:
    """Whether two places are equal or one contains the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _in_file(document: Document, config: ExperimentConfig | None, problems: Iterable[Problem]) -> list[Problem]:
    """Move problems of expanded runs to the matrix or search space in the file."""
    data: Any = document.data
    if "run" in data:  # options of the command line turn `run` into `runs`
        return [replace(one, path=one.path.replace("runs[0]", "run", 1)) for one in problems]
    expansion = (expand_space(data, []) or expand_file(data, [])) if config is not None else None
    if expansion is None or config is None:
        return list(problems)
    names = [run.name for run in config.all_runs()]
    cells = {cell["name"]: position for cell, position in zip(expansion.cells, expansion.positions(), strict=True)}
    found: dict[tuple[str, str], Problem] = {}
    for problem in problems:
        moved = problem
        if problem.path.startswith("runs["):
            index, _, rest = problem.path.removeprefix("runs[").partition("]")
            position: Any = cells.get(names[int(index)])
            inside = replace(problem, path=rest.removeprefix("."))
            moved = problem if position is None else expansion.in_file(inside, position)
        found.setdefault((moved.path, moved.message), moved)
    return list(found.values())


def _benchmarks(document: Document) -> list[Problem]:
    """Problems with the benchmarks of a malformed config; none if `metadata` itself is malformed."""
    data: Any = document.data
    try:
        metadata = Metadata.model_validate(cast("dict[str, Any]", data).get("metadata") or {})
        return benchmark_problems(metadata)
    except (EvsysError, ValidationError, AttributeError):
        return []  # reported when the file was read


def callback_problems(config: ExperimentConfig) -> Iterator[Problem]:
    """Callbacks with unknown hooks (`on_...`), and classes without any hook."""
    for index, spec in enumerate(config.callbacks):
        try:
            found: Any = get_callback(spec.kind)
        except EvsysError:  # reported with the kinds of the config
            continue
        place = f"callbacks[{index}].kind"
        moments = [name for name in dir(found) if name.startswith("on_") and callable(getattr(found, name))]
        for name in moments:
            if name not in HOOKS:
                hint = suggest(name, HOOKS) or f"The moments are {', '.join(HOOKS)}."
                yield Problem(f"'{name}' of the callback is no moment of a run", place, spec.kind, hint)
        if isinstance(found, type) and not issubclass(found, Callback) and not moments:
            hint = f"Give it one of {', '.join(HOOKS)}."
            yield Problem("this callback observes nothing", place, spec.kind, hint)
