"""Room 4: where weights live.

client   the protocol every backend speaks: TrainingClient and SamplingClient
datum    what is trained on
losses   what every named loss means, as formulas on log-probabilities
checks   what is refused before it reaches a backend
future   operations that are submitted now and awaited later
mock/    a small, real language model in numpy
local/   a model of transformers with an adapter, on torch in this process
tinker/  any server that speaks the Tinker protocol; fireworks/ is one with its own client
probes/  what a server really does, found out by asking it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .client import AdamParams, Capabilities, ModelSpec, SamplingClient, SamplingParams, TrainingClient
    from .datum import Datum
    from .losses import numpy_loss

__all__ = [
    "AdamParams",
    "Capabilities",
    "Datum",
    "ModelSpec",
    "SamplingClient",
    "SamplingParams",
    "TrainingClient",
    "numpy_loss",
]

__getattr__ = lazy_names(
    __name__,
    {
        "client": "AdamParams Capabilities ModelSpec SamplingClient SamplingParams TrainingClient",
        "datum": "Datum",
        "losses": "numpy_loss",
    },
)
