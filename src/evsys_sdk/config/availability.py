"""What a config asks for and cannot have, although each of its parts is right: refused, never ignored."""

from __future__ import annotations

from ..errors import Problem
from .experiment import ExperimentConfig
from .prices import backend_of, price_of


def unavailable(config: ExperimentConfig) -> list[Problem]:
    """Limits in dollars on something that has no price: they could not be kept."""
    budget = config.budget
    if budget is None:
        return []
    capped = [
        path for path, limits in (("budget", budget), ("budget.per_arm", budget.per_arm)) if limits and limits.usd
    ]
    if not capped:
        return []
    unpriced = {(run.model.name, backend_of(run)): None for run in config.all_runs() if price_of(run, budget) is None}
    return [_no_price(f"{capped[0]}.usd", model, backend) for model, backend in unpriced]


def _no_price(path: str, model: str, backend: str) -> Problem:
    prices = "{ train_per_million: ..., sample_per_million: ... }"
    hint = f"Add budget.prices: {{ {model}: {prices} }} with your prices, or set a limit in tokens instead."
    return Problem(f"nothing is known about the price of '{model}' on the backend '{backend}'", path, hint=hint)
