"""The protocol between recipes and weights: one training client, on every backend.

Every call returns an `Operation` at once and the backend works through them in order, so a recipe can submit a backward
pass and an optimiser step together. Losses are **sums over tokens**; recipes normalise through weights and advantages,
so that a learning rate means the same everywhere.
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
    """Which model to prepare, and how: the run's model config, with what recipe and seed decide."""

    name: str
    load_checkpoint_path: str | None = None
    """Continue from here, optimizer included."""
    init_from_checkpoint: str | None = None
    """Start from these weights with a fresh optimizer."""
    renderer_name: str | None = None
    lora_rank: int = 32
    seed: int = 0


def start_of(model: Any) -> tuple[str | None, bool]:
    """The checkpoint that a model starts from, if any, and whether its optimizer is taken over as well."""
    resumed, initial = getattr(model, "load_checkpoint_path", None), getattr(model, "init_from_checkpoint", None)
    if resumed and initial:
        raise BackendError(
            f"model.load_checkpoint_path ({resumed}) and model.init_from_checkpoint ({initial}) are both set. "
            "Keep the first to continue with the optimizer, the second to start afresh from the weights."
        )
    return resumed or initial, bool(resumed)


@dataclass(frozen=True, slots=True)
class AdamParams:
    """One optimiser step."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0
    """Largest norm of the gradient; 0 does not clip."""


class TokenFilter(Protocol):
    """Which tokens one sample may continue with, for instance those that a grammar allows."""

    def allowed(self) -> Sequence[int] | Ints:
        """The tokens that may come next; none ends the sample."""
        ...

    def accept(self, token: int) -> None:
        """Note the token that was sampled."""
        ...


type LogitsProcessor = Callable[[Sequence[int], Floats], Floats]
"""(all tokens so far, log-probabilities of the next one (V,)) -> changed log-probabilities, of any scale."""


type SampledToken = tuple[int, float, list[tuple[int, float]]]
"""A token, its log-probability, and the most probable tokens in its place if `top_logprobs` asked for them."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample."""

    max_tokens: int
    temperature: float = 1.0
    """0 takes the most probable token."""
    top_k: int = -1
    """Sample among this many tokens only; -1 among all."""
    top_p: float = 1.0
    """Sample among the most probable tokens that hold this much probability."""
    seed: int | None = None
    """The same seed gives the same samples; without one, the client counts on from its own."""
    stop: Sequence[str] | Sequence[int] | None = None
    """Stop after one of these texts or tokens, which stay in the sample; None stops at the end-of-text token, an empty
    list only at `max_tokens`."""
    top_logprobs: int = 0
    """Report this many of the most probable tokens at each place, from the pass that samples."""
    make_filter: Callable[[], TokenFilter] | None = None
    """Makes the filter of one sample; None allows all tokens. Log-probabilities are those without a filter."""
    logit_bias: Mapping[int, float] | None = None
    """Token -> added to its logit before a token is chosen. Log-probabilities are those without it."""
    processors: Sequence[LogitsProcessor] = ()
    """Applied in this order, after `logit_bias`. Log-probabilities are those without them."""
    on_token: Callable[[SampledToken], bool] | None = None
    """Called on the sampler's thread with each token of the only sample as it is chosen; False ends the sample there.
    Backends that sample on another machine do not call it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One continuation."""

    tokens: list[int]
    logprobs: list[float]
    """Of each token, under the model at temperature 1."""
    stop_reason: Literal["stop", "length"]
    top: TopLogprobs | None = None
    """The most probable tokens at each place, if `top_logprobs` asked for them."""


