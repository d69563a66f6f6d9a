"""Our training client on top of the SDK's, with the calls, sums and errors of every backend.

Calls are validated here and sent in order; a backward pass and a step submitted together are sent together. Custom
losses and losses that the server lacks are computed here: a forward pass, our gradient, and a cross-entropy whose
weights are minus that gradient. No torch is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ...config.prices import TokenUsage
from ...errors import BackendError
from ...log import get_logger
from .. import checks
from ..client import AdamParams, Capabilities, ForwardBackwardOutput, OptimStepOutput
from ..datum import Datum, Floats
from ..future import Operation
from ..losses import Loss, LossCallable, check_config, custom_loss, find_loss
from ..seeds import RequestSeeds
from . import datums, state
from .errors import LossFunctionError
from .pipeline import Pipeline
from .quirks import Quirks
from .sampling import SamplerContext, TinkerSamplingClient
from .session import Session


class TinkerTrainingClient:
    """Weights in training on a Tinker server."""

    _step_options: Mapping[str, Any] = {}
    """Additional options of a step besides Adam's parameters."""

    def __init__(
        self,
        *,
        session: Session,
        pipeline: Pipeline,
        training: Any,
        adapter: state.TrainedAdapter,
        capabilities: Capabilities,
        tokenizer: Any,
        quirks: Quirks,
        run_dir: Path,
        seed: int = 0,
    ) -> None:
        self._session, self._pipeline, self._training = session, pipeline, training
        self._adapter, self._quirks, self._run_dir = adapter, quirks, run_dir
        self._seeds, self._version = RequestSeeds(seed), 0
        self._warned_of_clipping = quirks.clips_gradients
        self.model_name = adapter.model
        self.tokenizer = tokenizer
        self.capabilities = capabilities

    def forward(
        self, data: Sequence[Datum], loss_fn: str = "cross_entropy", loss_fn_config: Mapping[str, Any] | None = None
    ) -> Operation[ForwardBackwardOutput]:
        """Loss and log-probabilities without a gradient."""
        data = self._check(data, loss_fn, loss_fn_config)
        loss = find_loss(loss_fn, loss_fn_config)
        return self._pipeline.submit(
            "forward", lambda: self._pass("forward", data), lambda answer: self._compute_loss(answer, data, loss)
        )

    def forward_backward(
        self, data: Sequence[Datum], loss_fn: str, loss_fn_config: Mapping[str, Any] | None = None
    ) -> Operation[ForwardBackwardOutput]:
        """Accumulate the gradient of a named loss."""
        data = self._check(data, loss_fn, loss_fn_config)
        loss = find_loss(loss_fn, loss_fn_config)
        if loss_fn not in self._quirks.native_losses:
            return self._compute_here("forward_backward", data, loss)
        return self._pipeline.submit(
            "forward_backward",
            lambda: self._pass("forward_backward", data, loss_fn, check_config(loss_fn, loss_fn_config)),
            lambda answer: self._compute_loss(answer, data, loss),
            changes_weights=True,
        )

    def forward_backward_custom(self, data: Sequence[Datum], loss_fn: LossCallable) -> Operation[ForwardBackwardOutput]:
        """Accumulate the gradient of a custom loss, which runs on a thread of this client."""
        data = list(data)
        checks.check_data(data, self.capabilities)
        return self._compute_here("forward_backward_custom", data, custom_loss(loss_fn))

    def optim_step(self, adam: AdamParams) -> Operation[OptimStepOutput]:
        """Apply and reset the accumulated gradient."""
        checks.check_adam(adam)
        self._warn_if_not_clipped(adam)
        params = self._types().AdamParams(**asdict(adam), **self._step_options)
        stepped = self._pipeline.submit(
            "optim_step",
            lambda: self._watch(self._training.optim_step(params)),
            self._convert_step,
            changes_weights=True,
        )
        self._version += 1  # at the call: later samplers have the weights after this step
        return stepped

    def _warn_if_not_clipped(self, adam: AdamParams) -> None:
        if adam.grad_clip_norm > 0 and not self._warned_of_clipping:
            self._warned_of_clipping = True
            get_logger(__name__).warning(
                "%s ignores grad_clip_norm (%g), so gradients are not clipped", self._session.where, adam.grad_clip_norm
            )

    def save_state(self, name: str) -> Operation[str]:
        """Store weights and optimizer on the server; returns the reference for `load_state`."""
        unused = self._make_name(name)

        def convert_saved(answer: Any) -> str:
            ref = self._ref_of(str(answer.path))
            state.write_sidecar(self._run_dir, unused, ref, self._session.base_url, self._adapter)
            return ref

        return self._pipeline.submit(
            "save_state", lambda: self._watch(self._training.save_state(unused, **self._kept_for())), convert_saved
        )

    def load_state(self, ref: str, *, with_optimizer: bool = True) -> Operation[None]:
        """Load a stored state; without its optimizer, the optimizer is reset."""

        def load() -> Any:
            return restore(self._session, state.check_reference(ref), self._adapter, self._run_dir, with_optimizer)

        def swap(training: Any) -> None:
            self._training = training

        # Atomic: the restored model replaces the old one only on success.
        loaded = self._pipeline.submit("load_state", lambda: swap(load()), lambda _: None)
        self._version += 1
        return loaded

    def sampler(self, name: str | None = None) -> Operation[TinkerSamplingClient]:
        """A frozen copy of the current weights; with a name it is stored and can be reopened."""
        unused, version = None if name is None else self._make_name(name), self._version

        def snapshot() -> TinkerSamplingClient:
            if unused is None:
                copied = self._training.save_weights_and_get_sampling_client(retry_config=self._quirks.retry_config())
                return TinkerSamplingClient(self._quirks.sampler(copied), "", self._context(), version)
            stored = self._pipeline.wait(self._training.save_weights_for_sampler(unused, **self._kept_for()))
            return self._session.sampler(self._context(), stored.path, version=version)

        return self._pipeline.submit("sampler", snapshot, lambda sampler: sampler)

    def open_sampler(self, ref: str) -> Operation[TinkerSamplingClient]:
        """Open a stored sampler."""
        version = self._version
        return self._pipeline.submit(
            "open_sampler",
            lambda: self._session.sampler(self._context(), ref, version=version),
            lambda sampler: sampler,
        )

    def close(self) -> None:
        """End the session; closing twice has no effect."""
        self._pipeline.close()
        if self._pipeline.broken is None:
            self._session.close("success")
        else:
            self._session.close("errored", timeout_s=1.0)  # the server may be gone, so wait only briefly

    def usage_of(self, data: Sequence[Datum], loss_fn: str | None) -> TokenUsage:
        """The tokens of one backward pass; a loss computed here needs a forward pass too.

        `loss_fn` is None for a custom loss. Expanded soft targets take one pass per alternative.
        """
        wide = self._quirks.expand_soft_targets
        sizes = (
            len(datum) * (datum.target_tokens.shape[1] if wide and datum.target_tokens.ndim > 1 else 1)
            for datum in data
        )
        tokens = sum(sizes)
        return TokenUsage(0 if self._answers_at_once(loss_fn) else tokens, 0, trained_tokens=tokens)

    def _answers_at_once(self, loss_fn: str | None) -> bool:
        return loss_fn in self._quirks.native_losses

    def _types(self) -> Any:
        """The SDK's classes for requests."""
        return import_module("tinker").types

    def _watch(self, promise: Any) -> Any:
        """The SDK's result of an operation, in the pipeline's form."""
        return promise

    def _make_name(self, name: str) -> str:
        return state.make_name(name)

    def _ref_of(self, path: str) -> str:
        return path

    def _kept_for(self) -> dict[str, int]:
        ttl = self._session.config.checkpoint_ttl_s
        return {} if ttl is None else {"ttl_seconds": ttl}

    def _context(self) -> SamplerContext:
        return SamplerContext(
            self._pipeline,
            self.capabilities,
            self.tokenizer,
            self._seeds.next,
            lambda: self._version,
            self._quirks,
        )

    def _check(self, data: Sequence[Datum], loss_fn: str, config: Mapping[str, Any] | None) -> list[Datum]:
        data = list(data)
        checks.check_loss(loss_fn, config, self.capabilities)
        checks.check_data(data, self.capabilities, loss_fn)
        return data

    def _pass(
        self,
        kind: str,
        data: Sequence[Datum],
        loss_fn: str = "cross_entropy",
        params: Mapping[str, float] | None = None,
    ) -> Any:
        """Send a pass; scaled so that its loss is a sum, with soft targets in the server's form."""
        scaled = datums.undo_mean(data, self._quirks.loss_reduction)
        sent = datums.expand(scaled) if self._quirks.expand_soft_targets else scaled
        wire = datums.to_wire(self._types(), sent, loss_fn)
        send = getattr(self._training, kind)
        return self._watch(send(wire, loss_fn, dict(params)) if params else send(wire, loss_fn))

    def _logprobs(self, answer: Any, data: Sequence[Datum]) -> list[Floats]:
        if not self._quirks.expand_soft_targets:
            return datums.logprobs_of(answer, data, self._session.where)
        expanded = datums.logprobs_of(answer, datums.expand(data), self._session.where)
        return datums.collect(expanded, data)

    def _compute_loss(self, answer: Any, data: Sequence[Datum], loss: Loss) -> ForwardBackwardOutput:
        """The loss as a sum, from the log-probabilities: servers report it in different ways."""
        logprobs = self._logprobs(answer, data)
        value, metrics, _ = loss(data, logprobs)
        return ForwardBackwardOutput(value, logprobs, {**_read_metrics(answer, metrics), **metrics})

    def _compute_here(self, what: str, data: list[Datum], loss: Loss) -> Operation[ForwardBackwardOutput]:
        def start() -> Any:
            logprobs = self._logprobs(self._pipeline.wait(self._pass("forward", data)), data)
            try:
                value, metrics, gradients = loss(data, logprobs)
            except Exception as error:
                raise LossFunctionError(error) from error
            outputs.append(ForwardBackwardOutput(value, logprobs, metrics))
            # Minus the gradient: the derivative of a cross-entropy by a log-probability is minus its weight.
            weighted = [replace(datum, weights=-gradient) for datum, gradient in zip(data, gradients, strict=True)]
            return self._pass("forward_backward", weighted)

        def convert_pass(answer: Any) -> ForwardBackwardOutput:
            return outputs[0]

        outputs: list[ForwardBackwardOutput] = []
        return self._pipeline.submit(what, start, convert_pass, changes_weights=True)

    def _convert_step(self, answer: Any) -> OptimStepOutput:
        reported: dict[str, Any] = answer.metrics or {}
        metrics = {str(key): float(value) for key, value in reported.items()}
        norm = next((value for key, value in metrics.items() if key.endswith("/grad_norm")), None)
        if norm is not None:  # some servers prefix the name
            metrics.setdefault("grad_norm", norm)
        return OptimStepOutput(metrics)


