"""What an arm costs beside its tokens: GPUs that it holds, and hosted models that it is compared with."""

from __future__ import annotations

import sys
from typing import Any

from ..config.experiment import ExperimentConfig, TrainingPrice
from ..config.metadata import BASE_MODEL
from ..config.prices import backend_of
from ..config.run import RunConfig
from ..errors import Problem


def baseline_price_problems(config: ExperimentConfig) -> list[Problem]:
    """Hosted baselines without a known price, where the budget is in dollars."""
    budget = config.budget
    if budget is None or (budget.usd is None and (budget.per_arm is None or budget.per_arm.usd is None)):
        return []
    problems: list[Problem] = []
    for index, entry in enumerate(config.metadata.benchmark):
        for at, model in enumerate(entry.models):
            if model != BASE_MODEL and not _has_list_price(model):
                path = f"metadata.benchmark[{index}].models[{at}]"
                hint = "Set a limit in tokens instead of usd, or leave the model out."
                problems.append(Problem("this model has no known price, and the budget is in usd", path, model, hint))
    return problems


def _has_list_price(named: str) -> bool:
    from ..inference.prices import TokenUsage, claude_prices, cost_of, gemini_prices, openai_prices

    kind, _, model = named.partition(":")
    tables = {"openai": openai_prices, "claude": claude_prices, "gemini": gemini_prices}
    listed = kind in tables and cost_of(model, TokenUsage(0, 0), tables[kind]()) is not None
    return kind == "mock" or listed


def gpus_held(run: RunConfig, price: TrainingPrice | None) -> float:
    """How many GPUs an arm holds: one of this machine's for `local`, or the one that is paid for by the hour."""
    backend = backend_of(run)
    if backend == "mock":
        return 0.0
    if backend == "local":
        torch: Any = sys.modules.get("torch")  # loaded where it is used; asking must not cost its import
        wanted = run.backend.params.get("device") != "cpu"
        return 1.0 if wanted and torch is not None and torch.cuda.is_available() else 0.0
    return 1.0 if price is not None and price.gpu_hour else 0.0
