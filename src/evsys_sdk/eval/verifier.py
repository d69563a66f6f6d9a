"""Verifiers: one completion in, one reward out. The reward trains in RL and is the score in evaluation.

A custom verifier is a function or a class, sync or async; the second half of this module lists the accepted signatures.

    @register_verifier("near")
    def near(completion, expected, *, tolerance=0.1):
        return float(abs(float(completion) - expected) <= tolerance)

    verifier = build_verifier(InProcessVerifier("near", expected=3.14, params={"tolerance": 0.01}))
    result = await verifier(VerifierInput(prompt="What is pi?", completion="3.1416"))

A verifier that raises, or that returns anything but a finite number, is an error: a sample that could not be scored
must never look like a bad answer. `VerificationResult.info` explains the reward.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, SupportsFloat

from ..config.base import Strict
from ..config.building import build_extension, check_params
from ..config.specs import VerifierSpec
from ..data.chat import text_of
from ..data.types import E2BVerifier, HarborTask, InProcessVerifier, LLMJudgeVerifier, Message, VerifierPayload
from ..errors import MISSING, EvalError, EvsysError, show, suggest
from ..protocols import VerificationResult
from ..registry import Extension, get_verifier
from ..training.blocking import run_blocking

if TYPE_CHECKING:
    from ..rollouts.environment import Environment
    from ..rollouts.rollout import Rollout


@dataclass(frozen=True, slots=True)
class VerifierInput:
    """The input of a verifier."""

    prompt: str
    completion: str
    """The text of the last answer."""
    messages: list[Message] = field(default_factory=list[Message])
    """The whole conversation, for verifiers that read more than the last answer."""
    expected: Any = None
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    task: HarborTask | None = None
    environment: Environment | None = None
    """The environment of the rollout, still running."""


class BaseVerifier[C: Strict]:
    """Keeps the validated params as `cfg`; a subclass implements `verify` with parameters of `INPUT_FIELDS`."""

    name: ClassVar[str]
    Config: ClassVar[type[Strict]]

    def __init__(self, **params: Any) -> None:
        self.cfg: C = self.Config(**params)  # pyright: ignore[reportAttributeAccessIssue]  # Config is C by convention

    def __init_subclass__(cls) -> None:
        """Let `verify` be called with `prompt`, `completion` and `target`, even if it takes fewer parameters."""
        super().__init_subclass__()
        if "verify" in cls.__dict__:
            cls.verify = _accept_documented(cls.__dict__["verify"])  # pyright: ignore[reportAttributeAccessIssue]


@dataclass(frozen=True, slots=True)
class BuiltVerifier:
    """A verifier with its params, callable on an input."""

    name: str
    call: Call
    params: Mapping[str, Any]
    expected: Any = MISSING
    """The expected answer of the task's spec; without one, that of the input."""

    async def __call__(self, request: VerifierInput) -> VerificationResult:
        """The reward, or an error that names the verifier and the task."""
        expected = request.expected if self.expected is MISSING else self.expected
        request = replace(request, params=self.params, expected=expected)
        place = f"verifier '{self.name}'" + (f" on task '{request.task.task_id}'" if request.task else "")
        try:
            answer = self.call(request)
            if inspect.isawaitable(answer):
                answer = await answer
        except EvalError as error:
            raise EvalError(f"{place}: {error}") from error
        except EvsysError:  # e.g. refused credentials, which are not an error of the verifier
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            raise EvalError(f"{place} failed: {reason}. Correct it, or run it again if that may pass.") from error
        return _as_result(answer, place)


