"""What training and sampling cost on each backend.

Only what costs nothing is built in: list prices of hosted training change often and differ by contract, so they come
from `budget.prices`. What has no price there has no known cost, and a limit in dollars on it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..registry import get_algorithm
from .experiment import Budget, TrainingPrice
from .run import RunConfig

FREE_BACKENDS = ("mock", "local")
"""Backends that run on the machine at hand and bill nobody."""


def price_of(run: RunConfig, budget: Budget) -> TrainingPrice | None:
    """What the model of a run costs on its backend; None where that is not known."""
    return price_for(run.model.name, backend_of(run), budget.prices)


def price_for(model: str, backend: str, prices: Mapping[str, TrainingPrice]) -> TrainingPrice | None:
    """The price of a model: its own, else its backend's, else nothing for what is free; None where there is none."""
    free = TrainingPrice() if backend in FREE_BACKENDS else None
    return prices.get(model) or prices.get(backend) or free


def backend_of(run: RunConfig) -> str:
    """The backend that a run really trains on: its own, or the one its recipe insists on."""
    return getattr(get_algorithm(run.algorithm.kind), "pinned_backend", None) or run.backend.kind
