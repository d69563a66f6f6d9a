"""Sampling requests: opening weights, and answering what is asked about a prompt and its continuations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..backends.client import Sample as Continuation
from ..backends.client import SamplingClient, SamplingParams, TopLogprobs
from ..backends.datum import Floats
from ..backends.future import Operation
from ..errors import EvsysError
from . import requests
from .answer import Answer, Refusal
from .model import outcome
from .prompt_targets import PromptTargets
from .protobuf import sample_answer
from .service import Service
from .sessions import Sampler

QUEUE: Final = "sampling"


async def create_sampling_session(service: Service, request: requests.CreateSamplingSession) -> dict[str, Any]:
    """Open saved weights, or those of a base model."""
    session = service.sessions.get(request.session_id)
    sampler_id = f"{session.session_id}:sample:{request.sampling_session_seq_id}"
    if sampler_id not in session.samplers:
        base_model, ref = request.base_model, None
        if request.model_path is not None:
            record = service.checkpoints.get(request.model_path)
            if base_model not in (None, record["base_model"]):
                raise Refusal(
                    400, f"{request.model_path} was trained from {record['base_model']!r}, not {base_model!r}."
                )
            base_model, ref = record["base_model"], record["ref"]
        if base_model is None:
            raise Refusal(400, "say what to sample from: base_model or model_path.")
        client = await service.engine.open_sampler(base_model, ref)
        session.keep(Sampler(sampler_id, session.session_id, base_model, request.model_path, client))
    return {"type": "create_sampling_session", "sampling_session_id": sampler_id}


def sample(service: Service, request: requests.Sample) -> dict[str, Any]:
    """Start a sampling request."""
    sampler = service.sessions.sampler(request.sampling_session_id)
    request_id = f"{sampler.sampler_id}:{request.seq_id}"
    if request_id not in service.futures:
        if service.futures.waiting(QUEUE) >= service.settings.max_samples:
            raise Refusal(
                429,
                f"{service.settings.max_samples} sampling requests are waiting. Try again, or raise --max-samples.",
                retry_after_s=1,
            )
        try:
            work = _started(service, sampler, request)
        except EvsysError as error:
            raise Refusal(400, str(error)) from None
        service.futures.open(request_id, session_id=sampler.session_id, queue=QUEUE)
        service.follow(_finish(service, request_id, work))
    ids = [f"{request_id}:{number}" for number in range(request.num_samples)]
    return {"request_id": request_id, "sample_sequence_ids": ids}


def _started(service: Service, sampler: Sampler, request: requests.Sample) -> Awaitable[Answer]:
    """Hand everything that can be asked at once to the backend; it refuses mistakes here."""
    client, prompt = sampler.client, request.prompt.tokens()
    capabilities = service.engine.capabilities(sampler.base_model)
    if (last := request.prompt_logprobs_last_n) is not None and not (request.prompt_logprobs and last < len(prompt)):
        raise Refusal(400, f"prompt_logprobs_last_n={last} needs prompt_logprobs and a prompt longer than that.")
    for name, k in (("prompt", request.topk_prompt_logprobs), ("sample", request.topk_sample_logprobs)):
        if k > capabilities.top_k_logprobs:
            raise Refusal(400, f"topk_{name}_logprobs may be {capabilities.top_k_logprobs} at most here (got {k}).")
    targets = request.target_prompt_logprobs
    wanted = PromptTargets.read(targets, len(prompt), capabilities) if targets is not None else None
    params = _params(request.sampling_params, capabilities.context_length - len(prompt))
    k = request.topk_prompt_logprobs
    return _Parts(
        client.sample(prompt, request.num_samples, params),
        client.logprobs(prompt) if request.prompt_logprobs else None,
        client.topk_logprobs(prompt, k) if k else None,
        (wanted, client.topk_logprobs(prompt, capabilities.vocab_size)) if wanted is not None else None,
    ).collected(client, request)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What is being computed for one request."""

    samples: Operation[list[Continuation]]
    logprobs: Operation[Floats] | None
    top: Operation[TopLogprobs] | None
    targets: tuple[PromptTargets, Operation[TopLogprobs]] | None

    async def collected(self, client: SamplingClient, request: requests.Sample) -> Answer:
        samples = await self.samples
        logprobs = await self.logprobs if self.logprobs is not None else None
        top = await self.top if self.top is not None else None
        if request.prompt_logprobs_last_n is not None and logprobs is not None:
            skipped = slice(0, len(logprobs) - request.prompt_logprobs_last_n)
            logprobs = logprobs.copy()
            logprobs[skipped] = np.nan
            if top is not None:
                top.logprobs[skipped] = np.nan
        return sample_answer(
            samples,
            prompt_logprobs=logprobs,
            top_prompt=top,
            top_samples=await _top_of_samples(client, request, samples),
            targets=(self.targets[0], await self.targets[1]) if self.targets is not None else None,
        )


async def _top_of_samples(
    client: SamplingClient, request: requests.Sample, samples: Sequence[Continuation]
) -> list[TopLogprobs]:
    """The best tokens at each place of each sample, which are known only when the samples are."""
    k, prompt = request.topk_sample_logprobs, request.prompt.tokens()
    operations = [client.topk_logprobs([*prompt, *sample.tokens], k) for sample in samples] if k else []
    whole = [await operation for operation in operations]
    return [TopLogprobs(top.tokens[len(prompt) :], top.logprobs[len(prompt) :]) for top in whole]


async def _finish(service: Service, request_id: str, work: Awaitable[Answer]) -> None:
    if service.settings.delay_ms:
        await asyncio.sleep(service.settings.delay_ms / 1000)
    service.futures.finish(request_id, await outcome(work, request_id))


def _params(sampling: requests.Sampling, room: int) -> SamplingParams:
    stop = [sampling.stop] if isinstance(sampling.stop, str) else sampling.stop
    return SamplingParams(
        max_tokens=max(room, 1) if sampling.max_tokens is None else sampling.max_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed,
        stop=stop,
    )
