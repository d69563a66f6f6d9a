"""Which fields of a config may change, read from the JSON schemas of the kinds it names.

By default that is the recipe: the params of `algorithm`, of the phases of a combo, and of continual stages. What a run
is measured on and what it learns from stay as they are, because a child that changes them cannot be compared with its
parent; `--only data.transforms` or `--only backend` opens those blocks, too. A field takes part if its schema says what
is legal: a number, a choice or a boolean. Schemas may say more: `scale: log`, `search: false`, and `applies_when`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from ...config import AlgorithmConfig
from ...config.fields import Path, child, item_models_in, join_path, split_dotted
from ...errors import MISSING, EvsysError
from ...registry import config_model, get_algorithm, get_backend, registry

type Kind = Literal["int", "float", "bool", "choice"]


@dataclass(frozen=True, slots=True)
class MutableField:
    """One field that may change."""

    path: Path
    """Where it stands in the file."""
    kind: Kind
    value: Any
    """What it is now; the default where the file does not set it."""
    low: float | None = None
    high: float | None = None
    low_open: bool = False
    """Whether `low` itself is not allowed."""
    high_open: bool = False
    log: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        return join_path(self.path)

    def allows(self, value: Any) -> bool:
        """Whether a value is legal for this field alone."""
        if self.kind in ("bool", "choice"):
            return value in self.choices
        above = self.low is None or (value > self.low if self.low_open else value >= self.low)
        below = self.high is None or (value < self.high if self.high_open else value <= self.high)
        return above and below


def run_paths(data: Mapping[str, Any]) -> list[Path]:
    """Where the runs of a file stand: `run`, each of `runs`, or what a matrix or a search starts from."""
    if isinstance(data.get("run"), dict):
        return [("run",)]
    if isinstance(runs := data.get("runs"), list):
        return [("runs", index) for index in range(len(cast("list[Any]", runs)))]
    if isinstance(data.get("base_run"), dict):
        return [("base_run",)]
    inside = child(data.get("matrix"), "base_run")
    return [("matrix", "base_run")] if isinstance(inside, dict) else []


def mutation_space(data: Mapping[str, Any], run: Path, *, opened: Sequence[str] = ()) -> list[MutableField]:
    """Every field of one run that may change; `opened` names blocks next to the recipe."""
    node = value_at(data, run)
    taken = {split_dotted(axis) for axis in _axes(data)}
    found = [field for block in _blocks(node, opened) for field in _block_fields(node, block)]
    ignored = _find_ignored_params(node)
    found = [field for field in found if not (field.path[0] == "algorithm" and field.path[-1] in ignored)]
    free = [field for field in found if not any(field.path[: len(axis)] == axis for axis in taken)]
    fields = [replace(field, path=(*run, *field.path)) for field in free]
    return list({field.path: field for field in fields}.values())


def _find_ignored_params(run: Any) -> frozenset[str]:
    """What the backend of a run records of a recipe without acting on it."""
    try:
        recipe = get_algorithm(str(child(child(run, "algorithm"), "kind")))
        backend = getattr(recipe, "pinned_backend", None) or child(child(run, "backend"), "kind")
        return getattr(get_backend(str(backend)), "without_effect", frozenset())
    except EvsysError:  # validation reports its problems
        return frozenset()


def value_at(data: Any, path: Path) -> Any:
    """What stands at a path, or MISSING."""
    for part in path:
        data = child(data, part)
    return data


def _axes(data: Mapping[str, Any]) -> list[str]:
    """Paths into the run that a matrix or a search sets; changing the template there would change nothing."""
    axes = [child(data.get("matrix"), "axes"), child(data.get("search"), "space")]
    return [str(axis) for found in axes if isinstance(found, dict) for axis in cast("dict[Any, Any]", found)]


@dataclass(frozen=True, slots=True)
class _Block:
    """A `{kind, params}` block inside a run."""

    registry: str
    kind: str
    path: Path
    """Of its params."""
    params: Mapping[str, Any]
    only_set: bool = False
    """Whether only what the file sets may change."""


def _blocks(run: Any, opened: Sequence[str]) -> Iterator[_Block]:
    yield from _with_phases("algorithm", child(run, "algorithm"), ("algorithm",))
    kind = child(child(run, "algorithm"), "kind")
    stages = child(child(run, "continual"), "stages")
    for index, stage in enumerate(cast("list[Any]", stages) if isinstance(stages, list) else ()):
        params = child(stage, "params")
        if isinstance(kind, str) and isinstance(params, dict):
            path: Path = ("continual", "stages", index, "params")
            yield _Block("algorithm", kind, path, cast("dict[str, Any]", params), only_set=True)
    if any(name.startswith("backend") for name in opened):
        yield from _block("backend", child(run, "backend"), ("backend",))
    transforms = child(child(run, "data"), "transforms")
    if any(name.startswith("data") for name in opened):
        for index, spec in enumerate(cast("list[Any]", transforms) if isinstance(transforms, list) else ()):
            yield from _block("transform", spec, ("data", "transforms", index))


def _block(name: str, spec: Any, path: Path) -> Iterator[_Block]:
    kind, params = child(spec, "kind"), child(spec, "params")
    if isinstance(kind, str):
        yield _Block(name, kind, (*path, "params"), cast("dict[str, Any]", params) if isinstance(params, dict) else {})


def _with_phases(name: str, spec: Any, path: Path) -> Iterator[_Block]:
    """A recipe, and the recipes it lists in its own params."""
    for block in _block(name, spec, path):
        yield block
        model = _model(block)
        for field, info in model.model_fields.items() if model is not None else ():
            inner = [one for one in item_models_in(info.annotation) if issubclass(one, AlgorithmConfig)]
            items = block.params.get(field)
            for index, item in enumerate(cast("list[Any]", items) if inner and isinstance(items, list) else ()):
                yield from _with_phases(name, item, (*block.path, field, index))


def _model(block: _Block) -> Any:
    try:
        return config_model(registry(block.registry).get(block.kind))
    except EvsysError:  # validation reports its problems
        return None


def _block_fields(run: Any, block: _Block) -> Iterator[MutableField]:
    model = _model(block)
    if model is None:
        return
    schema = registry(block.registry).schema(block.kind)
    for field in _schema_fields(schema, schema, block.params, block.path):
        if not block.only_set or value_at(run, field.path) is not MISSING:
            yield field


def _schema_fields(root: dict[str, Any], schema: dict[str, Any], params: Any, path: Path) -> Iterator[MutableField]:
    """The fields of an object schema, and those of the objects inside it."""
    properties: dict[str, dict[str, Any]] = schema.get("properties", {})
    for name, declared in properties.items():
        # A seed is no choice to be made: what a run with another one scores is noise.
        if name == "seed" or declared.get("search") is False or not _applies(declared, properties, params):
            continue
        value = child(params, name)
        for shape in _shapes(root, declared):
            if "properties" in shape and "kind" not in shape["properties"]:
                yield from _schema_fields(root, shape, value if isinstance(value, dict) else {}, (*path, name))
            elif (field := _field((*path, name), {**declared, **shape}, _current(value, declared))) is not None:
                yield field
                break


def _applies(declared: dict[str, Any], properties: dict[str, dict[str, Any]], params: Any) -> bool:
    """Whether the field has any effect next to the others as they are."""
    needed: dict[str, list[Any]] = declared.get("applies_when", {})
    return all(_current(child(params, name), properties.get(name, {})) in values for name, values in needed.items())


def _current(value: Any, declared: dict[str, Any]) -> Any:
    return declared.get("default", MISSING) if value is MISSING else value


def _shapes(root: dict[str, Any], declared: dict[str, Any]) -> list[dict[str, Any]]:
    """What a schema allows, with references followed and unions taken apart."""
    if "$ref" in declared:
        name = declared["$ref"].rpartition("/")[2]
        return _shapes(root, root.get("$defs", {}).get(name, {}))
    if "anyOf" in declared:
        return [shape for one in declared["anyOf"] for shape in _shapes(root, one)]
    return [declared]


def _field(path: Path, schema: dict[str, Any], value: Any) -> MutableField | None:
    """The field that a schema describes; None where nothing says what its neighbours are."""
    if value is MISSING or value is None:
        return None  # required, or left to the backend: there is nothing to start from
    if isinstance(choices := schema.get("enum"), list) and value in choices:
        return MutableField(path, "choice", value, choices=tuple(cast("list[Any]", choices)))
    if schema.get("type") == "boolean" and isinstance(value, bool):
        return MutableField(path, "bool", value, choices=(False, True))
    kinds: dict[Any, Kind] = {"integer": "int", "number": "float"}
    kind = kinds.get(schema.get("type"))
    if kind is None or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    low, high = (
        schema.get("minimum", schema.get("exclusiveMinimum")),
        schema.get("maximum", schema.get("exclusiveMaximum")),
    )
    return MutableField(
        path, kind, value, low, high,
        low_open="exclusiveMinimum" in schema, high_open="exclusiveMaximum" in schema, log=schema.get("scale") == "log",
    )  # fmt: skip
