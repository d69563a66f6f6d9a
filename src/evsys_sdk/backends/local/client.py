"""The local backend's training and sampling clients.

Arguments are checked at the call. Training runs on a worker thread in call order; sampling runs on another thread and
takes turns with it. A sampler has its own copy of the adapter, so training and sampling can overlap.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ...errors import BackendError, show
from ...log import get_logger
from .. import checks
from ..checkpoint_name import checkpoint_folder
from ..client import Capabilities, Sample, SamplingParams, TopLogprobs
from ..datum import Floats
from ..future import Operation
from ..in_process import InProcessClient
from ..losses import LOSSES
from ..seeds import RequestSeeds
from ..worker import CallWorker
from . import memory
from .base.loading import Base
from .base.lora import LoRAAdapter
from .checkpoint import Stored, read_checkpoint, write_checkpoint
from .sampling.lanes import SampleCall
from .sampling.loop import SamplingLimits, SamplingLoop
from .sampling.scoring import ScoreRequest
from .sampling.snapshot import Snapshot
from .training.passes import LocalTrainingState, PassSettings

_MOST_ALTERNATIVES = 1024


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """Settings of a local client."""

    model: str
    seed: int = 0
    lora_rank: int = 32
    lora_alpha: float = 32.0
    lora_targets: tuple[str, ...] | None = None
    max_context: int | None = None
    merge: bool = True
    passes: PassSettings = field(default_factory=PassSettings)
    sampling: SamplingLimits = field(default_factory=SamplingLimits)


class LocalTrainingClient(InProcessClient[LocalTrainingState]):
    """An adapter in training on a base model in this process."""

    state_type: ClassVar[type[LocalTrainingState]] = LocalTrainingState

    def __init__(self, base: Base, settings: LocalSettings, run_dir: Path) -> None:
        self._base, self._settings, self._run_dir = base, settings, run_dir
        adapter = LoRAAdapter.create(
            base.switch,
            rank=settings.lora_rank,
            alpha=settings.lora_alpha,
            targets=settings.lora_targets,
            seed=settings.seed,
            device=base.device,
        )
        self._state = self.state_type(base, adapter, settings.passes, seed=settings.seed)
        self._seeds = RequestSeeds(settings.seed)
        self._worker = CallWorker(f"local-{Path(settings.model).name}")
        self._loop = SamplingLoop(
            base,
            settings.sampling,
            name=f"local-sampling-{Path(settings.model).name}",
            shared=settings.passes.join,
        )
        self.model_name = settings.model
        self.tokenizer = base.tokenizer
        context = base.context_length
        self.capabilities = Capabilities(
            backend="local",
            vocab_size=base.vocab_size,
            context_length=min(context, settings.max_context or context),
            losses=LOSSES,
            suggested_learning_rate=suggest_learning_rate(base.hidden_size),
            top_k_logprobs=min(base.vocab_size, _MOST_ALTERNATIVES),
            filters=True,
        )

    @classmethod
    def start(cls, base: Base, settings: LocalSettings, run_dir: Path) -> LocalTrainingClient:
        """Create a client; raise a `BackendError` if there is too little memory for its adapter."""
        try:
            return cls(base, settings, run_dir)
        except Exception as error:
            if not memory.is_out_of_memory(error):
                raise
            raise memory.no_room("the adapter", base.device) from memory.forget_frames(error)

    def save_state(self, name: str) -> Operation[str]:
        """Store adapter and optimizer under a new name; return the folder."""
        folder = checkpoint_folder(self._run_dir, name, "state")
        # Read at the call, not in the worker: samples requested later belong to later states.
        sampled = self._seeds.used

        def save() -> str:
            state = self._state
            counts = {"steps": state.optimizer.steps, "passes": state.passes, "sampled": sampled}
            moments = state.optimizer.moments()
            write_checkpoint(
                folder, state.adapter, {**self._about(), **counts}, base_model=self.model_name, moments=moments
            )
            return str(folder)

        return self._worker.submit("save_state", lambda: self._state.with_room("a checkpoint", save))

    def load_state(self, ref: str, *, with_optimizer: bool = True) -> Operation[None]:
        """Restore a stored state, or load a LoRA adapter of PEFT without an optimizer."""

        def load() -> None:
            stored = self._read(ref)
            self._check_shape(ref, stored.adapter)
            if with_optimizer and stored.moments is None:
                raise BackendError(
                    f"{ref} holds weights only. Start from it with model.init_from_checkpoint (with_optimizer=False)."
                )
            if not with_optimizer:
                self._state.replace(stored.adapter)
                return
            self._state.replace(stored.adapter, stored.moments, int(stored.about["steps"]))
            self._state.passes = int(stored.about["passes"])
            self._seeds.used = int(stored.about["sampled"])

        return self._worker.submit("load_state", lambda: self._state.with_room("a stored state", load))

    def sampler(self, name: str | None = None) -> Operation[LocalSamplingClient]:
        """Return a sampler with a frozen copy of the current adapter; with a name, also store it."""
        folder = None if name is None else checkpoint_folder(self._run_dir, name, "sampler")

        def snapshot() -> LocalSamplingClient:
            with self._base.host:
                adapter = self._state.adapter.copy()
            if folder is not None:
                write_checkpoint(folder, adapter, self._about(), base_model=self.model_name, moments=None)
            return self._sampler_of(adapter, ref="" if folder is None else str(folder))

        return self._worker.submit("sampler", lambda: self._state.with_room("a copy of the adapter", snapshot))

    def open_sampler(self, ref: str) -> Operation[LocalSamplingClient]:
        """Open a stored sampler, a saved state or a LoRA adapter of PEFT for sampling."""

        def open_() -> LocalSamplingClient:
            return self._sampler_of(self._read(ref).adapter, ref=ref)

        return self._worker.submit("open_sampler", lambda: self._state.with_room("a sampler", open_))

    def close(self) -> None:
        """Finish submitted calls and release the threads; closing twice does nothing."""
        self._worker.close()
        self._state.close()
        self._loop.close()

    def _sampler_of(self, adapter: LoRAAdapter, *, ref: str) -> LocalSamplingClient:
        snapshot = Snapshot(self._base, adapter, merge=self._settings.merge)
        return LocalSamplingClient(snapshot, ref, self._loop, self._seeds, self.capabilities, self.tokenizer)

    def _about(self) -> dict[str, Any]:
        settings = self._settings
        return {"model": settings.model, "base": self._base.fingerprint, "seed": settings.seed}

    def _read(self, ref: str) -> Stored:
        stored = read_checkpoint(ref, self._base.switch, device=self._base.device)
        trained_on = stored.about.get("base", self._base.fingerprint)
        if trained_on != self._base.fingerprint:
            raise BackendError(
                f"{ref} was trained on {show(stored.about.get('model'))}, whose weights are not those of "
                f"{show(self.model_name)}. Set model.name to that model, or use another checkpoint."
            )
        return stored

    def _check_shape(self, ref: str, adapter: LoRAAdapter) -> None:
        """Raise if rank or layers differ from the run's adapter: optimizer and learning rate would not fit."""
        ours = self._state.adapter
        if (adapter.rank, set(adapter.weights)) != (ours.rank, set(ours.weights)):
            raise BackendError(
                f"{ref} has an adapter of rank {adapter.rank} on {len(adapter.weights)} layers, and this run one of "
                f"rank {ours.rank} on {len(ours.weights)}. Set lora_rank and backend.params.lora_targets to match."
            )
        if adapter.alpha != ours.alpha:
            get_logger(__name__).warning("%s has lora_alpha %g, which is kept (not %g)", ref, adapter.alpha, ours.alpha)