def _accept_documented(verify: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `verify`: drop arguments that it does not take, and fill in defaults for missing ones."""
    absent: dict[str, Any] = {"messages": [], "target": None, "task": None, "environment": None}
    parameters = [name for name in inspect.signature(verify).parameters if name != "self"]

    @wraps(verify)
    def take(self: Any, **arguments: Any) -> Any:
        if unknown := set(arguments) - {*parameters, "prompt", "completion", "target"}:
            raise TypeError(
                f"verify() takes no '{min(unknown)}'; it takes prompt, completion, target and {parameters}."
            )
        result = verify(self, **{name: arguments.get(name, absent.get(name)) for name in parameters})
        return run_blocking(lambda: result) if inspect.iscoroutine(result) and not _in_event_loop() else result

    return take


def _in_event_loop() -> bool:
    """Whether the caller is in an event loop; otherwise the call blocks and returns the result."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def build_verifier(what: VerifierPayload | VerifierSpec | str) -> BuiltVerifier:
    """The verifier of a task's spec, a `{kind, params}` block or a name."""
    name, params, expected = _parts(what)
    return BuiltVerifier(name, prepare(name, get_verifier(name), params), params, expected)


async def verify_rollout(task: HarborTask, rollout: Rollout, environment: Environment | None) -> VerificationResult:
    """The `verify` of a rollout engine: the reward of the task's verifier."""
    return await build_verifier(task.verifier)(input_of(task, rollout, environment))


def input_of(task: HarborTask, rollout: Rollout, environment: Environment | None = None) -> VerifierInput:
    """The verifier input of a rollout."""
    from ..rollouts.rollout import opening

    return VerifierInput(
        prompt=text_of(task.instruction),
        completion=rollout.completion,
        # A stopped agent returned no conversation, but its turns were recorded.
        messages=rollout.messages or [*opening(task), *(turn.message for turn in rollout.turns)],
        expected=getattr(task.verifier, "expected", None),
        task=task,
        environment=environment,
    )


def _parts(what: VerifierPayload | VerifierSpec | str) -> tuple[str, Mapping[str, Any], Any]:
    """Registered name, params, and the expected answer if the spec has one."""
    match what:
        case InProcessVerifier():
            return what.fn_name, what.params, what.expected
        case LLMJudgeVerifier():
            return "llm_judge", {"judge_model": what.judge_model, "rubric": what.rubric}, MISSING
        case E2BVerifier():
            tests = {"dockerfile": what.dockerfile, "test_sh": what.test_sh, "test_state_py": what.test_state_py}
            return "e2b", tests, MISSING
        case str():
            return what, {}, MISSING
        case _:
            return what.kind, what.params, MISSING


def _as_result(answer: Any, place: str) -> VerificationResult:
    result = answer if isinstance(answer, VerificationResult) else VerificationResult(answer)
    reward: Any = result.reward
    try:
        # Accepts numbers of numpy and torch, but not text that looks like a number.
        number = float(reward) if isinstance(reward, SupportsFloat) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        remedy = "Return a finite number, or a VerificationResult with one"
        raise EvalError(f"{place} returned {show(reward)} as the reward. {remedy}.")
    return VerificationResult(number, result.info)


# The accepted signatures of verifiers, inspected once per verifier.
#
#     class with verify(*, prompt, completion, target)   built with its params; parameters by name, see INPUT_FIELDS
#     fn(model_output, expected, params)                  the third parameter receives all params as a dict
#     fn(completion, expected, **params)                  every param is a keyword
#     fn(completion, expected, *, tolerance=0.1)          the same, with the params spelled out
#     fn(*, prompt, completion, target)                   parameters by name
#
# A function may also have parameters with the names of input fields: `environment`, `messages`, `prompt`, `task`.

type Call = Callable[[VerifierInput], Any]

INPUT_FIELDS: dict[str, str] = {
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
"""Name of a verifier's parameter -> field of the input."""

_DOCUMENTED = ("prompt", "completion", "target")
_MAPPING_NAMES = ("params", "_params", "_")
_MAPPING_TYPE = re.compile(r"(?:\w+\.)*(?:dict|Dict|\w*Mapping)\b")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def prepare(name: str, extension: Extension, params: Mapping[str, Any]) -> Call:
    """`extension` with its params, as a function of the input; an unsupported signature is refused."""
    what, place = f"verifier '{name}'", f"verifier '{name}': params"
    if not isinstance(extension, type) and not hasattr(extension, "verify"):
        return _function(name, extension, check_params(extension, params, path=place))
    instance: Any = extension
    if isinstance(extension, type):
        instance = build_extension(extension, params, what=what, path=place)
    if callable(getattr(instance, "verify", None)):
        return _call_by_name(name, instance.verify, {})
    if callable(instance):
        return _function(name, instance, {})
    raise EvalError(
        f"verifier '{name}' has no method 'verify'. Write verify(self, *, prompt, completion, target) -> float."
    )


def _call_by_name(name: str, function: Callable[..., Any], params: dict[str, Any]) -> Call:
    parameters = _parameters(name, function)
    keywords = _keywords(name, parameters, params)
    inputs = _needed_inputs(name, parameters, keywords)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        inputs = list(dict.fromkeys([*inputs, *_DOCUMENTED]))
    return lambda request: function(**keywords, **_read_inputs(inputs, request))


def _function(name: str, function: Callable[..., Any], params: dict[str, Any]) -> Call:
    parameters = _parameters(name, function)
    positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    takes_any_number = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
    if not positional and not takes_any_number:
        return _call_by_name(name, function, params)
    as_mapping = takes_any_number or (len(positional) > 2 and _is_mapping(positional[2]))
    leading = 3 if as_mapping else min(2, len(positional))
    others = [parameter for parameter in parameters if parameter not in positional[:leading]]
    keywords = {} if as_mapping else _keywords(name, others, params)
    inputs = _needed_inputs(name, others, keywords)

    def call(request: VerifierInput) -> Any:
        places = (request.completion, request.expected, dict(params))[:leading]
        return function(*places, **keywords, **_read_inputs(inputs, request))

    return call


def _parameters(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise EvalError(f"verifier '{name}' has no signature to read: {error}. Wrap it in a function.") from error


def _is_mapping(parameter: inspect.Parameter) -> bool:
    """Whether a third parameter receives all params as a mapping, by its name or annotation."""
    kind = parameter.annotation
    text = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
    return parameter.name in _MAPPING_NAMES or _MAPPING_TYPE.match(text) is not None


def _keywords(name: str, parameters: list[inspect.Parameter], params: dict[str, Any]) -> dict[str, Any]:
    """The params; refused if the function has no parameter for one of them."""
    names = [parameter.name for parameter in parameters if parameter.kind in _NAMED]
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        for key in params:
            if key not in names:
                hint = suggest(key, names) or f"It takes: {', '.join(names) or 'none'}."
                raise EvalError(f"verifier '{name}' has no param '{key}'. {hint}")
    return params


def _needed_inputs(name: str, parameters: list[inspect.Parameter], keywords: Mapping[str, Any]) -> list[str]:
    """The parameters that are read from the input for each call; a missing required param is refused."""
    inputs: list[str] = []
    for parameter in parameters:
        required = parameter.default is inspect.Parameter.empty
        if parameter.name in keywords or parameter.kind in _VARIABLE:
            continue
        is_input = parameter.kind in _NAMED and (parameter.name in INPUT_FIELDS)
        if is_input and (required or parameter.default is None):  # any other default marks a param of the verifier
            inputs.append(parameter.name)
        elif required:
            raise EvalError(
                f"verifier '{name}' needs '{parameter.name}'. Add it to the params of its spec, or call the third "
                f"parameter 'params' to receive all of them. Known inputs: {', '.join(INPUT_FIELDS)}."
            )
    return inputs


def _read_inputs(names: list[str], request: VerifierInput) -> dict[str, Any]:
    return {name: getattr(request, INPUT_FIELDS[name]) for name in names}
