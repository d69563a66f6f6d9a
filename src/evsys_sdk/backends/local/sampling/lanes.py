"""Running samples: their requests, the choice of tokens, and stop conditions.

Every sample has its own random stream, from the seed of its request and its number. A token is chosen by inverting the
distribution function at the next random number. So a sample does not depend on the other samples of its batch, except
for rounding.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...checks import run_processors
from ...client import LogitsProcessor, Sample, SamplingParams, TokenFilter, TopLogprobs
from ...seeds import stream_of
from ...seeds import uniforms as uniforms_of
from ..base.packing import Ints

_BLOCK = 256
_MILD_BIAS = 30.0
"""Largest logit bias that may be applied to masses; float32 masses reach 87 nats below the best token."""


@dataclass(frozen=True, slots=True)
class SamplingLimits:
    """Limits of concurrent sampling."""

    lanes: int = 32
    """Maximum number of samples that are decoded at the same time."""
    cached_tokens: int = 65536
    """Cache positions for all running samples together; the prefix cache uses what they leave free."""
    tokens_at_once: int = 2048
    """Prompt tokens per prefill."""


@dataclass(slots=True)
class PromptTokens:
    """Number of prompt tokens that were computed, and that were reused from caches."""

    read: int = 0
    reused: int = 0


@dataclass(eq=False, slots=True)
class SampleCall:
    """One call of `sample`."""

    prompt: tuple[int, ...]
    num_samples: int
    params: SamplingParams
    seed: int
    owner: Any = None
    """The snapshot to sample from."""
    future: Future[list[Sample]] = field(default_factory=Future[list[Sample]])
    finished: dict[int, Sample] = field(default_factory=dict[int, Sample])
    text: Ints = field(init=False)
    """The prompt as an array, for comparisons."""
    bias: tuple[Tensor, Tensor] | None = None
    """Tokens and values of `params.logit_bias`; cached by `bias_of`."""

    def __post_init__(self) -> None:
        self.text = np.array(self.prompt, np.int64)

    @property
    def key(self) -> tuple[Any, tuple[int, ...]]:
        """Equal for requests with the same prompt and the same weights."""
        return self.owner, self.prompt

    def finish(self, number: int, sample: Sample) -> None:
        """Store a finished sample; the last one resolves the request."""
        self.finished[number] = sample
        if len(self.finished) == self.num_samples:
            with suppress(InvalidStateError):  # the client may be closed
                self.future.set_result([self.finished[index] for index in range(self.num_samples)])

    def fail(self, error: BaseException) -> None:
        """Resolve the request with an error, unless it is already resolved."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)


@dataclass(frozen=True, slots=True)
class Stops:
    """The stop tokens and stop texts of a request."""

    tokens: frozenset[int]
    texts: tuple[str, ...]
    tokenizer: Any

    @classmethod
    def of(cls, params: SamplingParams, tokenizer: Any, end_of_text: Sequence[int]) -> Stops:
        if params.stop is None:
            return cls(frozenset(end_of_text), (), tokenizer)
        texts = tuple(stop for stop in params.stop if isinstance(stop, str))
        tokens = frozenset(stop for stop in params.stop if not isinstance(stop, str))
        return cls(tokens, texts, tokenizer)

    def ends(self, tokens: Sequence[int]) -> bool:
        """Whether the last of these tokens completes a stop."""
        if tokens[-1] in self.tokens:
            return True
        if not self.texts:
            return False
        # A token is at least one byte of text, so a stop text that was just completed lies within this window.
        window = max(len(text.encode()) for text in self.texts) + 8
        tail = self.tokenizer.decode(list(tokens[-window:]), skip_special_tokens=False)
        return any(text in tail for text in self.texts)