def restore(session: Session, ref: str, adapter: state.TrainedAdapter, run_dir: Path, with_optimizer: bool) -> Any:
    """A new model on the server with the weights of a checkpoint; blocks until ready."""
    state.check_sidecar(run_dir, ref, adapter)
    service = session.service
    if not all(adapter.layers().values()):
        _check_layers(session, ref, adapter)
    if with_optimizer:
        return service.create_training_client_from_state_with_optimizer(ref)
    return service.create_training_client_from_state(ref)


def _check_layers(session: Session, ref: str, adapter: state.TrainedAdapter) -> None:
    """Refuse to continue with other layers: a server that does not store them would train all."""
    info = session.service._rest_client().get_weights_info_by_tinker_path(ref).result()
    for name, trained in adapter.layers().items():
        stored = getattr(info, name, None)
        if (True if stored is None else stored) != trained:
            raise BackendError(
                f"{session.where} reports {name}={stored} for {ref}, which was trained with {trained}. Resuming would "
                "train other layers than before; use a server that keeps this, or train all layers."
            )


def _read_metrics(answer: Any, ours: Mapping[str, float]) -> dict[str, float]:
    """The server's metrics of a pass, without the loss and values computed here."""
    names = {"loss", *ours}
    return {key: float(value) for key, value in answer.metrics.items() if key.partition(":")[0] not in names}
