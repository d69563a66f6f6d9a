"""Batched sampling, with a separate random stream per sample.

A sample depends only on the weights, the prompt, the parameters, the seed and its number, not on other requests in its
batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import run_processors
from ..client import LogitsProcessor, Sample, SamplingParams, TokenFilter, TopLogprobs
from ..seeds import stream_of, uniforms
from . import model
from .packing import Ints
from .tokenizer import ByteTokenizer
from .weights import Weights

_TOKENS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One call of `sample`."""

    prompt: Ints
    num_samples: int
    params: SamplingParams
    seed: int


@dataclass(slots=True)
class _Lane:
    """One sample in progress."""

    tokens: Ints
    """The prompt and space for the continuation."""
    prompt_length: int
    length: int
    params: SamplingParams
    stops: list[list[int]]
    stream: int
    logprobs: list[float] = field(default_factory=list[float])
    stopped: bool = False
    filter: TokenFilter | None = None
    top: list[Ints] = field(default_factory=list[Ints])
    """The most probable tokens at each position."""
    top_logprobs: list[NDArray[np.float64]] = field(default_factory=list[NDArray[np.float64]])

    @property
    def done(self) -> bool:
        return self.stopped or self.length == len(self.tokens)

    def add(self, token: int, logprob: float) -> None:
        self.tokens[self.length] = token
        self.length += 1
        self.logprobs.append(logprob)
        sampled = self.tokens[self.prompt_length : self.length]
        self.stopped = any(sampled[-len(stop) :].tolist() == stop for stop in self.stops)
        if self.filter is not None and not self.stopped:
            self.filter.accept(token)
            self.stopped = not len(self.filter.allowed())
        if self.params.on_token is not None:
            best = list(zip(self.top[-1].tolist(), self.top_logprobs[-1].tolist(), strict=True)) if self.top else []
            self.stopped = not self.params.on_token((token, logprob, best)) or self.stopped

    def note_top(self, logprobs: NDArray[np.float64]) -> None:
        # Stable: of equally probable tokens, the lower id comes first.
        best = np.argsort(-logprobs, kind="stable")[: self.params.top_logprobs]
        self.top.append(best)
        self.top_logprobs.append(logprobs[best])

    def sample(self) -> Sample:
        sampled = self.tokens[self.prompt_length : self.length].tolist()
        top = TopLogprobs(np.array(self.top), np.array(self.top_logprobs, np.float32)) if self.top else None
        return Sample(sampled, self.logprobs, "stop" if self.stopped else "length", top)


class Drawing:
    """The samples of one request in progress."""

    def __init__(self, request: SampleRequest) -> None:
        self._request = request

    @cached_property
    def lanes(self) -> list[_Lane]:
        """Created lazily, because they allocate space for the whole continuation."""
        return [_lane(self._request, number) for number in range(self._request.num_samples)]

    @property
    def done(self) -> bool:
        return all(lane.done for lane in self.lanes)

    def samples(self) -> list[Sample]:
        return [lane.sample() for lane in self.lanes]


def advance(weights: Weights, many: Sequence[Drawing], tokens: int) -> None:
    """Extend every sample by up to `tokens` tokens."""
    for together in _batches([lane for sampling in many for lane in sampling.lanes if not lane.done]):
        for _ in range(tokens):
            if not (together := [lane for lane in together if not lane.done]):
                break
            _advance(weights, together)


def choose(
    logprobs: NDArray[np.float64], params: Sequence[SamplingParams], uniform: NDArray[np.float64]
) -> NDArray[np.int64]:
    """One token per row, by inverse transform sampling at `uniform`; the argmax at temperature 0."""
    temperature = np.array([p.temperature for p in params])
    greedy = temperature == 0
    scaled = logprobs / np.where(greedy, 1.0, temperature)[:, None]
    scaled = _truncate(scaled - scaled.max(axis=1, keepdims=True), params)
    cumulative = np.exp(scaled).cumsum(axis=1)
    # Counting skips tokens with zero probability, whose cumulative sum equals the previous one.
    drawn = (cumulative <= (uniform * cumulative[:, -1])[:, None]).sum(axis=1)
    return np.where(greedy, logprobs.argmax(axis=1), np.minimum(drawn, logprobs.shape[1] - 1))


