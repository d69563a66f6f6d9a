"""Activation recomputation (gradient checkpointing): keep only the input of each layer, and rerun it in backward.

A pass needs a fraction of the memory and about 1.5 times the time: weights are frozen, so a layer's backward pass costs
as much as its forward pass, which now runs twice. On a CPU the gradient is bitwise equal, because the second run uses
the same adapter and the same random numbers.

    with recompute_layers(base, changes): hidden = base.hidden(...)     # the model's own modules
    x = run_again(layer_of_my_own, x)                              # any function of tensors
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..base.loading import Base
from ..base.lora import Change, LoRAPart, Switch

type Again = Callable[[], contextlib.AbstractContextManager[None]]
"""Called before the first run; returns a context manager for the second run."""


def run_again(function: Callable[..., Any], *args: Any, again: Again = contextlib.nullcontext[None]) -> Any:
    """Call a function without keeping its intermediate results; recompute them in the backward pass."""
    return checkpoint(
        function,
        *args,
        use_reentrant=False,
        preserve_rng_state=False,  # models are in eval mode, and dropout has its own generator
        context_fn=lambda: (contextlib.nullcontext(), again()),
    )


@contextlib.contextmanager
def recompute_layers(base: Base, changes: Mapping[str, Change]) -> Generator[None]:
    """Recompute the layers of a base that run within a block. The backward pass may run after the block."""
    layers = find_layers(base.body)
    # Some models set a forward on the layer instance; it is restored afterwards.
    forwards = [layer.__dict__.get("forward") for layer in layers]
    for layer in layers:
        layer.forward = functools.partial(_recompute, base.switch, changes, layer.forward)
    try:
        yield
    finally:
        for layer, forward in zip(layers, forwards, strict=True):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward


def find_layers(body: nn.Module) -> list[nn.Module]:
    """Return the decoder layers, the `ModuleList` with the most parameters; empty if there is no list."""
    lists = [module for module in body.modules() if isinstance(module, nn.ModuleList) and len(module)]
    sizes = [sum(parameter.numel() for parameter in module.parameters()) for module in lists]
    # A list inside a layer, e.g. of experts, is never the largest.
    largest = max(zip(sizes, lists, strict=True), key=lambda pair: pair[0], default=(0, None))[1]
    return [] if largest is None else list(largest)


def _recompute(
    switch: Switch, changes: Mapping[str, Change], forward: Callable[..., Any], *args: Any, **options: Any
) -> Any:
    return run_again(functools.partial(forward, **options), *args, again=lambda: _as_before(switch, changes))


def _as_before(switch: Switch, changes: Mapping[str, Change]) -> contextlib.AbstractContextManager[None]:
    """Return a context manager for the second run with the present changes and random state."""
    generator = next((part.generator for part in changes.values() if isinstance(part, LoRAPart)), None)
    state = None if generator is None else generator.get_state()
    return _restore(switch, changes, generator, state)


@contextlib.contextmanager
def _restore(
    switch: Switch, changes: Mapping[str, Change], generator: torch.Generator | None, state: Tensor | None
) -> Generator[None]:
    if generator is not None and state is not None:
        generator.set_state(state)
    with switch.using(changes):
        yield
