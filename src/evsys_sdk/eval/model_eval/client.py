"""A registered inference client from what a command line says of it: its kind, and its weights."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ...config.problems import problems_in
from ...errors import ConfigError, Problem
from ...registry import config_model, get_inference

_SPELLINGS = {
    "model_name": ("model", "model_name", "base_model"),
    "adapter_path": ("adapter_path", "adapter"),
    "checkpoint_path": ("checkpoint_path", "checkpoint", "model_path"),
}
"""What the command line calls a param -> what clients call it."""


def client_params(kind: str, given: Mapping[str, str | None], extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The params of a client under the names it uses.

    Weights that it cannot load are refused. A model's name that it does not take is a label: it has only one model.
    """
    factory = get_inference(kind)
    takes = _param_names(factory)
    params = dict(extra or {})
    for name, value in given.items():
        known = [spelling for spelling in _SPELLINGS[name] if takes is None or spelling in takes]
        if value is not None and known:
            params[known[0]] = value
        elif value is not None and name != "model_name":
            message = f"inference client '{kind}' has no use for it"
            hint = f"Leave it out; '{kind}' takes: {', '.join(takes or ()) or 'no params'}."
            raise ConfigError(Problem(message, path=f"--{name.replace('_', '-')}", value=value, hint=hint))
    model = config_model(factory)
    if model is not None:
        try:
            model.model_validate(params)
        except ValidationError as error:
            raise ConfigError(problems_in(error, model=model, data=params, at=("inference-params",))) from None
    return params


def build_client(kind: str, params: Mapping[str, Any]) -> Any:
    """The client; one that cannot be built from these params says why."""
    factory = get_inference(kind)
    try:
        return factory(**params)
    except TypeError as error:
        message = f"inference client '{kind}' cannot be made: {error}"
        raise ConfigError(Problem(message, value=dict(params), hint="Correct its params.")) from error


def _param_names(factory: Any) -> list[str] | None:
    """What a client can be given; None where it takes anything."""
    model = config_model(factory)
    if model is not None:
        return list(model.model_fields)
    found = inspect.signature(factory).parameters
    return None if any(one.kind is one.VAR_KEYWORD for one in found.values()) else list(found)
