"""Build extensions from their params; params that do not fit raise a ConfigError with their path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ..errors import ConfigError, Problem
from ..registry import config_model
from .checks.problems import problems_in


def build_extension(extension: Any, params: Mapping[str, Any], *, what: str, path: str = "params") -> Any:
    """Call a registered class with its params; `path` is their path in the config, `what` names the extension."""
    checked = check_params(extension, params, path=path)
    try:
        return extension(**checked)
    except ValidationError as error:  # of a model inside the class
        raise ConfigError(f"{what}: {error}") from error
    except TypeError as error:
        hint = "A class with params has __init__(self, **params), and a Config that describes them."
        raise ConfigError(Problem(f"{what} cannot be built with the params {checked}: {error}", hint=hint)) from error


def check_params(extension: Any, params: Mapping[str, Any], *, path: str = "params") -> dict[str, Any]:
    """The params, checked against the Config of an extension; unchecked without a Config."""
    model, checked = config_model(extension), dict(params)
    if model is not None:
        try:
            model.model_validate(checked)
        except ValidationError as error:
            raise ConfigError(problems_in(error, model=model, data=checked, at=(path,))) from error
    return checked
