"""Probes all facts about a server, each separately, so that a failing probe does not hide others.

facts, problems = probe(lambda name: backend.prepare(model=ModelSpec(name), run_dir=folder), "tiny", backend.teardown)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import EvsysError
from ..client import AdamParams, SamplingClient, SamplingParams, TrainingClient
from . import training
from .facts import REFUSED, Facts
from .training import logprobs_of, probe_data

_CLOSE = 1e-2
"""Tolerance between log-probabilities: servers sample with other kernels than they train with."""
_MOVED = 10.0
"""Required change by training, as a multiple of `_CLOSE`, to decide whether a sampler is frozen."""
_TOP_K = (50, 20, 10, 5, 1)


def snapshot_samplers(client: TrainingClient) -> bool | None:
    """Whether a sampler keeps its weights while training continues, and leaves the live weights unchanged.

    None if training changed the model too little to decide.
    """
    data = probe_data(client)
    tokens = data[0].tokens.tolist()
    old = client.sampler().result()
    before = old.logprobs(tokens).result()[1:]
    for _ in range(8):
        client.forward_backward(data, "cross_entropy")
        client.optim_step(AdamParams(max(client.capabilities.suggested_learning_rate, 1e-3))).result()
    live = logprobs_of(client, data)
    new = client.sampler().result().logprobs(tokens).result()[1:]
    if float(np.abs(new - before).max()) < _CLOSE * _MOVED:
        return None
    try:
        after = old.logprobs(tokens).result()[1:]
        old.sample(tokens, 1, SamplingParams(max_tokens=2, seed=1)).result()
    except EvsysError:
        return False
    untouched = float(np.abs(logprobs_of(client, data) - live).max()) < _CLOSE
    return untouched and float(np.abs(after - before).max()) < _CLOSE


def aligned_logprobs(client: TrainingClient) -> bool:
    """Whether scoring and training report the same log-probability of each token."""
    datum = probe_data(client)[0]
    whole = [*datum.tokens.tolist(), int(datum.target_tokens[-1])]
    scored = client.sampler().result().logprobs(whole).result()
    trained = client.forward([datum]).result().logprobs[0]
    return bool(np.isnan(scored[0])) and bool(np.abs(scored[1:] - trained).max() < 10 * _CLOSE)


def seeds(client: TrainingClient) -> bool:
    """Whether equal seeds give equal samples, and other seeds give others."""
    sampler = client.sampler().result()
    prompt = client.tokenizer.encode("Once upon a time there was a")
    first, again, other = (_draw(sampler, prompt, seed) for seed in (7, 7, 8))
    return first == again and first != other


def _draw(sampler: SamplingClient, prompt: list[int], seed: int) -> list[list[int]]:
    # Without stops: samples that end immediately would be equal for all seeds.
    params = SamplingParams(max_tokens=16, seed=seed, stop=[])
    return [sample.tokens for sample in sampler.sample(prompt, 2, params).result()]


def top_k_logprobs(client: TrainingClient) -> int:
    """The largest tested number of alternatives per position that is reported; 0 for none."""
    sampler = client.sampler().result()
    tokens = client.tokenizer.encode("Once upon a time")
    for k in _TOP_K:
        if k > client.capabilities.top_k_logprobs:
            continue
        try:
            top = sampler.topk_logprobs(tokens, k).result()
        except EvsysError:
            continue
        if top.tokens.shape == (len(tokens), k) and bool((np.diff(top.logprobs[1:], axis=1) <= 0).all()):
            return k
    return 0


UNKNOWN_MODEL = "evsys-doctor/no-such-model"
"""A name no server has; a server that accepts it trains another model."""

PROBES: dict[str, Callable[[TrainingClient], Any]] = {
    "step_latency_s": training.step_latency,
    "loss_reduction": training.loss_reduction,
    "loss_checks": training.loss_checks,
    "custom_loss": training.custom_loss,
    "soft_targets": training.soft_targets,
    "aligned_logprobs": aligned_logprobs,
    "seeds": seeds,
    "top_k_logprobs": top_k_logprobs,
    "clips_gradients": training.clips_gradients,
    "exact_resume": training.exact_resume,
    "snapshot_samplers": snapshot_samplers,
}
"""Fact -> its measurement; in an order in which none disturbs the next."""


def probe(
    prepare: Callable[[str], dict[str, Any]],
    model: str,
    teardown: Callable[[dict[str, Any]], None],
    progress: Callable[[str], None] = lambda name: None,
) -> tuple[Facts, dict[str, str]]:
    """The facts, and why the others are unknown. Raises only if the model cannot be prepared."""
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    handles: dict[str, Any] | None = prepare(model)
    try:
        for name, measure in PROBES.items():
            progress(name)
            try:
                handles = handles or prepare(model)
                values[name] = measure(handles["training_client"])
            except EvsysError as error:
                problems[name] = str(error)
                if handles is not None:  # its state is unknown
                    teardown(handles)
                    handles = None
    finally:
        if handles is not None:
            teardown(handles)
    if checks := values.get("loss_checks"):
        values["losses"] = tuple(name for name, finding in checks.items() if not finding.startswith(REFUSED))
    progress("rejects_unknown_model")
    values["rejects_unknown_model"] = _rejects(prepare, teardown)
    return Facts(**values), problems


def _rejects(prepare: Callable[[str], dict[str, Any]], teardown: Callable[[dict[str, Any]], None]) -> bool:
    try:
        handles = prepare(UNKNOWN_MODEL)
    except EvsysError:
        return True
    teardown(handles)
    return False
