"""Verifiers: one completion in, one reward out. The reward trains in RL and is the score in evaluation.

A verifier of your own is a function or a class, sync or async; `verifier_call.py` tells the shapes apart.

    @register_verifier("near")
    def near(completion, expected, *, tolerance=0.1):
        return float(abs(float(completion) - expected) <= tolerance)

    verifier = build_verifier(InProcessVerifier("near", expected=3.14, params={"tolerance": 0.01}))
    result = await verifier(VerifierInput(prompt="What is pi?", completion="3.1416"))

A verifier that raises, or that returns anything but a finite number, is an error: what could not be scored must never
look like a bad answer. Whatever the reward, `VerificationResult.info` says why.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, SupportsFloat

from ..config.base import Strict
from ..config.specs import VerifierSpec
from ..data.chat import text_of
from ..data.types import E2BVerifier, HarborTask, InProcessVerifier, LLMJudgeVerifier, Message, VerifierPayload
from ..errors import MISSING, EvalError, EvsysError, show
from ..inference.retry import call_with_retry_async
from ..protocols import VerificationResult
from ..registry import get_verifier
from .verifier_call import Call, prepare

if TYPE_CHECKING:
    from ..rollouts.engine import Verify
    from ..rollouts.environment import Environment
    from ..rollouts.rollout import Rollout

type Retry = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Runs an attempt at something remote, again if it fails for the moment, and gives back what it returned."""


@dataclass(frozen=True, slots=True)
class VerifierInput:
    """Everything a verifier may ask for."""

    prompt: str
    completion: str
    """The text of the last answer."""
    messages: list[Message] = field(default_factory=list[Message])
    """The whole conversation, for verifiers that look at more than its last answer."""
    expected: Any = None
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    task: HarborTask | None = None
    environment: Environment | None = None
    """Where the policy has worked, still running."""


class BaseVerifier[C: Strict]:
    """Keeps the validated params as `cfg`; a subclass implements `verify` and asks by name for what it needs."""

    name: ClassVar[str]
    Config: ClassVar[type[Strict]]

    def __init__(self, **params: Any) -> None:
        self.cfg: C = self.Config(**params)  # pyright: ignore[reportAttributeAccessIssue]  # Config is C by convention

    def __init_subclass__(cls) -> None:
        """Let `verify` be called as documented, by `prompt`, `completion` and `target`, whatever of it it asks for."""
        super().__init_subclass__()
        if "verify" in cls.__dict__:
            cls.verify = _take_documented(cls.__dict__["verify"])  # pyright: ignore[reportAttributeAccessIssue]


@dataclass(frozen=True, slots=True)
class BuiltVerifier:
    """A verifier that is ready to score: found, given its params, and called as its signature wants."""

    name: str
    call: Call
    params: Mapping[str, Any]
    expected: Any = MISSING
    """What a task's own spec expects; without one, the input says."""

    async def __call__(self, given: VerifierInput) -> VerificationResult:
        """The reward, or an error that names the verifier and the task."""
        expected = given.expected if self.expected is MISSING else self.expected
        given = replace(given, params=self.params, expected=expected)
        place = f"verifier '{self.name}'" + (f" on task '{given.task.task_id}'" if given.task else "")
        try:
            answer = self.call(given)
            if inspect.isawaitable(answer):
                answer = await answer
        except EvalError as error:
            raise EvalError(f"{place}: {error}") from error
        except EvsysError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            raise EvalError(f"{place} failed: {reason}. Correct it, or run it again if that may pass.") from error
        return _as_result(answer, place)


def _take_documented(verify: Callable[..., Any]) -> Callable[..., Any]:
    """`verify` with what it did not ask for dropped, and what a caller by hand cannot know filled in."""
    absent: dict[str, Any] = {"messages": [], "target": None, "task": None, "environment": None}
    absent |= {"retry": call_with_retry_async}
    asked = [name for name in inspect.signature(verify).parameters if name != "self"]

    @wraps(verify)
    def take(self: Any, **given: Any) -> Any:
        if unknown := set(given) - {*asked, "prompt", "completion", "target"}:
            raise TypeError(f"verify() takes no '{min(unknown)}'; it takes prompt, completion, target and {asked}.")
        return verify(self, **{name: given.get(name, absent.get(name)) for name in asked})

    return take


def build_verifier(
    what: VerifierPayload | VerifierSpec | str, *, retry: Retry = call_with_retry_async
) -> BuiltVerifier:
    """The verifier that a task's spec, a `{kind, params}` block or a name stands for.

    `retry` wraps every call of a judge's model.
    """
    name, params, expected = _parts(what)
    return BuiltVerifier(name, prepare(name, get_verifier(name), params, extras={"retry": retry}), params, expected)


def verify_with(*, retry: Retry = call_with_retry_async) -> Verify:
    """The `verify` of a rollout engine: each rollout is scored by the verifier that its task names."""

    async def verify(task: HarborTask, rollout: Rollout, environment: Environment | None) -> VerificationResult:
        verifier = build_verifier(task.verifier, retry=retry)
        return await verifier(input_of(task, rollout, environment))

    return verify


def input_of(task: HarborTask, rollout: Rollout, environment: Environment | None = None) -> VerifierInput:
    """What a verifier is told about a rollout."""
    from ..rollouts.rollout import opening

    return VerifierInput(
        prompt=text_of(task.instruction),
        completion=rollout.completion,
        # An agent that was stopped has handed over no conversation, but its turns were recorded.
        messages=rollout.messages or [*opening(task), *(turn.message for turn in rollout.turns)],
        expected=getattr(task.verifier, "expected", None),
        task=task,
        environment=environment,
    )


def _parts(what: VerifierPayload | VerifierSpec | str) -> tuple[str, Mapping[str, Any], Any]:
    """Registered name, params, and the expected answer where the spec has one."""
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
        # Numbers of numpy and torch are welcome, text that looks like one is not.
        number = float(reward) if isinstance(reward, SupportsFloat) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        wanted = "Return a finite number, or a VerificationResult with one"
        raise EvalError(f"{place} returned {show(reward)} as the reward. {wanted}.")
    return VerificationResult(number, result.info)
