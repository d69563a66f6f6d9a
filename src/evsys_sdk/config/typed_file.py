"""A YAML file that is one settings model: read, checked, and every problem at its line.

policy = load_settings("gate.yaml", GatePolicy)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from ..errors import ConfigError, Problem
from .fields import resolve
from .problems import problems_in
from .yaml_text import read_yaml_file

if TYPE_CHECKING:
    from .base import Strict


def load_settings[M: Strict](path: str | Path, model: type[M]) -> M:
    """The settings in a file; all problems at once, each with its place."""
    document = read_yaml_file(Path(path))
    data = document.data
    if not isinstance(data, dict):
        hint = f"Its keys are {', '.join(model.model_fields)}."
        raise ConfigError(Problem("the file must hold a mapping of keys to values", file=document.file, hint=hint))
    fields = cast(dict[str, Any], data)
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        located: list[Problem] = []
        for problem in problems_in(error, model=model, data=fields):
            line, column = document.position(resolve(data, problem.path)) or (None, None)
            located.append(problem.located(file=document.file, line=line, column=column))
        raise ConfigError(sorted(located, key=lambda one: (one.line or 0, one.column or 0))) from None
