"""The protocol between recipes and weights: one training client, on every backend.

Every call immediately returns an `Operation`; the backend executes them in order, so a recipe can submit a backward
pass and an optimiser step together. Losses are **sums over tokens**; recipes normalise through weights and advantages,
so that learning rates are comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from ..errors import BackendError

if TYPE_CHECKING:
    from .datum import Datum, Floats, Ints
    from .future import Operation
    from .losses import LossCallable


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The model to prepare: the run's model config with the recipe's rank and the seed."""

    name: str
    load_checkpoint_path: str | None = None
    """Continue from this checkpoint, optimizer included."""
    init_from_checkpoint: str | None = None
    """Start from these weights with a new optimizer."""
    renderer_name: str | None = None
    lora_rank: int = 32
    seed: int = 0


def start_of(model: Any) -> tuple[str | None, bool]:
    """The initial checkpoint of a model, if any, and whether to load its optimizer."""
    resumed, initial = getattr(model, "load_checkpoint_path", None), getattr(model, "init_from_checkpoint", None)
    if resumed and initial:
        raise BackendError(
            f"model.load_checkpoint_path ({resumed}) and model.init_from_checkpoint ({initial}) are both set. "
            "Keep the first to continue with the optimizer, the second to start afresh from the weights."
        )
    return resumed or initial, bool(resumed)


@dataclass(frozen=True, slots=True)
class AdamParams:
    """Parameters of one optimiser step."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0
    """Maximum gradient norm; 0 disables clipping."""


class TokenFilter(Protocol):
    """The tokens that a sample may continue with, for instance by a grammar."""

    def allowed(self) -> Sequence[int] | Ints:
        """The tokens that may come next; empty ends the sample."""
        ...

    def accept(self, token: int) -> None:
        """Advance by a sampled token."""
        ...


type LogitsProcessor = Callable[[Sequence[int], Floats], Floats]
"""(tokens so far, next log-probabilities (V,)) -> changed log-probabilities, of any scale."""


type SampledToken = tuple[int, float, list[tuple[int, float]]]
"""A token, its log-probability, and the most probable tokens at its position if `top_logprobs` is set."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling options."""

    max_tokens: int
    temperature: float = 1.0
    """0 selects the most probable token."""
    top_k: int = -1
    """Sample among this many tokens only; -1 for all."""
    top_p: float = 1.0
    """Sample among the most probable tokens with this cumulative probability."""
    seed: int | None = None
    """The same seed gives the same samples; without one, the client counts its own."""
    stop: Sequence[str] | Sequence[int] | None = None
    """Stop after one of these texts or tokens, which stay in the sample; None stops at the end-of-text token, an empty
    list only at `max_tokens`."""
    top_logprobs: int = 0
    """Number of most probable tokens to report per position."""
    make_filter: Callable[[], TokenFilter] | None = None
    """Creates the filter of one sample; None allows all tokens. Log-probabilities exclude the filter."""
    logit_bias: Mapping[int, float] | None = None
    """Token -> value added to its logit before sampling. Log-probabilities exclude it."""
    processors: Sequence[LogitsProcessor] = ()
    """Applied in this order, after `logit_bias`. Log-probabilities exclude them."""
    on_token: Callable[[SampledToken], bool] | None = None
    """Called on the sampler's thread with each token of the only sample as it is chosen; False ends the sample there.
    Backends that sample on another machine do not call it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One continuation."""

    tokens: list[int]
    logprobs: list[float]
    """Log-probability of each token, at temperature 1."""
    stop_reason: Literal["stop", "length"]
    top: TopLogprobs | None = None
    """The most probable tokens at each position, if `top_logprobs` is set."""


