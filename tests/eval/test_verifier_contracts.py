"""Every shape a verifier may have ends as the same thing: a reward that is a finite number, or an error with a name."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

import evsys_sdk
from evsys_sdk import InProcessVerifier, VerifierSpec, register_verifier, register_verifier_fn
from evsys_sdk.data.types import HarborTask
from evsys_sdk.errors import ConfigError, EvalError, UnknownNameError
from evsys_sdk.eval.verifier import VerifierInput, build_verifier, verify_rollout
from evsys_sdk.protocols import VerificationResult
from evsys_sdk.rollouts.rollout import Rollout, Turn

from .scoring import reward, score

GIVEN = VerifierInput("the question", "the answer", [{"role": "user", "content": "the question"}], expected="wanted")


def documented(model_output: str, expected: Any, params: dict[str, Any]) -> float:
    return float(model_output == expected) * params.get("worth", 1.0)


def annotated(output: str, wanted: Any, options: Mapping[str, Any]) -> float:
    return float(output == wanted) * options.get("worth", 1.0)


def all_keywords(completion: str, expected: Any, **params: Any) -> float:
    return float(completion == expected) * params.get("worth", 1.0)


def spelled_out(completion: str, expected: Any, worth: float = 1.0) -> float:
    return float(completion == expected) * worth


def keyword_only(completion: str, expected: Any, *, worth: float = 1.0) -> float:
    return float(completion == expected) * worth


def asking_by_name(*, prompt: str, completion: str, target: Any, worth: float = 1.0) -> float:
    assert prompt
    return float(completion == target) * worth


def anything(*args: Any) -> float:
    completion, expected, params = args
    return float(completion == expected) * params.get("worth", 1.0)


async def asynchronous(completion: str, expected: Any, worth: float = 1.0) -> VerificationResult:
    return VerificationResult(float(completion == expected) * worth, {"said": completion})


class WithVerify:
    class Config(BaseModel, extra="forbid"):
        worth: float = 1.0

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    def verify(self, *, prompt: str, completion: str, target: Any) -> VerificationResult:
        return VerificationResult(float(completion == target) * self.cfg.worth)


class WithAsyncVerify(WithVerify):
    async def verify(self, prompt: str, completion: str, target: Any) -> float:  # type: ignore[override]
        return float(completion == target) * self.cfg.worth


class WithOpenVerify(WithVerify):
    def verify(self, **given: Any) -> float:  # type: ignore[override]
        assert set(given) == {"prompt", "completion", "target"}
        return float(given["completion"] == given["target"]) * self.cfg.worth


class WithCall(WithVerify):
    verify = None  # type: ignore[assignment]

    def __call__(self, completion: str, expected: Any) -> float:
        return float(completion == expected) * self.cfg.worth


SHAPES = [
    documented,
    annotated,
    all_keywords,
    spelled_out,
    keyword_only,
    asking_by_name,
    anything,
    asynchronous,
    WithVerify,
    WithAsyncVerify,
    WithOpenVerify,
    WithCall,
    functools.partial(keyword_only),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: getattr(shape, "__name__", "partial"))
async def test_every_shape_is_called_as_its_signature_wants(shape: Any) -> None:
    register_verifier("mine")(shape)
    assert await reward("mine", "four", "four") == 1.0
    assert await reward("mine", "five", "four") == 0.0
    assert await reward("mine", "four", "four", worth=0.25) == 0.25


@pytest.mark.parametrize("register", [register_verifier, register_verifier_fn, evsys_sdk.register_verifier_fn])
async def test_the_older_name_of_the_decorator_is_the_same_decorator(register: Callable[..., Any]) -> None:
    @register("half")
    def half(completion: str, expected: Any) -> float:
        return 0.5

    assert evsys_sdk.get_verifier("half") is half
    assert await reward("half", "") == 0.5


async def test_a_function_can_ask_for_more_than_the_answer() -> None:
    arguments: dict[str, Any] = {}

    @register_verifier("curious")
    def curious(completion: str, expected: Any, *, messages: list[Any], task: Any, environment: Any = None) -> float:
        arguments.update(messages=messages, task=task, environment=environment)
        return 1.0

    place = object()
    verifier_input = VerifierInput("q", "a", [{"role": "user", "content": "q"}], task=None, environment=place)  # type: ignore[arg-type]
    await build_verifier("curious")(verifier_input)
    assert arguments == {"messages": verifier_input.messages, "task": None, "environment": place}


async def test_a_param_of_the_same_name_as_something_to_ask_for_stays_a_param() -> None:
    @register_verifier("named")
    def named(completion: str, expected: Any, *, task: str = "default") -> float:
        return float(task == "default") + 2 * float(task == "given")

    assert await reward("named", "") == 1.0
    assert await reward("named", "", None, task="given") == 2.0


async def test_the_mapping_of_params_cannot_be_changed_for_the_next_call() -> None:
    @register_verifier("greedy")
    def greedy(model_output: str, expected: Any, params: dict[str, Any]) -> float:
        return float(params.pop("once"))

    verifier = build_verifier(InProcessVerifier("greedy", None, {"once": 0.5}))
    assert (await verifier(GIVEN)).reward == (await verifier(GIVEN)).reward == 0.5


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        *((1, 1.0), (True, 1.0), (0.5, 0.5), (np.float32(0.5), 0.5), (np.array(0.5), 0.5), (-2, -2.0)),
        *((Decimal("0.5"), 0.5), (Fraction(1, 2), 0.5), (VerificationResult(1), 1.0)),
    ],
)
async def test_numbers_of_every_library_are_rewards(returned: Any, expected: float) -> None:
    register_verifier("numeric")(lambda completion, expected: returned)
    found = await reward("numeric", "")
    assert found == expected
    assert type(found) is float


@pytest.mark.parametrize(
    "returned",
    [
        *(math.nan, math.inf, -math.inf, None, "1.0", [1.0], {}, 1j, np.array([1.0, 2.0]), np.float64("nan"), 10**400),
        *(VerificationResult(math.nan), VerificationResult("1")),  # type: ignore[arg-type]
    ],
    ids=repr,
)
async def test_what_is_not_a_finite_number_is_an_error_that_names_the_verifier(returned: Any) -> None:
    register_verifier("odd")(lambda completion, expected: returned)
    with pytest.raises(EvalError, match=r"verifier 'odd' on task 't1' returned .* as the reward\. Return a finite num"):
        await reward("odd", "")


async def test_a_verifier_that_raises_is_an_error_and_no_zero() -> None:
    @register_verifier("broken")
    def broken(completion: str, expected: Any) -> float:
        return {}["missing"]

    with pytest.raises(EvalError, match="verifier 'broken' on task 't1' failed: KeyError: 'missing'") as caught:
        await reward("broken", "")
    assert isinstance(caught.value.__cause__, KeyError)


async def test_errors_of_the_sdk_keep_their_type() -> None:
    @register_verifier("strict")
    async def strict(completion: str, expected: Any) -> float:
        raise evsys_sdk.EvsysAuthError("no key")

    with pytest.raises(evsys_sdk.EvsysAuthError, match="no key"):
        await reward("strict", "")


async def test_info_reaches_the_caller() -> None:
    register_verifier("talking")(asynchronous)
    assert (await score("talking", "four", "four")).info == {"said": "four"}


def test_an_unknown_name_suggests_the_closest() -> None:
    with pytest.raises(UnknownNameError, match="verifier 'exact_macth' is not registered; did you mean 'exact_match'"):
        build_verifier(InProcessVerifier("exact_macth", "x"))


@pytest.mark.parametrize(
    ("shape", "params", "message"),
    [
        (keyword_only, {"wroth": 1}, "has no param 'wroth'. Did you mean 'worth'"),
        (asking_by_name, {"zzz": 1}, "has no param 'zzz'. It takes: prompt, completion, target, worth"),
        (lambda completion, expected, tolerance: 1.0, {}, "needs 'tolerance'. Add it to the params"),
        (lambda completion, /, expected, q: 1.0, {}, "needs 'q'"),
        (type("NoVerify", (), {}), {}, "has no method 'verify'"),
        (
            type("NoParams", (), {"verify": lambda self, *, completion: 1.0}),
            {"a": 1},
            "cannot be built with the params",
        ),
        (
            type("Odd", (), {"verify": lambda self, *, nonsense: 1.0}),
            {},
            "needs 'nonsense'.*Known inputs: prompt, com",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_before_anything_is_scored(shape: Any, params: Any, message: str) -> None:
    register_verifier("mine")(shape)
    with pytest.raises((EvalError, ConfigError), match=message):
        build_verifier(InProcessVerifier("mine", None, params))


def test_params_are_checked_against_the_config_with_the_closest_key() -> None:
    with pytest.raises(ConfigError, match=r"verifier 'exact_match': params.ignore_cas.*Did you mean 'ignore_case'"):
        build_verifier(InProcessVerifier("exact_match", "x", {"ignore_cas": True}))
    register_verifier("mine")(WithVerify)
    with pytest.raises(ConfigError, match=r"verifier 'mine': params.worth: should be a number"):
        build_verifier(InProcessVerifier("mine", "x", {"worth": "much"}))


async def test_a_spec_without_its_own_answer_takes_that_of_the_input() -> None:
    verifier = build_verifier(VerifierSpec(kind="exact_match", params={"ignore_case": True}))
    assert (await verifier(VerifierInput("q", "WANTED", expected="wanted"))).reward == 1.0
    by_name = build_verifier("exact_match")
    assert (await by_name(VerifierInput("q", "WANTED", expected="wanted"))).reward == 0.0
    of_the_task = build_verifier(InProcessVerifier("exact_match", "this"))
    assert (await of_the_task(VerifierInput("q", "this", expected="wanted"))).reward == 1.0


async def test_the_verify_of_an_engine_scores_each_rollout_by_its_own_task() -> None:
    verify = verify_rollout
    for expected, earned in (("4", 1.0), ("5", 0.0)):
        task = HarborTask("t1", "2+2?", InProcessVerifier("exact_match", expected))
        rollout = Rollout("t1", 0, "ok", None, [Turn({"role": "assistant", "content": "4"})])
        assert (await verify(task, rollout, None)).reward == earned  # type: ignore[arg-type]


async def test_a_rollout_that_was_stopped_is_scored_on_the_turns_it_has_made() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    task = HarborTask("t1", "find it", InProcessVerifier("tool_calls_match", ["search"]))
    turn = Turn({"role": "assistant", "content": "", "tool_calls": [call]})
    stopped = Rollout("t1", 0, "truncated", None, [turn], [])
    assert (await verify_rollout(task, stopped, None)).reward == 1.0  # type: ignore[arg-type]
