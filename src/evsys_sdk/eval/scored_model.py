"""The models that a benchmark can score: a sampler of a training client, an inference client, or your own policy."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..backends.client import SamplingClient, SamplingParams
from ..config.base import expand_variables
from ..config.building import build_extension
from ..errors import ConfigError, EvalError, EvsysAuthError, MissingExtraError, Problem
from ..inference.adapter import as_chat_client
from ..registry import config_model, get_inference
from ..rollouts.policy import SamplerPolicy
from ..rollouts.rollout import Message, Policy, Turn

if TYPE_CHECKING:
    from ..inference.client import ChatClient, Completion
    from ..inference.renderer import Renderer


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling params."""

    max_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] | None = None
    """Stop sequences; by default the model's end of turn."""


type RetryRequest = Callable[[str, Callable[[], Awaitable[list[Completion]]]], Awaitable[list[Completion]]]
"""Calls a model and retries transient errors; the text names task and sample."""


@runtime_checkable
class ScoredModel(Protocol):
    """A model that gives each attempt its own policy."""

    @property
    def ref(self) -> str:
        """Name of the weights; predictions of different weights are never mixed."""
        ...

    def policy(self, sampling: Sampling, task_id: str, sample: int) -> Policy:
        """The policy for one attempt, with a seed derived from it."""
        ...


@dataclass(frozen=True, slots=True)
class SamplerModel:
    """A frozen sampler of a training client."""

    sampler: SamplingClient
    renderer: Renderer
    context_length: int
    ref: str

    def policy(self, sampling: Sampling, task_id: str, sample: int) -> Policy:
        params = SamplingParams(sampling.max_tokens, sampling.temperature, stop=sampling.stop)
        policy = SamplerPolicy(self.sampler, self.renderer, params, self.context_length, sampling.seed)
        # A separate seed: with the seed of a rollout, a benchmark could repeat the samples of training.
        return policy.with_seed("benchmark", task_id, sample)


@dataclass(frozen=True, slots=True)
class ClientModel:
    """A model behind an inference client."""

    client: ChatClient
    ref: str
    retry: RetryRequest | None = None
    refusals: list[Exception] = field(default_factory=list[Exception])
    """Errors that every further request would meet, such as refused credentials; the first one ends the scoring."""

    def policy(self, sampling: Sampling, task_id: str, sample: int) -> Policy:
        # Not `hash`, whose value for a text differs between processes.
        digest = hashlib.blake2b(repr((sampling.seed, task_id, sample)).encode(), digest_size=4).digest()
        seed = int.from_bytes(digest) >> 1  # some servers take signed integers only
        return _ClientPolicy(self, sampling, seed, f"task '{task_id}', sample {sample + 1}")


@dataclass(frozen=True, slots=True)
class _ClientPolicy:
    model: ClientModel
    sampling: Sampling
    seed: int
    what: str

    async def act(self, messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] | None = None) -> Turn:
        sampling = self.sampling

        async def complete() -> list[Completion]:
            return await self.model.client.complete(
                list(messages),
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                stop=None if sampling.stop is None else list(sampling.stop),
                tools=tools,
                seed=self.seed,
            )

        if self.model.refusals:  # queued attempts send no request
            raise self.model.refusals[0]
        try:
            retry = self.model.retry
            [completion] = await (complete() if retry is None else retry(self.what, complete))
        except (EvsysAuthError, MissingExtraError) as error:
            self.model.refusals.append(error)
            raise
        return Turn(
            message=completion.message,
            stop_reason="length" if completion.stop_reason == "length" else "stop",
            input_tokens=completion.usage.input_tokens or 0,
            output_tokens=completion.usage.output_tokens or 0,
            cost_usd=completion.cost_usd,
        )


@dataclass(frozen=True, slots=True)
class _FixedPolicy:
    fixed: Policy
    ref: str

    def policy(self, sampling: Sampling, task_id: str, sample: int) -> Policy:
        return self.fixed


def as_scored_model(what: Any, *, ref: str | None = None) -> ScoredModel:
    """Wrap a client or policy as a `ScoredModel`; `ref` names the model."""
    if isinstance(what, ScoredModel):
        return what
    name = ref or str(getattr(what, "name", type(what).__name__))
    if callable(getattr(what, "act", None)):
        return _FixedPolicy(what, name)
    if hasattr(what, "complete") or hasattr(what, "generate"):
        model = getattr(what, "model", None)
        return ClientModel(as_chat_client(what), ref or (f"{name}:{model}" if model else name))
    raise EvalError(
        f"{type(what).__name__} cannot be scored. "
        "Give an inference client (generate), a policy (act) or a SamplerModel."
    )


def open_client(kind: str, params: Mapping[str, Any], *, path: str = "params") -> Any:
    """Build a registered inference client; an error names the invalid param."""
    return build_extension(
        get_inference(kind), expand_variables(dict(params)), what=f"inference client '{kind}'", path=path
    )


_SPELLINGS = {
    "model_name": ("model", "model_name", "base_model"),
    "adapter_path": ("adapter_path", "adapter", "checkpoint"),
    "checkpoint_path": ("checkpoint_path", "checkpoint", "model_path"),
}
"""Name of an option of the command line -> names of the param in clients."""


def client_params(
    kind: str, options: Mapping[str, str | None], extra: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Translate options of the command line to the params of a client.

    Weights that the client cannot load are refused. A model name that it does not take is only a label.
    """
    takes = _param_names(get_inference(kind))
    params = dict(extra or {})
    chosen: dict[str, str] = {}
    for name, value in options.items():
        if value is None:
            continue
        flag = f"--{name.replace('_', '-')}"
        accepted = [spelling for spelling in _SPELLINGS[name] if takes is None or spelling in takes]
        if accepted and accepted[0] in chosen:
            message = f"'{kind}' loads one set of weights, and {chosen[accepted[0]]} already names one"
            raise ConfigError(Problem(message, path=flag, value=value, hint="Keep one of the two."))
        if accepted:
            params[accepted[0]], chosen[accepted[0]] = value, flag
        elif name != "model_name":
            hint = f"Leave it out; '{kind}' takes: {', '.join(takes or ()) or 'no params'}."
            raise ConfigError(
                Problem(f"inference client '{kind}' has no use for it", path=flag, value=value, hint=hint)
            )
    return params


def _param_names(factory: Any) -> list[str] | None:
    """The param names of a client; None if it takes any."""
    model = config_model(factory)
    if model is not None:
        return list(model.model_fields)
    params = inspect.signature(factory).parameters
    return None if any(param.kind is param.VAR_KEYWORD for param in params.values()) else list(params)