@dataclass(frozen=True, slots=True)
class ForwardBackwardOutput:
    """The result of a pass over data."""

    loss: float
    """Sum over all tokens."""
    logprobs: list[Floats]
    """Log-probabilities of each datum's targets."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class OptimStepOutput:
    """The result of an optimiser step, e.g. `grad_norm` before clipping."""

    metrics: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """The most probable tokens at each position."""

    tokens: Ints
    """(N, K), most probable first."""
    logprobs: Floats
    """(N, K)"""
    given: Floats | None = None
    """Log-probabilities of the scored tokens, from the same pass, (N,)."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The features of a backend; unsupported ones are refused before anything is spent."""

    backend: str
    vocab_size: int
    context_length: int
    losses: frozenset[str]
    suggested_learning_rate: float
    """A good peak rate for an adapter on this model."""
    custom_loss: bool = True
    soft_targets: bool = True
    top_k_logprobs: int = 0
    """Maximum number of alternatives per position from a sampler."""
    vision: bool = False
    summed_losses: bool = True
    """Whether losses are sums over tokens, as the protocol requires."""
    snapshot_samplers: bool = True
    """Whether a sampler keeps the weights of its creation."""
    seeds: bool = True
    """Whether the same sampling seed gives the same samples."""
    filters: bool = False
    """Whether logits can be changed: by a `TokenFilter`, a bias or processors."""


@runtime_checkable
class SamplingClient(Protocol):
    """Frozen weights to sample from."""

    @property
    def ref(self) -> str:
        """The reference for `open_sampler`; empty for an unnamed one."""
        ...

    @property
    def tokenizer(self) -> Any: ...

    def sample(self, prompt: Sequence[int], num_samples: int, params: SamplingParams) -> Operation[list[Sample]]:
        """Sample several continuations of a prompt."""
        ...

    def logprobs(self, tokens: Sequence[int]) -> Operation[Floats]:
        """The log-probability of each token given its predecessors, (N,); the first is nan."""
        ...

    def topk_logprobs(
        self,
        tokens: Sequence[int],
        k: int,
        logit_bias: Mapping[int, float] | None = None,
        processors: Sequence[LogitsProcessor] = (),
        /,
    ) -> Operation[TopLogprobs]:
        """The most probable tokens at each position; the first row is nan.

        With a bias or processors, the result is their changed distribution.
        """
        ...


@runtime_checkable
class TrainingClient(Protocol):
    """Weights in training."""

    @property
    def model_name(self) -> str: ...
    @property
    def tokenizer(self) -> Any: ...
    @property
    def capabilities(self) -> Capabilities: ...

    def forward(
        self, data: Sequence[Datum], loss_fn: str = "cross_entropy", loss_fn_config: Mapping[str, Any] | None = None
    ) -> Operation[ForwardBackwardOutput]:
        """Loss and log-probabilities without a gradient."""
        ...

    def forward_backward(
        self, data: Sequence[Datum], loss_fn: str, loss_fn_config: Mapping[str, Any] | None = None
    ) -> Operation[ForwardBackwardOutput]:
        """Accumulate the gradient of a named loss."""
        ...

    def forward_backward_custom(self, data: Sequence[Datum], loss_fn: LossCallable) -> Operation[ForwardBackwardOutput]:
        """Accumulate the gradient of a custom loss."""
        ...

    def optim_step(self, adam: AdamParams) -> Operation[OptimStepOutput]:
        """Apply and reset the accumulated gradient."""
        ...

    def save_state(self, name: str) -> Operation[str]:
        """Store weights and optimizer under a name; returns the reference for `load_state`."""
        ...

    def load_state(self, ref: str, *, with_optimizer: bool = True) -> Operation[None]:
        """Load a stored state; without its optimizer, the optimizer is reset."""
        ...

    def sampler(self, name: str | None = None) -> Operation[SamplingClient]:
        """A frozen copy of the current weights; with a name it is stored and can be reopened."""
        ...

    def open_sampler(self, ref: str) -> Operation[SamplingClient]:
        """Open a stored sampler."""
        ...

    def close(self) -> None:
        """Release everything; closing twice has no effect."""
        ...
