"""Sampling requests: opens weights, samples continuations and computes log-probabilities."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from starlette.responses import Response

from ...backends import checks
from ...backends.client import Capabilities, SamplingClient, SamplingParams, TopLogprobs
from ...backends.datum import Floats
from ...errors import EvsysError
from ..answer import Refusal
from ..service import Service
from ..state.fair_share import FairShare
from ..state.model import outcome
from ..state.sessions import Sampler
from . import requests
from .protobuf import sample_answer

_ALL: Final = "samples"
_MOST_NUMBERS: Final = 1 << 24
"""Maximum number of log-probabilities in, or computed for, one response."""


async def create_sampling_session(service: Service, request: requests.CreateSamplingSession) -> dict[str, Any]:
    """Open saved weights, or those of a base model."""
    session = service.sessions.get(request.session_id)
    sampler_id = f"{session.session_id}:sample:{request.sampling_session_seq_id}"
    if sampler_id not in session.samplers:  # a repeated request opens nothing
        base_model, ref = request.base_model, None
        if request.model_path is not None:
            record = await asyncio.to_thread(service.checkpoints.get, request.model_path)
            if base_model not in (None, record.base_model):
                raise Refusal(400, f"{request.model_path} was trained from {record.base_model!r}, not {base_model!r}.")
            base_model, ref = record.base_model, record.ref
        if base_model is None:
            raise Refusal(400, "the request names no weights. Set base_model or model_path.")
        client = await service.engine.open_sampler(base_model, ref)
        session.keep(Sampler(sampler_id, session.session_id, base_model, request.model_path, client))
    return {"type": "create_sampling_session", "sampling_session_id": sampler_id}


def sample(service: Service, request: requests.AsampleRequest) -> dict[str, Any]:
    """Accept a sampling request; it runs at its session's turn."""
    sampler = service.sessions.sampler(request.sampling_session_id)
    request_id = f"{sampler.sampler_id}:{request.seq_id}"
    if request_id not in service.futures:  # a repeated request already has a result or is running
        queues = (f"{sampler.session_id}:samples", _ALL)
        _check_room(service, *queues)
        try:
            # Checked first, so that a refused request takes no place in the queue.
            drawing = _Drawing.of(service, sampler, request)
        except EvsysError as error:
            raise Refusal(400, str(error)) from None
        service.futures.open(request_id, *queues, session_id=sampler.session_id)
        service.follow(_finish(service, request_id, drawing.answer()))
    ids = [f"{request_id}:{number}" for number in range(request.num_samples)]
    return {"request_id": request_id, "sample_sequence_ids": ids}


def _check_room(service: Service, of_session: str, of_all: str) -> None:
    settings, futures = service.settings, service.futures
    limits = (
        (of_session, settings.max_samples_per_session, "this session"),
        (of_all, settings.max_samples, "all clients"),
    )
    for queue, most, owner in limits:
        if futures.count_waiting(queue) >= most:
            raise Refusal(
                429,
                f"{most} sampling requests of {owner} are waiting or their results were not fetched. Fetch results, or "
                "raise --max-samples.",
                retry_after_s=1,
            )


@dataclass(frozen=True, slots=True)
class _Drawing:
    """One request: its samples and log-probabilities, each in turn with other clients."""

    client: SamplingClient
    request: requests.AsampleRequest
    prompt: list[int]
    params: SamplingParams
    turns: FairShare
    session_id: str

    @classmethod
    def of(cls, service: Service, sampler: Sampler, request: requests.AsampleRequest) -> _Drawing:
        """Validate a request, so that it is refused immediately."""
        prompt, capabilities = request.prompt.tokens(), service.engine.capabilities(sampler.base_model)
        # at least 1: the check below reports a prompt that fills the context
        room = max(1, min(capabilities.context_length - len(prompt), service.settings.max_tokens))
        params = replace(_params(request.sampling_params, room), top_logprobs=request.topk_sample_logprobs)
        _check_logprobs(request, len(prompt), params.max_tokens, capabilities)
        checks.check_sampling(prompt, request.num_samples, params, capabilities)
        return cls(sampler.client, request, prompt, params, service.samples, sampler.session_id)

    async def answer(self) -> Response:
        request, prompt, client = self.request, self.prompt, self.client
        turns, session_id = self.turns, self.session_id
        k = request.topk_prompt_logprobs
        top = await turns.run_one(session_id, lambda: client.topk_logprobs(prompt, k)) if k else None
        logprobs = None
        if request.prompt_logprobs:  # from the same pass as requested alternatives
            same = None if top is None else top.given
            logprobs = await turns.run_one(session_id, lambda: client.logprobs(prompt)) if same is None else same
        samples = await turns.draw(session_id, client, prompt, self.params, request.num_samples)
        if request.prompt_logprobs_last_n is not None and logprobs is not None:
            logprobs, top = _only_last(request.prompt_logprobs_last_n, logprobs, top)
        return sample_answer(
            samples,
            prompt_logprobs=logprobs,
            top_prompt=top,
            top_samples=[each.top for each in samples if each.top is not None],
        )


def _check_logprobs(request: requests.AsampleRequest, prompt: int, max_tokens: int, capabilities: Capabilities) -> None:
    if (last := request.prompt_logprobs_last_n) is not None and not (request.prompt_logprobs and last < prompt):
        raise Refusal(400, f"prompt_logprobs_last_n={last} needs prompt_logprobs and a prompt longer than that.")
    in_prompt, in_samples = request.topk_prompt_logprobs, request.topk_sample_logprobs
    for name, k in (("prompt", in_prompt), ("sample", in_samples)):
        if k > capabilities.top_k_logprobs:
            raise Refusal(400, f"topk_{name}_logprobs may be {capabilities.top_k_logprobs} at most here (got {k}).")
    numbers = prompt * in_prompt + request.num_samples * max_tokens * (1 + in_samples)
    if numbers > _MOST_NUMBERS:
        raise Refusal(
            400,
            f"{request.num_samples} samples of {max_tokens} tokens and a prompt of {prompt} with the requested top k "
            f"are {numbers} log-probabilities, and an answer may hold {_MOST_NUMBERS}. Lower num_samples, "
            "max_tokens or the top k, or shorten the prompt.",
        )


def _only_last(count: int, logprobs: Floats, top: TopLogprobs | None) -> tuple[Floats, TopLogprobs | None]:
    """Keep only the log-probabilities of the last prompt tokens."""
    # Blanked rather than cut, because values are indexed by position in the prompt.
    skipped = slice(0, len(logprobs) - count)
    logprobs = logprobs.copy()
    logprobs[skipped] = np.nan
    if top is not None:
        best = top.logprobs.copy()  # the backend may keep its array
        best[skipped] = np.nan
        top = TopLogprobs(top.tokens, best)
    return logprobs, top


async def _finish(service: Service, request_id: str, work: Awaitable[Response]) -> None:
    service.futures.finish(request_id, await outcome(work, request_id))


def _params(sampling: requests.SamplingSettings, room: int) -> SamplingParams:
    stop = [sampling.stop] if isinstance(sampling.stop, str) else sampling.stop
    return SamplingParams(
        max_tokens=max(room, 1) if sampling.max_tokens is None else sampling.max_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed,
        stop=stop,
    )
