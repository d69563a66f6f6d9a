"""What a config asks for and cannot have, although each of its parts is right: refused, never ignored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...errors import Problem
from ..experiment import ExperimentConfig
from ..metadata import BASE_MODEL
from ..prices import backend_of, find_tariff, list_prices, price_of


def unavailable(config: ExperimentConfig) -> list[Problem]:
    """Limits in dollars on something that has no price: they could not be kept."""
    budget = config.budget
    limits = () if budget is None else (("budget", budget), ("budget.per_arm", budget.per_arm))
    capped = [path for path, limit in limits if limit and limit.usd]
    if budget is None or not capped:
        return []
    path = f"{capped[0]}.usd"
    # Dicts as sets that keep their order: each model is named once, and in the same order every time.
    unpriced = {(run.model.name, backend_of(run)): None for run in config.all_runs() if price_of(run, budget) is None}
    trained = "{ train: ..., input: ..., output: ... }"
    found = [_no_price(path, f"'{model}' on the backend '{kind}'", model, trained) for model, kind in unpriced]
    hosted = {
        (place, model): None
        for place, kind, model, listed in _iter_hosted_models(config)
        if find_tariff(kind, model, budget.prices, list_prices(kind) if listed else {}) is None
    }
    asked = "{ input: ..., output: ... }"
    return found + [_no_price(at, f"'{model}', and the budget is in usd", model, asked) for at, model in hosted]


def _iter_hosted_models(config: ExperimentConfig) -> Iterator[tuple[str, str, str, bool]]:
    """Place, kind and name of every model that is asked by name, and whether it is asked where list prices hold."""
    for index, entry in enumerate(config.metadata.benchmark):
        for at, named in enumerate(entry.models):
            kind, _, model = named.partition(":")
            if named != BASE_MODEL:
                yield f"metadata.benchmark[{index}].models[{at}]", kind, model, True
    for index, run in enumerate(config.all_runs()):
        inference = run.eval.inference if run.eval.enabled and run.eval.metrics else None
        params: dict[str, Any] = inference.params if inference else {}
        if inference is not None and "model" in params and not params.get("prices"):
            place = "run" if config.run is not None else f"runs[{index}]"
            yield f"{place}.eval.inference", inference.kind, str(params["model"]), not params.get("base_url")


def _no_price(path: str, what: str, model: str, prices: str) -> Problem:
    hint = f"Add budget.prices: {{ {model}: {prices} }} with your prices, or set a limit in tokens instead."
    return Problem(f"nothing is known about the price of {what}", path, hint=hint)
