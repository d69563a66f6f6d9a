"""Asks a server everything, once: each fact on its own, so that one that cannot be found out does not hide the others.

facts, problems = probe(lambda name: backend.prepare(model=ModelSpec(name), run_dir=folder), "tiny", backend.teardown)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import EvsysError
from ..client import TrainingClient
from . import sampling, training
from .facts import Facts

UNKNOWN_MODEL = "evsys-doctor/no-such-model"
"""No server has it; one that takes it anyway trains something else than it was asked for."""

PROBES: dict[str, Callable[[TrainingClient], Any]] = {
    "step_latency_s": training.step_latency,
    "loss_reduction": training.loss_reduction,
    "losses": training.losses,
    "custom_loss": training.custom_loss,
    "soft_targets": training.soft_targets,
    "aligned_logprobs": sampling.aligned_logprobs,
    "seeds": sampling.seeds,
    "top_k_logprobs": sampling.top_k_logprobs,
    "clips_gradients": training.clips_gradients,
    "exact_resume": training.exact_resume,
    "snapshot_samplers": sampling.snapshot_samplers,
}
"""Fact -> how it is found out; in an order in which none disturbs the next."""


def probe(
    prepare: Callable[[str], dict[str, Any]],
    model: str,
    teardown: Callable[[dict[str, Any]], None],
    progress: Callable[[str], None] = lambda name: None,
) -> tuple[Facts, dict[str, str]]:
    """What is found out, and why the rest is not. Raises only when the model cannot be prepared at all."""
    found: dict[str, Any] = {}
    problems: dict[str, str] = {}
    handles: dict[str, Any] | None = prepare(model)
    try:
        for name, ask in PROBES.items():
            progress(name)
            try:
                handles = handles or prepare(model)
                found[name] = ask(handles["training_client"])
            except EvsysError as error:
                problems[name] = str(error)
                if handles is not None:  # it may have been left in any state
                    teardown(handles)
                    handles = None
    finally:
        if handles is not None:
            teardown(handles)
    progress("rejects_unknown_model")
    found["rejects_unknown_model"] = _rejects(prepare, teardown)
    return Facts(**found), problems


def _rejects(prepare: Callable[[str], dict[str, Any]], teardown: Callable[[dict[str, Any]], None]) -> bool:
    try:
        handles = prepare(UNKNOWN_MODEL)
    except EvsysError:
        return True
    teardown(handles)
    return False
