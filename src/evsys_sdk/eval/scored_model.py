"""What a benchmark can score: a sampler of a model in training, any inference client, or a policy of your own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..backends.client import SamplingClient, SamplingParams
from ..errors import EvalError
from ..inference.adapter import as_chat_client
from ..rollouts.policy import SamplerPolicy
from ..rollouts.rollout import Message, Policy, Turn

if TYPE_CHECKING:
    from ..inference.client import ChatClient
    from ..inference.renderer import Renderer


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a model is asked."""

    max_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0


@runtime_checkable
class ScoredModel(Protocol):
    """A model that gives each attempt a policy of its own."""

    @property
    def ref(self) -> str:
        """Which weights these are; predictions of different ones are never mixed."""
        ...

    def policy(self, sampling: Sampling, task_id: str, sample: int) -> Policy:
        """The policy for one attempt, seeded by it."""
        ...


@dataclass(frozen=True, slots=True)
class SamplerModel:
    """A frozen sampler of a training client."""

    sampler: SamplingClient
    renderer: Renderer
    context_length: int
    ref: str

    def policy(self, sampling: Sampling, task_id: str, sample: int) -> Policy:
        params = SamplingParams(sampling.max_tokens, sampling.temperature)
        policy = SamplerPolicy(self.sampler, self.renderer, params, self.context_length, sampling.seed)
        return policy.seeded("benchmark", task_id, sample)


@dataclass(frozen=True, slots=True)
class ClientModel:
    """A model behind an inference client."""

    client: ChatClient
    ref: str

    def policy(self, sampling: Sampling, task_id: str, sample: int) -> Policy:
        digest = hashlib.blake2b(repr((sampling.seed, task_id, sample)).encode(), digest_size=4).digest()
        return _ClientPolicy(self.client, sampling, int.from_bytes(digest) >> 1)  # some servers want a signed one


@dataclass(frozen=True, slots=True)
class _ClientPolicy:
    client: ChatClient
    sampling: Sampling
    seed: int

    async def act(self, messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] | None = None) -> Turn:
        [completion] = await self.client.complete(
            list(messages),
            max_tokens=self.sampling.max_tokens,
            temperature=self.sampling.temperature,
            tools=tools,
            seed=self.seed,
        )
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
    """Anything that answers, as a benchmark wants it; `ref` says which model it is."""
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
