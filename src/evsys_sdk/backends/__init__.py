"""Backends: training and sampling of weights.

client   the protocol of all backends: TrainingClient and SamplingClient
datum    one training sequence
losses   formulas of the named losses on log-probabilities
checks   validation before a call reaches a backend
future   operations that are submitted now and awaited later
mock/    a small, real language model in numpy
local/   a transformers model with an adapter, on torch in this process
tinker/  any server with the Tinker protocol; fireworks/ uses its own client
probes/  tests of a server's actual behaviour
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
