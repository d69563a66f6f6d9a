"""Recomputation: of every layer only its input is kept, and the layer is run again when its gradient is due.

Memory for a pass shrinks to a fraction, and the pass takes about half as long again: weights are frozen, so that a
layer's gradient costs as much as the layer, and now it runs twice. The gradient is the same to the last bit on a CPU:
the second run sees the same adapter and draws the same random numbers as the first.

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
"""Called before the first run; what it returns surrounds the second."""


def run_again(function: Callable[..., Any], *args: Any, again: Again = contextlib.nullcontext[None]) -> Any:
    """Call a function whose intermediate results are forgotten, and computed once more for the gradient."""
    return checkpoint(
        function,
        *args,
        use_reentrant=False,
        preserve_rng_state=False,  # models are in eval mode, and dropout has its own generator
        context_fn=lambda: (contextlib.nullcontext(), again()),
    )


@contextlib.contextmanager
def recompute_layers(base: Base, changes: Mapping[str, Change]) -> Generator[None]:
    """Run the layers of a base in this way for the length of a block. The backward pass may come after it."""
    layers = find_layers(base.body)
    # Some models have a forward of their own set on the layer, which has to come back.
    own = [layer.__dict__.get("forward") for layer in layers]
    for layer in layers:
        layer.forward = functools.partial(_recompute, base.switch, changes, layer.forward)
    try:
        yield
    finally:
        for layer, forward in zip(layers, own, strict=True):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward


def find_layers(body: nn.Module) -> list[nn.Module]:
    """The layers that a model consists of for the most part, one after another; none where there is no such list."""
    lists = [module for module in body.modules() if isinstance(module, nn.ModuleList) and len(module)]
    sizes = [sum(parameter.numel() for parameter in module.parameters()) for module in lists]
    # A list inside a layer, e.g. of experts, is never the largest.
    largest = max(zip(sizes, lists, strict=True), key=lambda one: one[0], default=(0, None))[1]
    return [] if largest is None else list(largest)


def _recompute(
    switch: Switch, changes: Mapping[str, Change], forward: Callable[..., Any], *args: Any, **options: Any
) -> Any:
    return run_again(functools.partial(forward, **options), *args, again=lambda: _as_before(switch, changes))


def _as_before(switch: Switch, changes: Mapping[str, Change]) -> contextlib.AbstractContextManager[None]:
    """What makes the second run like the first, as things stand now."""
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
