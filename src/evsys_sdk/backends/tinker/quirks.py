"""Deviations of servers from the Tinker protocol, and our workarounds.

`Quirks` is derived from facts about a server (by its kind or from `evsys doctor`) and from params that override them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final

from ..losses import LOSSES
from ..probes.facts import Facts, LossReduction
from .config import TinkerConfig

REFERENCE: Final = Facts(
    loss_reduction="sum",
    snapshot_samplers=True,
    losses=("cross_entropy", "importance_sampling", "ppo", "cispo"),
    soft_targets=True,
    seeds=True,
    top_k_logprobs=20,
)
"""What the protocol promises."""

PROMISED: Final = replace(REFERENCE, losses=tuple(sorted(LOSSES)), top_k_logprobs=50)
"""Optimistic facts, used to probe a server."""

SKYRL: Final = Facts(
    loss_reduction="normalised",
    snapshot_samplers=False,
    losses=("cross_entropy", "importance_sampling", "ppo", "cispo"),
    soft_targets=False,
    seeds=True,
    top_k_logprobs=0,
    clips_gradients=False,
)
"""What SkyRL's JAX server does; its other engines may do better, which `evsys doctor` finds out."""

_OURS: Final = frozenset({"dro"})
"""Losses always computed here: the protocol cannot mark sampled positions."""


@dataclass(frozen=True, slots=True)
class Quirks:
    """What the client does differently for this server."""

    native_losses: frozenset[str]
    loss_reduction: LossReduction = "sum"
    expand_soft_targets: bool = False
    seed_bits: int = 63
    fill_sequence_ids: bool = False
    """Whether samples lack the ids that the SDK requires."""
    clips_gradients: bool = True
    sample_retries: bool = True
    sample_limit_s: float = 900.0

    @classmethod
    def of(cls, config: TinkerConfig, facts: Facts, *, seed_bits: int = 63, fill_sequence_ids: bool = False) -> Quirks:
        native = config.native_losses if config.native_losses is not None else facts.losses or ("cross_entropy",)
        expand = config.soft_targets == "expanded" if config.soft_targets else facts.soft_targets is False
        return cls(
            native_losses=(frozenset(native) | {"cross_entropy"}) & (LOSSES - _OURS),
            loss_reduction=facts.loss_reduction or "sum",
            expand_soft_targets=expand,
            seed_bits=seed_bits,
            fill_sequence_ids=fill_sequence_ids,
            clips_gradients=facts.clips_gradients is not False,
            sample_retries=config.sample_retries,
            sample_limit_s=config.deadlines.sample_s,
        )

    @property
    def summed(self) -> bool:
        """Whether summed losses are available, directly or by undoing an average."""
        return self.loss_reduction != "normalised"

    def retry_config(self) -> Any:
        """The SDK's retry settings for sampling."""
        handler: Any = import_module("tinker.lib.retry_handler")
        return handler.RetryConfig(enable_retry_logic=self.sample_retries, progress_timeout=self.sample_limit_s)

    def sampler(self, sampler: Any) -> Any:
        """The SDK's sampling client, adapted to this server."""
        return _tolerant(sampler, self.retry_config()) if self.fill_sequence_ids else sampler


def _tolerant(sampler: Any, retry_config: Any) -> Any:
    """A client of the same sampling session that adds missing ids of samples."""
    # The SDK fails on samples without ids and has no public hook to add them.
    base: Any = import_module("tinker").SamplingClient
    send: Callable[..., Awaitable[Any]] = base._send_asample_request

    class TolerantSamplingClient(base):
        async def _send_asample_request(self, request_id: int, num_samples: int, *args: Any) -> Any:
            promise: Any = await send(self, request_id, num_samples, *args)
            if promise is None or promise.sample_sequence_ids is not None:
                return promise
            numbers = [f"{request_id}:{index}" for index in range(num_samples)]
            return promise.model_copy(update={"sample_sequence_ids": numbers})

    session_id: str = sampler._sampling_session_id
    return TolerantSamplingClient(sampler.holder, sampling_session_id=session_id, retry_config=retry_config)