def _truncate(scaled: NDArray[np.float64], params: Sequence[SamplingParams]) -> NDArray[np.float64]:
    """Minus infinity for the tokens excluded by top_k and top_p."""
    limited = [row for row, p in enumerate(params) if p.top_k != -1 or p.top_p < 1]
    for row in limited:
        order = np.argsort(-scaled[row], kind="stable")
        probability = np.exp(scaled[row][order])
        before = probability.cumsum() - probability
        keep = before < params[row].top_p * probability.sum()
        # Keep at least one token despite rounding.
        keep[0] = True
        if params[row].top_k != -1:
            keep[params[row].top_k :] = False
        scaled[row, order[~keep]] = -np.inf
    return scaled


def _advance(weights: Weights, lanes: Sequence[_Lane]) -> None:
    run = model.forward(weights, [lane.tokens[: lane.length] for lane in lanes], last_only=True)
    logprobs = model.log_softmax(run.logits(weights)).astype(np.float64)
    places = [lane.length - lane.prompt_length + 1 for lane in lanes]
    random = uniforms([lane.stream for lane in lanes], places)
    chosen = choose(_filter(_change(logprobs, lanes), lanes), [lane.params for lane in lanes], random).tolist()
    for row, (lane, token) in enumerate(zip(lanes, chosen, strict=True)):
        if lane.params.top_logprobs:
            lane.note_top(logprobs[row])
        lane.add(token, float(logprobs[row, token]))


def _change(logprobs: NDArray[np.float64], lanes: Sequence[_Lane]) -> NDArray[np.float64]:
    """The sampling distribution: log-probabilities with each lane's bias and processors applied."""
    if not any(lane.params.logit_bias or lane.params.processors for lane in lanes):
        return logprobs
    rows = zip(logprobs, lanes, strict=True)
    return np.stack(
        [
            change_logits(row, lane.tokens[: lane.length], lane.params.logit_bias, lane.params.processors)
            for row, lane in rows
        ]
    )


def change_logits(
    row: NDArray[Any], tokens: Ints, bias: Mapping[int, float] | None, processors: Sequence[LogitsProcessor] = ()
) -> NDArray[Any]:
    """A copy of one row of log-probabilities with a bias and processors applied."""
    changed = row.copy()
    if bias:
        changed[list(bias)] += list(bias.values())
    return run_processors(changed, tokens.tolist(), processors) if processors else changed


def _filter(logprobs: NDArray[np.float64], lanes: Sequence[_Lane]) -> NDArray[np.float64]:
    """Minus infinity for the tokens that a filter forbids."""
    if all(lane.filter is None for lane in lanes):
        return logprobs
    filtered = logprobs.copy()
    for row, lane in enumerate(lanes):
        if lane.filter is not None:
            filtered[row] = -np.inf
            allowed = np.asarray(lane.filter.allowed(), np.int64)
            filtered[row, allowed] = logprobs[row, allowed]
    return filtered


def _lane(request: SampleRequest, number: int) -> _Lane:
    length, params = len(request.prompt), request.params
    tokens = np.zeros(length + params.max_tokens, np.int64)
    tokens[:length] = request.prompt
    lane = _Lane(tokens, length, length, params, _stops(params), stream_of(request.seed, number))
    lane.filter = params.make_filter() if params.make_filter else None
    return lane


def _stops(params: SamplingParams) -> list[list[int]]:
    if params.stop is None:
        return [[ByteTokenizer.eos_token_id]]
    return [ByteTokenizer().encode(stop) if isinstance(stop, str) else [stop] for stop in params.stop]


def _batches(lanes: Sequence[_Lane]) -> Iterator[list[_Lane]]:
    """Groups of lanes with bounded memory."""
    batch: list[_Lane] = []
    tokens = 0
    for lane in lanes:
        if batch and tokens + len(lane.tokens) > _TOKENS_AT_ONCE:
            yield batch
            batch, tokens = [], 0
        batch.append(lane)
        tokens += len(lane.tokens)
    if batch:
        yield batch
