"""Base of training clients in this process: calls are validated immediately and run in order on one thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from . import checks
from .client import AdamParams, Capabilities, ForwardBackwardOutput, OptimStepOutput
from .datum import Datum
from .future import Operation
from .losses import Loss, LossCallable, custom_loss, find_loss
from .worker import CallWorker


class ModelInTraining(Protocol):
    """Weights with their optimizer; one thread owns it."""

    def forward(self, data: Sequence[Datum], loss: Loss) -> ForwardBackwardOutput: ...

    def forward_backward(self, data: Sequence[Datum], loss: Loss) -> ForwardBackwardOutput: ...

    def forward_backward_whole(self, data: Sequence[Datum], loss: Loss) -> ForwardBackwardOutput:
        """`forward_backward` for a loss that may depend on all data together."""
        ...

    def step(self, adam: AdamParams) -> dict[str, float]: ...


class InProcessClient[S: ModelInTraining]:
    """Computation of a training client; each backend adds saving and sampling."""

    capabilities: Capabilities
    _state: S
    _worker: CallWorker

    def forward(
        self, data: Sequence[Datum], loss_fn: str = "cross_entropy", loss_fn_config: Mapping[str, Any] | None = None
    ) -> Operation[ForwardBackwardOutput]:
        """Loss and log-probabilities of all targets, without a gradient."""
        data, loss = self._check(data, loss_fn, loss_fn_config)
        return self._worker.submit("forward", lambda: self._state.forward(data, loss))

    def forward_backward(
        self, data: Sequence[Datum], loss_fn: str, loss_fn_config: Mapping[str, Any] | None = None
    ) -> Operation[ForwardBackwardOutput]:
        """Accumulate the gradient of a named loss."""
        data, loss = self._check(data, loss_fn, loss_fn_config)
        return self._worker.submit("forward_backward", lambda: self._state.forward_backward(data, loss))

    def forward_backward_custom(self, data: Sequence[Datum], loss_fn: LossCallable) -> Operation[ForwardBackwardOutput]:
        """Accumulate the gradient of a custom loss, which runs on the worker's thread."""
        data = list(data)
        checks.check_data(data, self.capabilities)
        loss = custom_loss(loss_fn)
        return self._worker.submit("forward_backward_custom", lambda: self._state.forward_backward_whole(data, loss))

    def optim_step(self, adam: AdamParams) -> Operation[OptimStepOutput]:
        """Apply and reset the accumulated gradient."""
        checks.check_adam(adam)
        return self._worker.submit("optim_step", lambda: OptimStepOutput(self._state.step(adam)))

    def _check(self, data: Sequence[Datum], loss_fn: str, config: Mapping[str, Any] | None) -> tuple[list[Datum], Loss]:
        data = list(data)
        checks.check_loss(loss_fn, config, self.capabilities)
        checks.check_data(data, self.capabilities, loss_fn)
        return data, find_loss(loss_fn, config)