@dataclass(eq=False, slots=True)
class Lane:
    """One running or waiting sample."""

    request: SampleCall
    number: int
    stops: Stops
    stream: int
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    stopped: bool = False
    filter: TokenFilter | None = None
    top: list[tuple[list[int], list[float]]] = field(default_factory=list[tuple[list[int], list[float]]])
    """The most probable tokens at each position, and their log-probabilities."""
    reported: int = 0
    """Number of tokens reported to `on_token`; a restart does not report them again."""

    @classmethod
    def of(cls, request: SampleCall, number: int, stops: Stops) -> Lane:
        lane = cls(request, number, stops, stream_of(request.seed, number))
        lane.restart()
        return lane

    @property
    def position(self) -> int:
        """Position of the next token to decode, which is the last token chosen."""
        return len(self.request.prompt) + len(self.tokens) - 1

    @property
    def read(self) -> Ints:
        """All decoded tokens: the prompt and the answer without its last token."""
        return np.concatenate([self.request.text, np.array(self.tokens[:-1], np.int64)])

    @property
    def longest(self) -> int:
        """Maximum number of positions that the sample may need."""
        return len(self.request.prompt) + self.request.params.max_tokens

    @property
    def left(self) -> int:
        """Maximum number of further tokens."""
        return self.request.params.max_tokens - len(self.tokens)

    @property
    def done(self) -> bool:
        # A request that failed needs no more samples.
        return self.stopped or len(self.tokens) >= self.request.params.max_tokens or self.request.future.done()

    def add(self, token: int, logprob: float) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.stopped = self.stops.ends(self.tokens)
        if self.filter is not None and not self.stopped:
            self.filter.accept(token)
            self.stopped = not len(self.filter.allowed())
        report = self.request.params.on_token
        if report is not None and len(self.tokens) > self.reported:
            self.reported = len(self.tokens)
            best = list(zip(*self.top[-1], strict=True)) if self.top else []
            self.stopped = not report((token, logprob, best)) or self.stopped

    def restart(self) -> None:
        """Discard the tokens; the random stream reproduces them."""
        self.tokens, self.logprobs, self.top, self.stopped = [], [], [], False
        make = self.request.params.make_filter
        self.filter = make() if make else None

    def sample(self) -> Sample:
        top = None
        if self.top:
            tokens, logprobs = zip(*self.top, strict=True)
            top = TopLogprobs(np.array(tokens, np.int64), np.array(logprobs, np.float32))
        return Sample(self.tokens, self.logprobs, "stop" if self.stopped else "length", top)


def advance(lanes: Sequence[Lane], logits: Tensor) -> None:
    """Choose the next token of each lane from its row of logits."""
    params, uniform = [lane.request.params for lane in lanes], uniforms(lanes)
    highest = logits.amax(dim=1, keepdim=True)
    mass = _mass(logits, highest)
    total = highest + mass.sum(dim=(1, 2), dtype=torch.float64).log()[:, None].to(logits.dtype)
    if all(map(_is_mild, params)):
        for rows, tokens, values in _biases(lanes, mass.device):
            mass.flatten(1)[rows, tokens] *= values.exp()
        chosen = _inverse(mass, uniform.to(mass.device))
    else:
        chosen = choose(_filter(_change(logits, total, lanes), lanes), params, uniform)
    values = (logits.gather(1, chosen[:, None]) - total)[:, 0].tolist()
    for row, lane in enumerate(lanes):
        if k := lane.request.params.top_logprobs:
            top = logits[row].topk(k)
            lane.top.append((top.indices.tolist(), (top.values - total[row]).tolist()))
    for lane, token, value in zip(lanes, chosen.tolist(), values, strict=True):
        lane.add(token, value)


def _change(logits: Tensor, total: Tensor, lanes: Sequence[Lane]) -> Tensor:
    """Apply each lane's bias and processors to log-probabilities; without any, return the logits unchanged."""
    if not any(lane.request.params.logit_bias or lane.request.params.processors for lane in lanes):
        return logits
    changed = logits - total
    for rows, tokens, values in _biases(lanes, changed.device):
        changed[rows, tokens] += values
    for row, lane in enumerate(lanes):
        if lane.request.params.processors:
            tokens = [*lane.request.prompt, *lane.tokens]
            changed[row] = process(changed[row], tokens, lane.request.params.processors)
    return changed


def _biases(lanes: Sequence[Lane], device: torch.device) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (rows, 1) with the same bias, its tokens and its values."""
    same: dict[int, list[int]] = {}
    for row, lane in enumerate(lanes):
        same.setdefault(id(lane.request.params.logit_bias), []).append(row)
    for rows in same.values():
        if (bias := bias_of(lanes[rows[0]].request, device)) is not None:
            yield torch.tensor(rows, device=device)[:, None], *bias


def bias_of(request: Any, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Return the tokens and values of a request's logit bias on the device, cached in `request.bias`; None if empty."""
    if request.params.logit_bias and request.bias is None:
        tokens, values = zip(*request.params.logit_bias.items(), strict=True)
        request.bias = torch.tensor(tokens, device=device), torch.tensor(values, device=device, dtype=torch.float32)
    return request.bias


def process(row: Tensor, tokens: Sequence[int], processors: Sequence[LogitsProcessor]) -> Tensor:
    """Apply processors, which work on NumPy arrays, to a row of log-probabilities."""
    processed = run_processors(row.float().cpu().numpy().copy(), tokens, processors)
    return torch.from_numpy(processed).to(row.device)


