"""Our training client on top of Fireworks' client: the differences from the Tinker protocol.

A backward pass may return no log-probabilities, which the loss needs. So a forward pass precedes it until a response
has included them. Checkpoint names have lower-case letters, digits and '-', and checkpoints are loaded into the model
in training; references start with `fireworks://`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from ...errors import BackendError, show
from ..client import ForwardBackwardOutput
from ..datum import Datum, Floats
from ..future import Operation
from ..losses import check_config, find_loss
from ..tinker import state
from ..tinker.client import TinkerTrainingClient
from ..tinker.sampling import TinkerSamplingClient
from .sampling import SCHEME, check_path
from .session import Blocking, FireworksSession

_LONGEST_NAME: Final = 40
"""The service allows 63 characters; we add nine and the client adds nine."""


class FireworksTrainingClient(TinkerTrainingClient):
    """Weights in training at Fireworks."""

    _session: FireworksSession
    _version: int
    _step_options: Mapping[str, Any] = {"emit_grad_norm_metrics": "basic"}
    _scores_backward: bool = False
    """Whether backward passes are known to return log-probabilities."""

    def forward_backward(
        self, data: Sequence[Datum], loss_fn: str, loss_fn_config: Mapping[str, Any] | None = None
    ) -> Operation[ForwardBackwardOutput]:
        """Accumulate the gradient of a named loss."""
        data = self._check(data, loss_fn, loss_fn_config)
        loss, params = find_loss(loss_fn, loss_fn_config), check_config(loss_fn, loss_fn_config)
        if loss_fn not in self._quirks.native_losses:
            return self._compute_here("forward_backward", data, loss)
        # Filled by `start`, read by `convert_pass`.
        scored: list[list[Floats]] = []

        def start() -> Any:
            if not self._scores_backward:
                scored.append(self._logprobs(self._pipeline.wait(self._pass("forward", data)), data))
            return self._pass("forward_backward", data, loss_fn, params)

        def convert_pass(answer: Any) -> ForwardBackwardOutput:
            outputs: Any = answer.loss_fn_outputs
            self._scores_backward = bool(outputs) and all("logprobs" in record for record in outputs)
            if not scored:
                return self._compute_loss(answer, data, loss)
            value, metrics, _ = loss(data, scored[0])
            return ForwardBackwardOutput(value, scored[0], metrics)

        return self._pipeline.submit("forward_backward", start, convert_pass, changes_weights=True)

    def _answers_at_once(self, loss_fn: str | None) -> bool:
        return self._scores_backward and super()._answers_at_once(loss_fn)

    def load_state(self, ref: str, *, with_optimizer: bool = True) -> Operation[None]:
        """Load a stored state; without its optimizer, the optimizer is reset."""
        path = check_path(ref)
        state.check_sidecar(self._run_dir, ref, self._adapter)
        loaded = self._pipeline.submit(
            "load_state",
            lambda: self._watch(load_into(self._training, path, with_optimizer)),
            lambda _: None,
            changes_weights=True,  # a lost load leaves the model in an unknown state
        )
        self._version += 1
        return loaded

    def sampler(self, name: str | None = None) -> Operation[TinkerSamplingClient]:
        """A frozen copy of the current weights; with a name it is stored and can be reopened."""
        unused, version = make_label(name or "snapshot"), self._version

        def snapshot() -> TinkerSamplingClient:
            saved = Blocking(lambda: self._training.save_weights_for_sampler(unused).result())
            path = str(self._pipeline.wait(saved).path)
            return self._session.sampler_at(self._context(), path, "" if name is None else self._ref_of(path), version)

        return self._pipeline.submit("sampler", snapshot, lambda sampler: sampler)

    def _types(self) -> Any:
        return import_module("fireworks.training.sdk.types")

    def _make_name(self, name: str) -> str:
        return make_label(name)

    def _ref_of(self, path: str) -> str:
        return f"{SCHEME}{path}"

    def _watch(self, promise: Any) -> Any:
        """Convert any of the client's futures to one that can be watched."""
        return self._session.run(promise.result_async())


def load_into(training: Any, path: str, with_optimizer: bool) -> Any:
    """Load a checkpoint into a model; returns the client's future."""
    return training.load_state_with_optimizer(path) if with_optimizer else training.load_state(path)


def make_label(name: str) -> str:
    """A unique name at the service for a checkpoint; invalid characters become '-'."""
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_LONGEST_NAME].strip("-")
    if not label:
        raise BackendError(f"a checkpoint cannot be called {show(name)}. Use letters, digits and '-'.")
    return f"{label}-{secrets.token_hex(4)}"
