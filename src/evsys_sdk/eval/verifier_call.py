"""How a verifier wants to be called, read from its signature once. Nothing here is scored.

    class with verify(*, prompt, completion, target)   built with its params; asks by name, see ASKABLE
    fn(model_output, expected, params)                  the third parameter receives all params as a dict
    fn(completion, expected, **params)                  every param is a keyword
    fn(completion, expected, *, tolerance=0.1)          the same, with the params spelled out
    fn(*, prompt, completion, target)                   asks by name

A function may also ask by name for things that are no params of its own: `environment`, `messages`, `prompt`, `task`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..config.building import build_extension, check_params
from ..errors import EvalError, closest
from ..registry import Extension

if TYPE_CHECKING:
    from .verifier import VerifierInput

type Call = Callable[[VerifierInput], Any]

ASKABLE: dict[str, str] = {
    "prompt": "prompt",
    "completion": "completion",
    "model_output": "completion",
    "target": "expected",
    "expected": "expected",
    "messages": "messages",
    "params": "params",
    "task": "task",
    "environment": "environment",
}
"""What can be asked for by name -> the field of the input that it is."""

_DOCUMENTED = ("prompt", "completion", "target")
_MAPPING_NAMES = ("params", "_params", "_")
_MAPPING_TYPE = re.compile(r"(?:\w+\.)*(?:dict|Dict|\w*Mapping)\b")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def prepare(name: str, extension: Extension, params: Mapping[str, Any], *, extras: Mapping[str, Any]) -> Call:
    """`extension` with its params, as a function of the input; what does not fit together is refused here.

    `extras` are further things that can be asked for by name.
    """
    what, place = f"verifier '{name}'", f"verifier '{name}': params"
    if not isinstance(extension, type) and not hasattr(extension, "verify"):
        return _function(name, extension, check_params(extension, params, path=place), extras)
    instance: Any = extension
    if isinstance(extension, type):
        instance = build_extension(extension, params, what=what, path=place)
    if callable(getattr(instance, "verify", None)):
        return _asking_by_name(name, instance.verify, {}, extras)
    if callable(instance):
        return _function(name, instance, {}, extras)
    raise EvalError(
        f"verifier '{name}' has no method 'verify'. Write verify(self, *, prompt, completion, target) -> float."
    )


def _asking_by_name(name: str, function: Callable[..., Any], params: dict[str, Any], extras: Mapping[str, Any]) -> Call:
    parameters = _parameters(name, function)
    keywords = _keywords(name, parameters, params)
    asked = _still_needed(name, parameters, keywords, extras)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        asked = list(dict.fromkeys([*asked, *_DOCUMENTED]))
    return lambda given: function(**keywords, **_asked_for(asked, given, extras))


def _function(name: str, function: Callable[..., Any], params: dict[str, Any], extras: Mapping[str, Any]) -> Call:
    parameters = _parameters(name, function)
    positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    takes_any_number = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
    if not positional and not takes_any_number:
        return _asking_by_name(name, function, params, extras)
    as_mapping = takes_any_number or (len(positional) > 2 and _is_mapping(positional[2]))
    leading = 3 if as_mapping else min(2, len(positional))
    own = [parameter for parameter in parameters if parameter not in positional[:leading]]
    keywords = {} if as_mapping else _keywords(name, own, params)
    asked = _still_needed(name, own, keywords, extras)

    def call(given: VerifierInput) -> Any:
        places = (given.completion, given.expected, dict(params))[:leading]
        return function(*places, **keywords, **_asked_for(asked, given, extras))

    return call


def _parameters(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise EvalError(f"verifier '{name}' has no signature to read: {error}. Wrap it in a function.") from error


def _is_mapping(parameter: inspect.Parameter) -> bool:
    """Whether a third parameter means all params at once, by its name or by what it is annotated with."""
    kind = parameter.annotation
    text = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
    return parameter.name in _MAPPING_NAMES or _MAPPING_TYPE.match(text) is not None


def _keywords(name: str, own: list[inspect.Parameter], params: dict[str, Any]) -> dict[str, Any]:
    """The params, where the function has a place for each."""
    names = [parameter.name for parameter in own if parameter.kind in _NAMED]
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in own):
        for key in params:
            if key not in names:
                guess = closest(key, names)
                hint = f"Did you mean '{guess}'?" if guess else f"It takes: {', '.join(names) or 'none'}."
                raise EvalError(f"verifier '{name}' has no param '{key}'. {hint}")
    return params


def _still_needed(
    name: str, own: list[inspect.Parameter], keywords: Mapping[str, Any], extras: Mapping[str, Any]
) -> list[str]:
    """What has to be looked up in the input for each call; a required param that nobody gave is refused."""
    asked: list[str] = []
    for parameter in own:
        required = parameter.default is inspect.Parameter.empty
        if parameter.name in keywords or parameter.kind in _VARIABLE:
            continue
        known = parameter.kind in _NAMED and (parameter.name in ASKABLE or parameter.name in extras)
        if known and (required or parameter.default is None):  # any other default is a param of the verifier's own
            asked.append(parameter.name)
        elif required:
            raise EvalError(
                f"verifier '{name}' needs '{parameter.name}'. Add it to the params of its spec, or call the third "
                f"parameter 'params' to receive all of them. It can ask for: {', '.join([*ASKABLE, *extras])}."
            )
    return asked


def _asked_for(names: list[str], given: VerifierInput, extras: Mapping[str, Any]) -> dict[str, Any]:
    return {name: getattr(given, ASKABLE[name]) if name in ASKABLE else extras[name] for name in names}
