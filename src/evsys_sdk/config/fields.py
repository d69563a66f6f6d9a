"""Look up the models and fields at a dotted path of the config models.

Used by the matrix (does an axis address a field?), deep validation (where are the kinds?) and error messages (which key
is close?).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, TypeAliasType, Union, cast, get_args, get_origin

from pydantic import BaseModel

from ..errors import MISSING

type Path = tuple[str | int, ...]

NOT_SEARCHED: dict[str, Any] = {"search": False}
"""`json_schema_extra` of a field that changes how a run is executed or recorded, not its result."""


def searched(*, scale: Literal["log"] | None = None, when: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`json_schema_extra` of a field, for code that varies configs by their schema.

    `scale`: scale of the values. `when`: the field has an effect only if these fields of the same block have one of
    these values.
    """
    return ({"scale": scale} if scale else {}) | ({"applies_when": dict(when)} if when else {})


def join_path(path: Path) -> str:
    """A path as text: `run.data.transforms[0].kind`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def split_dotted(path: str) -> Path:
    """The parts of `data.transforms.0.kind` or `data.transforms[0].kind`."""
    parts = path.replace("[", ".").replace("]", "").split(".")
    return tuple(int(part) if part.isdecimal() else part for part in parts)


def child(node: Any, part: str | int) -> Any:
    """The value at `part` of plain data, or MISSING."""
    if isinstance(node, dict):
        return cast("dict[Any, Any]", node).get(part, MISSING)
    if isinstance(node, list) and isinstance(part, int):
        items = cast("list[Any]", node)
        return items[part] if part < len(items) else MISSING
    return MISSING


def resolve(data: Any, text: str) -> Path:
    """The parts of a dotted path in `data`, whose keys may hold dots; ends at the first missing key."""
    path: list[str | int] = []
    node = data
    while text:
        parts = [part for part in _parts(node) if text.startswith(part) and text[len(part) :][:1] in ("", ".", "[")]
        if not parts:
            break
        part = max(parts, key=len)  # of the keys `a` and `a.b`, prefer the longer one
        path.append(part if isinstance(node, dict) else int(part[1:-1]))
        node = child(node, path[-1])
        text = text[len(part) :].removeprefix(".")
    return tuple(path)


def _parts(node: Any) -> list[str]:
    """The keys or items of `node`, as written in a dotted path."""
    if isinstance(node, dict):
        return [key for key in cast("dict[Any, Any]", node) if isinstance(key, str)]
    return [f"[{index}]" for index in range(len(cast("list[Any]", node)))] if isinstance(node, list) else []


def models_at(root: type[BaseModel], path: Path) -> list[type[BaseModel]]:
    """The models whose fields are allowed below `path`; empty if anything is."""
    candidates: list[Any] = [root]
    for part in path:
        candidates = [inner for candidate in candidates for inner in _step(candidate, part)]
    return [model for candidate in candidates for model in (*models_in(candidate), *item_models_in(candidate))]


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that a field of this type may hold."""
    return [inner for inner in _alternatives(annotation) if _is_model(inner)]


def item_models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that the items of a list field may be."""
    lists = [inner for inner in _alternatives(annotation) if get_origin(inner) is list]
    return [model for inner in lists for model in models_in(get_args(inner)[0])]


def find_unknown_part(root: type[BaseModel], path: Path) -> int | None:
    """Index of the first part of `path` that no config can have; None if the path is possible."""
    candidates: list[Any] = [root]
    for index, part in enumerate(path):
        candidates = [inner for candidate in candidates for inner in _step(candidate, part)]
        if not candidates:
            return index
    return None


def _step(annotation: Any, part: str | int) -> list[Any]:
    """The types allowed below `annotation` at `part`, with unions expanded."""
    if _is_model(annotation):
        field = annotation.model_fields.get(part)
        if field is None:
            return [Any] if annotation.model_config.get("extra") == "allow" else []  # metadata has free keys
        return _alternatives(field.annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is list:
        return _alternatives(arguments[0]) if isinstance(part, int) else []
    if origin is dict:
        return _alternatives(arguments[1])
    return [Any] if annotation is Any else []


def _alternatives(annotation: Any) -> list[Any]:
    if isinstance(annotation, TypeAliasType):  # `type Name = ...`
        return _alternatives(annotation.__value__)
    if get_origin(annotation) in (Union, UnionType):
        return [inner for member in get_args(annotation) for inner in _alternatives(member)]
    return [annotation]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