class LocalSamplingClient:
    """A frozen copy of the adapter on the shared base, to sample from."""

    def __init__(
        self,
        snapshot: Snapshot,
        ref: str,
        loop: SamplingLoop,
        seeds: RequestSeeds,
        capabilities: Capabilities,
        tokenizer: Any,
    ) -> None:
        self._snapshot, self._loop, self._seeds, self._capabilities = snapshot, loop, seeds, capabilities
        self.ref = ref
        self.tokenizer = tokenizer

    def sample(self, prompt: Sequence[int], num_samples: int, params: SamplingParams) -> Operation[list[Sample]]:
        """Continue a prompt several times."""
        checks.check_sampling(prompt, num_samples, params, self._capabilities)
        seed = self._seeds.next() if params.seed is None else params.seed
        # Mark the future as running, because a cancelled future would reject the loop's result.
        request = SampleCall(tuple(int(token) for token in prompt), int(num_samples), params, seed)
        request.future.set_running_or_notify_cancel()
        self._loop.sample(self._snapshot, request)
        return Operation(request.future, "sample")

    def logprobs(self, tokens: Sequence[int]) -> Operation[Floats]:
        """Return the log-probability of each token given the earlier ones, (N,); nan for the first."""
        return self._score(tokens, 0, "logprobs")

    def topk_logprobs(self, tokens: Sequence[int], k: int, *changes: Any) -> Operation[TopLogprobs]:
        """Return the most probable tokens at each position; the first row is empty: tokens -1, logprobs nan."""
        checks.check_top_k(k, self._capabilities, *changes)
        return self._score(tokens, k, "topk_logprobs", *changes)

    def _score(self, tokens: Sequence[int], k: int, what: str, *changes: Any) -> Operation[Any]:
        checks.check_tokens(tokens, self._capabilities, where="tokens")
        request = ScoreRequest(np.array(tokens, np.int64), k, *changes)
        request.future.set_running_or_notify_cancel()
        self._loop.score(self._snapshot, request)
        return Operation(request.future, what)


def suggest_learning_rate(hidden_size: int) -> float:
    """Return a peak learning rate for adapters of any rank; it decreases with the hidden size."""
    return min(2e-3, 5e-4 * (2000 / hidden_size) ** 0.5)