@dataclass(frozen=True, slots=True)
class ForwardBackwardOutput:
    """What a pass over the data gave."""

    loss: float
    """The sum over all tokens."""
    logprobs: list[Floats]
    """Of each datum's targets."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class OptimStepOutput:
    """What an optimiser step gave, e.g. `grad_norm` before clipping."""

    metrics: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """The most probable tokens at each position."""

    tokens: Ints
    """(N, K), most probable first."""
    logprobs: Floats
    """(N, K)"""
    given: Floats | None = None
    """Log-probabilities of the tokens that were scored, from the same pass, (N,)."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do; what it cannot is refused before anything is spent."""

    backend: str
    vocab_size: int
    context_length: int
    losses: frozenset[str]
    suggested_learning_rate: float
    """A good peak rate for an adapter on this model."""
    custom_loss: bool = True
    soft_targets: bool = True
    top_k_logprobs: int = 0
    """How many alternatives per position a sampler can report."""
    vision: bool = False
    summed_losses: bool = True
    """Whether losses are sums over tokens, as the protocol says."""
    snapshot_samplers: bool = True
    """Whether a sampler keeps the weights it was made with."""
    seeds: bool = True
    """Whether the same sampling seed gives the same samples."""
    filters: bool = False
    """Whether logits can be changed: by a `TokenFilter`, a bias or processors, with alternatives from the same pass."""


@runtime_checkable
class SamplingClient(Protocol):
    """A frozen copy of the weights, to sample from."""

    @property
    def ref(self) -> str:
        """How `open_sampler` finds it again; empty for one that was not given a name."""
        ...

    @property
    def tokenizer(self) -> Any: ...

    def sample(self, prompt: Sequence[int], num_samples: int, params: SamplingParams) -> Operation[list[Sample]]:
        """Continue a prompt several times."""
        ...

    def logprobs(self, tokens: Sequence[int]) -> Operation[Floats]:
        """Of each token given those before it, (N,); the first has none and is nan."""
        ...

    def topk_logprobs(
        self,
        tokens: Sequence[int],
        k: int,
        logit_bias: Mapping[int, float] | None = None,
        processors: Sequence[LogitsProcessor] = (),
        /,
    ) -> Operation[TopLogprobs]:
        """The most probable tokens for the place of each token; nothing precedes the first, so its row is nan.

        With a bias or processors, all of it is about the distribution that they make.
        """
        ...


@runtime_checkable
class TrainingClient(Protocol):
    """Weights that are being trained."""

    @property
    def model_name(self) -> str: ...
    @property
    def tokenizer(self) -> Any: ...
    @property
    def capabilities(self) -> Capabilities: ...

    def forward(
        self, data: Sequence[Datum], loss_fn: str = "cross_entropy", loss_fn_config: Mapping[str, Any] | None = None
    ) -> Operation[ForwardBackwardOutput]:
        """Loss and log-probabilities, without a gradient."""
        ...

    def forward_backward(
        self, data: Sequence[Datum], loss_fn: str, loss_fn_config: Mapping[str, Any] | None = None
    ) -> Operation[ForwardBackwardOutput]:
        """Add the gradient of a named loss to what has accumulated since the last optimiser step."""
        ...

    def forward_backward_custom(self, data: Sequence[Datum], loss_fn: LossCallable) -> Operation[ForwardBackwardOutput]:
        """The same for your own loss."""
        ...

    def optim_step(self, adam: AdamParams) -> Operation[OptimStepOutput]:
        """Apply the accumulated gradient and forget it."""
        ...

    def save_state(self, name: str) -> Operation[str]:
        """Store weights and optimizer under a name; returns the reference that `load_state` takes."""
        ...

    def load_state(self, ref: str, *, with_optimizer: bool = True) -> Operation[None]:
        """Go back to a stored state; without its optimizer, start the optimizer afresh."""
        ...

    def sampler(self, name: str | None = None) -> Operation[SamplingClient]:
        """A frozen copy of the weights as they are now; with a name it is stored and can be opened again."""
        ...

    def open_sampler(self, ref: str) -> Operation[SamplingClient]:
        """A sampler that was stored earlier."""
        ...

    def close(self) -> None:
        """Release everything; closing twice does nothing."""
        ...
