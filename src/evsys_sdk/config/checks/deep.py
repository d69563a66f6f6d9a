"""Deep validation: every `kind` exists here, every `params` block fits it, and what a budget limits has a price.

Runs before anything is spent. Works on configs and on the raw data of files that are not valid configs yet, so that
a user hears about everything at once. Equal blocks of many arms are checked once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ...errors import MISSING, ConfigError, EvsysError, MissingExtraError, Problem
from ...protocols import ChecksParams
from ...registry import config_model, registry
from ..base import KindSpec
from ..experiment import ExperimentConfig
from ..fields import Path, item_models_in, join_path, models_in
from ..metadata import BASE_MODEL
from ..prices import backend_of, find_tariff, list_prices, price_of
from ..run import RunConfig
from ..specs import AlgorithmConfig
from .problems import problems_in

_RUN_INDEX = re.compile(r"^runs\[\d+\]")


def deep_problems(config: ExperimentConfig) -> list[Problem]:
    """What is wrong with the kinds and params of a config that is well-formed as such."""
    once: dict[tuple[str, str], Problem] = {}
    for problem in KindCheck().problems(ExperimentConfig, config):
        # The same mistake in a thousand arms of a matrix is one mistake.
        once.setdefault((_RUN_INDEX.sub("runs", problem.path), problem.message), problem)
    # Prices last: to find them, the recipes are looked up, and must be there.
    return list(once.values()) or price_problems(config)


class KindCheck:
    """Checks the `{kind, params}` blocks of models or raw data, and remembers what it has seen."""

    def __init__(self, *, dry: bool = False) -> None:
        self._dry = dry
        """Backends that are not installed do not matter: none of them will be used."""
        self._seen: dict[tuple[str, str, str], list[Problem]] = {}

    def problems(self, model: type[BaseModel], node: Any) -> Iterator[Problem]:
        """Everything wrong with the blocks below `node`, which is a `model` or the data of one."""
        runs = list(_runs(model, node))
        unused = {(*path, "backend") for path, run in runs if _pins_another_backend(run)}
        for path, spec in _specs(model, node, ()):
            if path not in unused:
                yield from _place(self._check(spec), path)
        for path, run in runs:
            yield from self._stage_problems(path, run)

    def _check(self, spec: KindSpec) -> list[Problem]:
        """Problems of one block, with paths relative to it."""
        key = (spec.registry, spec.kind, repr(spec.params))  # raw params may hold what cannot be hashed
        if key not in self._seen:
            # What is inside a block is looked at once its own model accepts it, which reports the rest by itself.
            left_out = self._dry and spec.registry == "backend" and _lacks_its_extra(spec)
            self._seen[key] = [] if left_out else _spec_problems(spec) or list(self._inner_problems(spec))
        return self._seen[key]

    def _inner_problems(self, spec: KindSpec) -> Iterator[Problem]:
        """What is wrong with the blocks inside the params of a block, e.g. the phases of a combo."""
        model = config_model(registry(spec.registry).get(spec.kind))
        if isinstance(model, type) and issubclass(model, BaseModel):
            for path, inner in _specs(model, spec.params, ("params",)):
                yield from (replace(found, path=f".{found.path}") for found in _place(self._check(inner), path))

    def _stage_problems(self, path: Path, run: Any) -> Iterator[Problem]:
        """Params of a continual stage, which are checked together with those of the algorithm they change."""
        algorithm = _instance(AlgorithmConfig, _field(run, "algorithm"))
        stages = _field(_field(run, "continual"), "stages")
        for index, stage in enumerate(cast("list[Any]", stages) if isinstance(stages, list) else ()):
            params = _field(stage, "params")
            if algorithm is None or not isinstance(params, dict):
                continue
            merged = algorithm.model_copy(update={"params": {**algorithm.params, **cast("dict[str, Any]", params)}})
            # Problems of the algorithm itself are reported there, and not again at each stage.
            new = [problem for problem in self._check(merged) if problem not in self._check(algorithm)]
            yield from _place(new, (*path, "continual", "stages", index))


def _specs(model: type[BaseModel], node: Any, path: Path) -> Iterator[tuple[Path, KindSpec]]:
    """Every `{kind, params}` block below `node` that is valid as such, with its place."""
    if issubclass(model, KindSpec) and (spec := _instance(model, node)) is not None:
        yield path, spec
    if isinstance(node, dict | model):
        for name, field, inner_models, item_models in _find_nested(model):
            value = _field(node, name, MISSING)
            if value is MISSING:  # the default has a kind, too, which may not be installed
                value = field.get_default(call_default_factory=True)
            for inner in inner_models:
                yield from _specs(inner, value, (*path, name))
            for inner in item_models if isinstance(value, list) else ():
                for index, item in enumerate(cast("list[Any]", value)):
                    yield from _specs(inner, item, (*path, name, index))


@cache
def _find_nested(model: type[BaseModel]) -> list[tuple[str, FieldInfo, list[type[BaseModel]], list[type[BaseModel]]]]:
    """The fields of a model that may hold other models, and which ones; of ten thousand arms all have the same."""
    found = [
        (name, field, models_in(field.annotation), item_models_in(field.annotation))
        for name, field in model.model_fields.items()
    ]
    return [one for one in found if one[2] or one[3]]


def _runs(model: type[BaseModel], node: Any) -> Iterator[tuple[Path, Any]]:
    if model is RunConfig:
        yield (), node
    else:
        yield ("run",), _field(node, "run")
        runs = _field(node, "runs")
        for index, run in enumerate(cast("list[Any]", runs) if isinstance(runs, list) else ()):
            yield ("runs", index), run


def _pins_another_backend(run: Any) -> bool:
    """Whether a recipe such as `mock_sft` trains elsewhere than the run says, so that nothing need be there."""
    kind, backend = _field(_field(run, "algorithm"), "kind"), _field(_field(run, "backend"), "kind", "tinker")
    try:
        pinned = registry("algorithm").get(kind).pinned_backend if isinstance(kind, str) else None
    except (EvsysError, AttributeError):  # reported elsewhere, or a class that pins none
        return False
    return pinned is not None and pinned != backend


def _field(node: Any, name: str, default: Any = None) -> Any:
    """A field of a model, or of the data of one that may be wrong."""
    if isinstance(node, BaseModel):
        return getattr(node, name, default)
    return cast("Mapping[str, Any]", node).get(name, default) if isinstance(node, Mapping) else default


def _instance[S: KindSpec](model: type[S], node: Any) -> S | None:
    """The block itself; None when it is not valid, which is reported elsewhere."""
    try:
        return model.model_validate(node)
    except ValidationError:
        return None


def _place(problems: list[Problem], path: Path) -> Iterator[Problem]:
    return (replace(problem, path=f"{join_path(path)}{problem.path}") for problem in problems)


def _lacks_its_extra(spec: KindSpec) -> bool:
    try:
        registry(spec.registry).get(spec.kind)
    except MissingExtraError:
        return True
    except EvsysError:
        return False
    return False


def _spec_problems(spec: KindSpec) -> list[Problem]:
    try:
        extension = registry(spec.registry).get(spec.kind)
    except EvsysError as error:
        message, _, hint = str(error).partition("; " if "; did you mean" in str(error) else ". ")
        return [Problem(message.rstrip("."), path=".kind", hint=hint[:1].upper() + hint[1:])]
    model = config_model(extension)
    if model is None:
        return _no_params_expected(spec) if isinstance(extension, type) else []
    try:
        params = model.model_validate(spec.arguments)
        if isinstance(extension, ChecksParams):  # what a schema cannot know, e.g. whether a named class exists
            extension.check_params(params)
    except ValidationError as error:
        problems = problems_in(error, model=model, data=spec.params)
    except ConfigError as error:
        problems = list(error.problems)
    else:
        return []
    return [replace(problem, path=f".params.{problem.path}" if problem.path else ".params") for problem in problems]


def _no_params_expected(spec: KindSpec) -> list[Problem]:
    if not spec.params:
        return []
    message = f"{spec.registry} '{spec.kind}' takes no params"
    return [Problem(message, path=".params", value=spec.params, hint="Remove them.")]


def price_problems(config: ExperimentConfig) -> list[Problem]:
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
