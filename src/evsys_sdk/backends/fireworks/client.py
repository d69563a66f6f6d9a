"""Our training client on top of Fireworks' client: what differs from the Tinker protocol, and nothing else.

A backward pass may come back without log-probabilities, from which the loss is computed here. So a forward pass goes
before it until an answer has shown that they are there. Checkpoints have names of lower-case letters, digits and '-',
and are loaded into the model that is being trained; references begin with `fireworks://`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import numpy as np

from ...errors import BackendError, show
from .. import checks
from ..client import AdamParams, ForwardBackwardOutput, OptimStepOutput
from ..datum import Datum, Floats
from ..future import Operation
from ..losses import check_config, find_loss
from ..tinker import datums, state
from ..tinker.client import TinkerTrainingClient
from ..tinker.sampling import TinkerSamplingClient
from .sampling import FireworksSamplingClient
from .session import Blocking, FireworksSession

SCHEME: Final = "fireworks://"
_LONGEST_NAME: Final = 40
"""The service takes 63 characters; nine are added here and nine by the client."""


class FireworksTrainingClient(TinkerTrainingClient):
    """Weights that are being trained at Fireworks."""

    _session: FireworksSession
    _version: int
    _scores_backward: bool = False
    """Whether backward passes are known to come back with log-probabilities."""

    def forward_backward(
        self, data: Sequence[Datum], loss_fn: str, loss_fn_config: Mapping[str, Any] | None = None
    ) -> Operation[ForwardBackwardOutput]:
        """Add the gradient of a named loss to what has accumulated since the last optimiser step."""
        data = self._check(data, loss_fn, loss_fn_config)
        loss, params = find_loss(loss_fn, loss_fn_config), check_config(loss_fn, loss_fn_config)
        if loss_fn not in self._quirks.native_losses:
            return self._compute_here("forward_backward", data, loss)
        # Filled by `start`, which may wait, and read by `convert_pass`, when the answer is there.
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

    def optim_step(self, adam: AdamParams) -> Operation[OptimStepOutput]:
        """Apply the accumulated gradient and forget it."""
        checks.check_adam(adam)
        self._say_once_if_not_clipped(adam)
        params = _types().AdamParams(
            learning_rate=adam.learning_rate,
            beta1=adam.beta1,
            beta2=adam.beta2,
            eps=adam.eps,
            weight_decay=adam.weight_decay,
            grad_clip_norm=adam.grad_clip_norm,
            emit_grad_norm_metrics="basic",
        )
        stepped = self._pipeline.submit(
            "optim_step",
            lambda: self._watch(self._training.optim_step(params)),
            self._convert_step,
            changes_weights=True,
        )
        self._version += 1
        return stepped

    def save_state(self, name: str) -> Operation[str]:
        """Store weights and optimizer; returns the reference that `load_state` takes."""
        unused = make_label(name)

        def saved(answer: Any) -> str:
            ref = f"{SCHEME}{answer.path}"
            state.write_sidecar(self._run_dir, unused, ref, self._session.base_url, self._adapter)
            return ref

        return self._pipeline.submit("save_state", lambda: self._watch(self._training.save_state(unused)), saved)

    def load_state(self, ref: str, *, with_optimizer: bool = True) -> Operation[None]:
        """Go back to a stored state; without its optimizer, start the optimizer afresh."""
        path = check_path(ref)
        state.check_sidecar(self._run_dir, ref, self._adapter)
        loaded = self._pipeline.submit(
            "load_state",
            lambda: self._watch(load_into(self._training, path, with_optimizer)),
            lambda _: None,
            changes_weights=True,  # into the model itself: a load that is lost leaves it in no known state
        )
        self._version += 1
        return loaded

    def sampler(self, name: str | None = None) -> Operation[TinkerSamplingClient]:
        """A frozen copy of the weights as they are now; with a name it is stored and can be opened again."""
        unused, version = make_label(name or "snapshot"), self._version

        def snapshot() -> TinkerSamplingClient:
            saved = Blocking(lambda: self._training.save_weights_for_sampler(unused).result())
            path = str(self._pipeline.wait(saved).path)
            return self._sampler_of(path, version, "" if name is None else f"{SCHEME}{path}")

        return self._pipeline.submit("sampler", snapshot, lambda sampler: sampler)

    def open_sampler(self, ref: str) -> Operation[TinkerSamplingClient]:
        """A sampler that was stored earlier."""
        version = self._version
        return self._pipeline.submit(
            "open_sampler", lambda: self._sampler_of(check_path(ref), version, ref), lambda sampler: sampler
        )

    def _sampler_of(self, path: str, version: int, ref: str) -> TinkerSamplingClient:
        sampler = self._session.service.create_sampling_client(model_path=path, tokenizer=self.tokenizer)
        return FireworksSamplingClient(self._session, sampler, ref, self._context(), version)

    def _pass(
        self,
        kind: str,
        data: Sequence[Datum],
        loss_fn: str = "cross_entropy",
        params: Mapping[str, float] | None = None,
    ) -> Any:
        """Send a pass; scaled so that its loss is a sum, and with soft targets as one datum for each alternative."""
        scaled = datums.undo_mean(data, self._quirks.loss_reduction)
        wire = [_wire(datum, loss_fn) for datum in datums.expand(scaled)]
        return self._watch(getattr(self._training, kind)(wire, loss_fn, dict(params) if params else None))

    def _watch(self, promise: Any) -> Any:
        """A future of the client in the one form that can be watched: some of its kinds can only be waited for."""
        return self._session.run(promise.result_async())


def load_into(training: Any, path: str, with_optimizer: bool) -> Any:
    """Load a checkpoint into a model; gives the client's future."""
    return training.load_state_with_optimizer(path) if with_optimizer else training.load_state(path)


def make_label(name: str) -> str:
    """A name at the service for a checkpoint, which is never taken; what it would not take becomes '-'."""
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_LONGEST_NAME].strip("-")
    if not label:
        raise BackendError(f"a checkpoint cannot be called {show(name)}. Use letters, digits and '-'.")
    return f"{label}-{secrets.token_hex(4)}"


def check_path(ref: str) -> str:
    """The service's own name of a checkpoint, out of our reference."""
    if not ref.startswith(SCHEME) or not ref.removeprefix(SCHEME).strip("/"):
        raise BackendError(
            f"{show(ref)} is not a checkpoint at Fireworks: those begin with {SCHEME}. Take one from the "
            "checkpoints.jsonl of a run on this backend."
        )
    return ref.removeprefix(SCHEME)


def _types() -> Any:
    return import_module("fireworks.training.sdk.types")


def _wire(datum: Datum, loss_fn: str) -> Any:
    types = _types()
    arrays: dict[str, Any] = {"target_tokens": np.array(datum.target_tokens, np.int64)}
    if loss_fn == "cross_entropy":
        arrays["weights"] = np.array(datum.weights, np.float32)
    else:
        arrays["advantages"] = np.array(datum.advantages, np.float32)
        arrays["logprobs"] = np.array(datum.logprobs, np.float32)
    inputs = {name: types.TensorData.from_numpy(array) for name, array in arrays.items()}
    return types.Datum(model_input=types.ModelInput.from_ints(datum.tokens.tolist()), loss_fn_inputs=inputs)