def _filter(logprobs: Tensor, lanes: Sequence[Lane]) -> Tensor:
    """Set tokens that a lane's filter does not allow to minus infinity."""
    if all(lane.filter is None for lane in lanes):
        return logprobs
    filtered = logprobs.clone()
    for row, lane in enumerate(lanes):
        if lane.filter is not None:
            allowed = torch.as_tensor(lane.filter.allowed(), dtype=torch.int64, device=logprobs.device)
            filtered[row] = float("-inf")
            filtered[row, allowed] = logprobs[row, allowed]
    return filtered


def choose(logprobs: Tensor, params: Sequence[SamplingParams], uniform: Tensor) -> Tensor:
    """Choose one token per row by inverting the distribution function at `uniform`; the best token at temperature 0."""
    temperature = torch.tensor([p.temperature for p in params], device=logprobs.device, dtype=torch.float32)
    greedy = temperature == 0
    highest, best = logprobs.max(dim=1, keepdim=True)
    if bool(greedy.all()):
        return best[:, 0]
    heat = torch.where(greedy, 1.0, temperature)[:, None]
    mass = _mass(logprobs, highest, lambda scaled: _truncate(scaled.div_(heat), params))
    return torch.where(greedy, best[:, 0], _inverse(mass, uniform.to(mass.device)))


def _mass(logits: Tensor, highest: Tensor, change: Callable[[Tensor], Tensor] = lambda scaled: scaled) -> Tensor:
    """Return unnormalized probabilities, (rows, blocks, _BLOCK), padded with zeros; the best token's is 1."""
    # In place: allocating an array for each operation would take longer than the operations.
    mass = logits.new_zeros(len(logits), -(-logits.shape[1] // _BLOCK) * _BLOCK)
    scaled = mass[:, : logits.shape[1]]
    torch.sub(logits, highest, out=scaled)  # before the division: a tiny temperature would make all logits infinite
    change(scaled).exp_()
    return mass.view(len(mass), -1, _BLOCK)


def _inverse(mass: Tensor, uniform: Tensor) -> Tensor:
    """Return the token at which each row's distribution function reaches `uniform`.

    It searches the blocks first and then one block, because a float64 cumulative sum over the vocabulary is slow.
    """
    blocks = mass.sum(dim=2, dtype=torch.float64).cumsum(dim=1)
    threshold = uniform[:, None] * blocks[:, -1:]
    block = torch.searchsorted(blocks, threshold, right=True).clamp_max(blocks.shape[1] - 1)
    before = torch.where(block > 0, blocks.gather(1, (block - 1).clamp_min(0)), 0.0)
    inside = mass.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))[:, 0].double()
    place = torch.searchsorted(inside.cumsum(dim=1), threshold - before, right=True)
    # Rounding may place the number behind the block's last token; never choose a token with probability 0.
    last = torch.where(inside > 0, torch.arange(_BLOCK, device=mass.device), 0).amax(dim=1, keepdim=True)
    return (block * _BLOCK + torch.minimum(place, last))[:, 0]


def uniforms(lanes: Sequence[Lane], *, ahead: int = 0) -> Tensor:
    """Return the next random number of each lane, in [0, 1), or the one `ahead` positions later."""
    places = [len(lane.tokens) + 1 + ahead for lane in lanes]
    return torch.from_numpy(uniforms_of([lane.stream for lane in lanes], places))


def needs_logits(params: SamplingParams) -> bool:
    """Whether sampling needs the logits of each step, not only the chosen token."""
    changed = params.make_filter is not None or bool(params.processors)
    return is_truncated(params) or bool(params.top_logprobs) or changed


def _is_mild(params: SamplingParams) -> bool:
    """Whether tokens can be chosen from the plain masses, with at most small biases."""
    biases = (params.logit_bias or {}).values()
    changed = is_truncated(params) or params.make_filter is not None or params.processors
    return params.temperature == 1 and not changed and all(abs(bias) <= _MILD_BIAS for bias in biases)


def is_truncated(params: SamplingParams) -> bool:
    """Whether top_k or top_p excludes tokens."""
    return params.top_k != -1 or params.top_p < 1


def _truncate(scaled: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Set tokens that top_k and top_p exclude to minus infinity."""
    for row, p in enumerate(params):
        if not is_truncated(p):
            continue
        count = min(p.top_k, scaled.shape[1]) if p.top_k != -1 else scaled.shape[1]
        # Stable, so that ties are resolved the same way each time.
        values, order = scaled[row].sort(descending=True, stable=True)
        probability = values.double().exp()
        before = probability.cumsum(0) - probability
        keep = before < p.top_p * probability.sum()
        # Always keep the best token, in spite of rounding.
        keep[0] = True
        keep[count:] = False
        scaled[row, order[~keep]] = float("-inf")
    return scaled
