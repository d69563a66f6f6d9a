"""Deep validation: every `kind` exists, its `params` fit, and everything under a dollar limit has a price.

Works on configs and on the raw data of invalid files, so that all problems are reported at once. Equal blocks of many
arms are checked once.
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
    """The problems of a valid config's kinds, params and prices."""
    once: dict[tuple[str, str], Problem] = {}
    for problem in KindCheck().problems(ExperimentConfig, config):
        # A mistake that all arms of a matrix share is reported once.
        once.setdefault((_RUN_INDEX.sub("runs", problem.path), problem.message), problem)
    # Prices last, because they need the registered recipes.
    return list(once.values()) or price_problems(config)


class KindCheck:
    """Checks the `{kind, params}` blocks of models or raw data, with a cache of checked blocks."""

    def __init__(self, *, dry: bool = False) -> None:
        self._dry = dry
        """Whether backends that are not installed are accepted, because a dry run uses none."""
        self._seen: dict[tuple[str, str, str], list[Problem]] = {}

    def problems(self, model: type[BaseModel], node: Any) -> Iterator[Problem]:
        """The problems of the blocks below `node`, which is a `model` or its raw data."""
        runs = list(_runs(model, node))
        unused = {(*path, "backend") for path, run in runs if _pins_another_backend(run)}
        for path, spec in _specs(model, node, ()):
            if path not in unused:
                yield from _place(self._check(spec), path)
        for path, run in runs:
            yield from self._stage_problems(path, run)

    def _check(self, spec: KindSpec) -> list[Problem]:
        """Problems of one block, with paths relative to it."""
        key = (spec.registry, spec.kind, repr(spec.params))  # `repr`, because raw params may not be hashable
        if key not in self._seen:
            # Inner blocks are checked only if the model of the outer block accepts them.
            left_out = self._dry and spec.registry == "backend" and _lacks_its_extra(spec)
            self._seen[key] = [] if left_out else _spec_problems(spec) or list(self._inner_problems(spec))
        return self._seen[key]

    def _inner_problems(self, spec: KindSpec) -> Iterator[Problem]:
        """The problems of the blocks inside the params of a block, e.g. the phases of a combo."""
        model = config_model(registry(spec.registry).get(spec.kind))
        if isinstance(model, type) and issubclass(model, BaseModel):
            for path, inner in _specs(model, spec.params, ("params",)):
                problems = _place(self._check(inner), path)
                yield from (replace(problem, path=f".{problem.path}") for problem in problems)

    def _stage_problems(self, path: Path, run: Any) -> Iterator[Problem]:
        """The problems of the params of continual stages, merged with those of the algorithm."""
        algorithm = _instance(AlgorithmConfig, _field(run, "algorithm"))
        stages = _field(_field(run, "continual"), "stages")
        for index, stage in enumerate(cast("list[Any]", stages) if isinstance(stages, list) else ()):
            params = _field(stage, "params")
            if algorithm is None or not isinstance(params, dict):
                continue
            merged = algorithm.model_copy(update={"params": {**algorithm.params, **cast("dict[str, Any]", params)}})
            # Without the problems of the algorithm itself, which are reported there.
            new = [problem for problem in self._check(merged) if problem not in self._check(algorithm)]
            yield from _place(new, (*path, "continual", "stages", index))


def _specs(model: type[BaseModel], node: Any, path: Path) -> Iterator[tuple[Path, KindSpec]]:
    """Every valid `{kind, params}` block below `node`, with its path."""
    if issubclass(model, KindSpec) and (spec := _instance(model, node)) is not None:
        yield path, spec
    if isinstance(node, dict | model):
        for name, field, inner_models, item_models in _find_nested(model):
            value = _field(node, name, MISSING)
            if value is MISSING:  # the default has a kind too, which may not be installed
                value = field.get_default(call_default_factory=True)
            for inner in inner_models:
                yield from _specs(inner, value, (*path, name))
            for inner in item_models if isinstance(value, list) else ():
                for index, item in enumerate(cast("list[Any]", value)):
                    yield from _specs(inner, item, (*path, name, index))


@cache
def _find_nested(model: type[BaseModel]) -> list[tuple[str, FieldInfo, list[type[BaseModel]], list[type[BaseModel]]]]:
    """The fields of a model that may hold other models, with these models; cached for large matrices."""
    fields = [
        (name, field, models_in(field.annotation), item_models_in(field.annotation))
        for name, field in model.model_fields.items()
    ]
    return [field for field in fields if field[2] or field[3]]


def _runs(model: type[BaseModel], node: Any) -> Iterator[tuple[Path, Any]]:
    if model is RunConfig:
        yield (), node
    else:
        yield ("run",), _field(node, "run")
        runs = _field(node, "runs")
        for index, run in enumerate(cast("list[Any]", runs) if isinstance(runs, list) else ()):
            yield ("runs", index), run


def _pins_another_backend(run: Any) -> bool:
    """Whether a recipe such as `mock_sft` trains on another backend, so that the run's backend is unused."""
    kind, backend = _field(_field(run, "algorithm"), "kind"), _field(_field(run, "backend"), "kind", "tinker")
    try:
        pinned = registry("algorithm").get(kind).pinned_backend if isinstance(kind, str) else None
    except (EvsysError, AttributeError):  # reported elsewhere, or without a pinned backend
        return False
    return pinned is not None and pinned != backend


def _field(node: Any, name: str, default: Any = None) -> Any:
    """A field of a model, or of its raw data, which may be invalid."""
    if isinstance(node, BaseModel):
        return getattr(node, name, default)
    return cast("Mapping[str, Any]", node).get(name, default) if isinstance(node, Mapping) else default


def _instance[S: KindSpec](model: type[S], node: Any) -> S | None:
    """The block as a model; None if it is invalid, which is reported elsewhere."""
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
        if isinstance(extension, ChecksParams):  # beyond the schema, e.g. whether a named class exists
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
    """Dollar limits on models without a price, which cannot be enforced."""
    budget = config.budget
    limits = () if budget is None else (("budget", budget), ("budget.per_arm", budget.per_arm))
    capped = [path for path, limit in limits if limit and limit.usd]
    if budget is None or not capped:
        return []
    path = f"{capped[0]}.usd"
    # Dicts as ordered sets: each model is reported once, in a fixed order.
    unpriced = {(run.model.name, backend_of(run)): None for run in config.all_runs() if price_of(run, budget) is None}
    trained = "{ train: ..., input: ..., output: ... }"
    problems = [_no_price(path, f"'{model}' on the backend '{kind}'", model, trained) for model, kind in unpriced]
    hosted = {
        (place, model): None
        for place, kind, model, listed in _iter_hosted_models(config)
        if find_tariff(kind, model, budget.prices, list_prices(kind) if listed else {}) is None
    }
    hosted_price = "{ input: ..., output: ... }"
    return problems + [
        _no_price(at, f"'{model}', and the budget is in usd", model, hosted_price) for at, model in hosted
    ]


def _iter_hosted_models(config: ExperimentConfig) -> Iterator[tuple[str, str, str, bool]]:
    """Path, kind and name of every hosted model, and whether list prices apply to it."""
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


def _no_price(path: str, subject: str, model: str, prices: str) -> Problem:
    hint = f"Add budget.prices: {{ {model}: {prices} }} with your prices, or set a limit in tokens instead."
    return Problem(f"no price is known for {subject}", path, hint=hint)
