"""What the runs of an experiment cost where they run, and what cannot be known about that."""

from __future__ import annotations

import sys
from typing import Any

from ..backends.prices import price_for
from ..config.experiment import Budget, ExperimentConfig, TrainingPrice
from ..config.metadata import BASE_MODEL
from ..config.run import RunConfig
from ..errors import Problem
from ..registry import get_algorithm


def price_of(run: RunConfig, budget: Budget) -> TrainingPrice | None:
    """What the model of a run costs on its backend; None where that is not known."""
    return price_for(run.model.name, backend_of(run), budget.prices)


def backend_of(run: RunConfig) -> str:
    """The backend that a run really trains on: its own, or the one its recipe insists on."""
    return getattr(get_algorithm(run.algorithm.kind), "pinned_backend", None) or run.backend.kind


def budget_problems(config: ExperimentConfig) -> list[Problem]:
    """Limits in dollars on something that has no price: refused, because they could not be kept."""
    budget = config.budget
    if budget is None:
        return []
    capped = ["budget.usd"] if budget.usd is not None else []
    capped += ["budget.per_arm.usd"] if budget.per_arm is not None and budget.per_arm.usd is not None else []
    if not capped:
        return []
    unpriced = {(backend_of(run), run.model.name): run for run in config.all_runs() if price_of(run, budget) is None}
    problems = [_no_price(path, backend, model) for path in capped[:1] for backend, model in unpriced]
    for index, entry in enumerate(config.metadata.benchmark):
        for at, model in enumerate(entry.models):
            if model != BASE_MODEL and not _has_list_price(model, budget):
                path = f"metadata.benchmark[{index}].models[{at}]"
                hint = f"Give one in budget.prices['{model}'], or set a limit in tokens instead of usd."
                problems.append(Problem("this model has no known price, and the budget is in usd", path, model, hint))
    return problems


def _no_price(path: str, backend: str, model: str) -> Problem:
    hint = (
        f"Add budget.prices: {{ '{model}': {{ train_per_million: ..., sample_per_million: ... }} }} with your prices, "
        "or set a limit in tokens instead."
    )
    return Problem(f"nothing is known about the price of '{model}' on the backend '{backend}'", path, hint=hint)


def _has_list_price(named: str, budget: Budget) -> bool:
    from ..inference.prices import TokenUsage, claude_prices, cost_of, gemini_prices, openai_prices

    kind, _, model = named.partition(":")
    tables = {"openai": openai_prices, "claude": claude_prices, "gemini": gemini_prices}
    listed = kind in tables and cost_of(model, TokenUsage(0, 0), tables[kind]()) is not None
    return kind == "mock" or listed or bool({named, model} & set(budget.prices))


def gpus_held(run: RunConfig, price: TrainingPrice | None) -> float:
    """How many GPUs an arm holds: one of this machine's for `local`, or the one that is paid for by the hour."""
    backend = backend_of(run)
    if backend == "mock":
        return 0.0
    if backend == "local":
        torch: Any = sys.modules.get("torch")  # loaded where it is used; asking must not cost its import
        return 1.0 if torch is not None and torch.cuda.is_available() else 0.0
    return 1.0 if price is not None and price.gpu_hour else 0.0
