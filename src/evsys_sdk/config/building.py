"""An extension from its params: what does not fit is refused with its place, never as somebody else's exception."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ..errors import ConfigError, Problem
from ..registry import config_model
from .checks.problems import problems_in


def build_extension(extension: Any, params: Mapping[str, Any], *, what: str, path: str = "params") -> Any:
    """Call a registered class with its params; `path` is where those stand, `what` says whose they are."""
    given = check_params(extension, params, path=path)
    try:
        return extension(**given)
    except ValidationError as error:  # of a model that the class keeps to itself
        raise ConfigError(f"{what}: {error}") from error
    except TypeError as error:
        takes = "A class that takes params has __init__(self, **params), and a Config that describes them."
        raise ConfigError(Problem(f"{what} cannot be made with the params {given}: {error}", hint=takes)) from error


def check_params(extension: Any, params: Mapping[str, Any], *, path: str = "params") -> dict[str, Any]:
    """The params, once they fit the Config that an extension declares; one without any takes what it takes."""
    model, given = config_model(extension), dict(params)
    if model is not None:
        try:
            model.model_validate(given)
        except ValidationError as error:
            raise ConfigError(problems_in(error, model=model, data=given, at=(path,))) from error
    return given
