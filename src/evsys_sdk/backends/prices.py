"""What training and sampling cost on each backend.

Only what costs nothing is known here: list prices of hosted training change often and differ by contract, so they come
from `budget.prices` of the config. A backend without a price has no cost, and a limit in dollars is then refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..config.experiment import TrainingPrice

type TrainingPrices = Mapping[str, TrainingPrice]
"""Model name or backend kind -> what it costs."""

FREE_BACKENDS = ("mock", "local")
"""Backends that run on the machine at hand and bill nobody."""


def price_for(model: str, backend: str, prices: TrainingPrices) -> TrainingPrice | None:
    """The price of a model: its own, else its backend's, else the built-in one; None where there is none."""
    free = TrainingPrice() if backend in FREE_BACKENDS else None
    return prices.get(model) or prices.get(backend) or free
