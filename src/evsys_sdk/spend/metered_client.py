"""A training client that reports its usage to the budget.

Recipes, evaluations, baselines, teachers and reference models use the one client of an arm, so all their computation is
counted here; predictions that a resumed scoring reads from disk cost nothing. Training tokens are counted when
submitted, because a step in flight cannot be cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..backends.client import Sample, SamplingClient, SamplingParams, TopLogprobs, TrainingClient
from ..config.prices import Tariff, TokenUsage

if TYPE_CHECKING:
    from ..backends.client import AdamParams, Capabilities, ForwardBackwardOutput, OptimStepOutput
    from ..backends.datum import Datum, Floats
    from ..backends.future import Operation
    from ..backends.losses import LossCallable


type Count = Callable[[TokenUsage], None]


class MeteredSampler:
    """A sampler that reports its tokens."""

    def __init__(self, sampler: SamplingClient, count: Count, price: Tariff | None) -> None:
        self._sampler, self._count, self._price = sampler, count, price

    @property
    def ref(self) -> str:
        return self._sampler.ref

    @property
    def tokenizer(self) -> Any:
        return self._sampler.tokenizer

    def sample(self, prompt: Sequence[int], num_samples: int, params: SamplingParams) -> Operation[list[Sample]]:
        # Counted afterwards: answer lengths are not known before.
        def count(samples: list[Sample]) -> list[Sample]:
            self._count(TokenUsage(len(prompt), sum(len(sample.tokens) for sample in samples)))
            return samples

        return self._sampler.sample(prompt, num_samples, params).then(count)

    def cost_of(self, usage: TokenUsage) -> float | None:
        """The cost of a usage of this sampler; None without a price."""
        cost = None if self._price is None else self._price.of(usage)
        return None if cost is None else float(cost)

    def logprobs(self, tokens: Sequence[int]) -> Operation[Floats]:
        self._count(TokenUsage(len(tokens), 0))
        return self._sampler.logprobs(tokens)

    def topk_logprobs(self, tokens: Sequence[int], k: int, *changes: Any) -> Operation[TopLogprobs]:
        self._count(TokenUsage(len(tokens), 0))
        return self._sampler.topk_logprobs(tokens, k, *changes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


class MeteredClient:
    """A training client that reports its tokens and those of its samplers."""

    def __init__(self, client: TrainingClient, count: Count, price: Tariff | None = None) -> None:
        self._client, self._count, self._price = client, count, price
        self.on_batch: Callable[[Sequence[Datum]], None] | None = None
        """Called with each training batch."""
        self.on_load: Callable[[str], None] | None = None
        """Called with the reference of loaded weights."""
        self.saved: set[str] = set()
        """References of weights saved through this client."""

    @property
    def model_name(self) -> str:
        return self._client.model_name

    @property
    def tokenizer(self) -> Any:
        return self._client.tokenizer

    @property
    def capabilities(self) -> Capabilities:
        return self._client.capabilities

    def forward(
        self, data: Sequence[Datum], loss_fn: str = "cross_entropy", loss_fn_config: Mapping[str, Any] | None = None
    ) -> Operation[ForwardBackwardOutput]:
        self._count(TokenUsage(_size(data), 0))
        return self._client.forward(data, loss_fn, loss_fn_config)

    def forward_backward(
        self, data: Sequence[Datum], loss_fn: str, loss_fn_config: Mapping[str, Any] | None = None
    ) -> Operation[ForwardBackwardOutput]:
        self._count(self._usage_of(data, loss_fn))
        if self.on_batch is not None:
            self.on_batch(data)
        # After `on_batch`: the record names the batch before it is trained on, even if the process is killed.
        return self._client.forward_backward(data, loss_fn, loss_fn_config)

    def forward_backward_custom(self, data: Sequence[Datum], loss_fn: LossCallable) -> Operation[ForwardBackwardOutput]:
        self._count(self._usage_of(data, None))
        if self.on_batch is not None:
            self.on_batch(data)
        return self._client.forward_backward_custom(data, loss_fn)

    def optim_step(self, adam: AdamParams) -> Operation[OptimStepOutput]:
        return self._client.optim_step(adam)

    def save_state(self, name: str) -> Operation[str]:
        def remember(ref: str) -> str:
            self.saved.add(ref)
            return ref

        return self._client.save_state(name).then(remember)

    def load_state(self, ref: str, *, with_optimizer: bool = True) -> Operation[None]:
        if self.on_load is not None:
            self.on_load(ref)
        return self._client.load_state(ref, with_optimizer=with_optimizer)

    def sampler(self, name: str | None = None) -> Operation[SamplingClient]:
        return self._client.sampler(name).then(self._watch)

    def open_sampler(self, ref: str) -> Operation[SamplingClient]:
        return self._client.open_sampler(ref).then(self._watch)

    def close(self) -> None:
        self._client.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)  # other methods of this backend's client

    def _watch(self, sampler: SamplingClient) -> SamplingClient:
        return MeteredSampler(sampler, self._count, self._price)

    def _usage_of(self, data: Sequence[Datum], loss_fn: str | None) -> TokenUsage:
        """The tokens of a backward pass; a client may report its own count."""
        # Some losses take several passes or send more than the data; their client knows the billed amount.
        usage_of = getattr(self._client, "usage_of", None)
        return usage_of(data, loss_fn) if usage_of else TokenUsage(0, 0, trained_tokens=_size(data))


def _size(data: Sequence[Datum]) -> int:
    return sum(len(datum.tokens) for datum in data)
