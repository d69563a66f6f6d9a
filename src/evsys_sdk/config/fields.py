"""Looking up what may stand at a dotted path, from the config models themselves.

Serves the matrix (does an axis address a real field?), deep validation (where are the kinds?) and error messages (which
key was probably meant?).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, TypeAliasType, Union, cast, get_args, get_origin

from pydantic import BaseModel

from ..errors import MISSING

type Path = tuple[str | int, ...]

NOT_SEARCHED: dict[str, Any] = {"search": False}
"""`json_schema_extra` of a field that changes how a run is carried out or recorded, not what is learned."""


def searched(*, scale: Literal["log"] | None = None, when: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`json_schema_extra` of a field, for programs that vary configs by their schema.

    `scale` log: twice as much is as far as half as much. `when`: the field has an effect only while these fields of the
    same block have one of these values.
    """
    return ({"scale": scale} if scale else {}) | ({"applies_when": dict(when)} if when else {})


def join_path(path: Path) -> str:
    """A path as people write it: `run.data.transforms[0].kind`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def split_dotted(path: str) -> Path:
    """`data.transforms.0.kind` or `data.transforms[0].kind` as its parts."""
    parts = path.replace("[", ".").replace("]", "").split(".")
    return tuple(int(part) if part.isdecimal() else part for part in parts)


def child(node: Any, part: str | int) -> Any:
    """What stands at `part` of plain data, or MISSING."""
    if isinstance(node, dict):
        return cast("dict[Any, Any]", node).get(part, MISSING)
    if isinstance(node, list) and isinstance(part, int):
        items = cast("list[Any]", node)
        return items[part] if part < len(items) else MISSING
    return MISSING


def resolve(data: Any, text: str) -> Path:
    """The parts of a dotted path in `data`, whose keys may hold dots themselves; ends where `data` has no such key."""
    path: list[str | int] = []
    node = data
    while text:
        parts = [part for part in _parts(node) if text.startswith(part) and text[len(part) :][:1] in ("", ".", "[")]
        if not parts:
            break
        part = max(parts, key=len)  # of the keys `a` and `a.b`, the longer one is what was written
        path.append(part if isinstance(node, dict) else int(part[1:-1]))
        node = child(node, path[-1])
        text = text[len(part) :].removeprefix(".")
    return tuple(path)


def _parts(node: Any) -> list[str]:
    """How the keys or items of `node` are written in a dotted path."""
    if isinstance(node, dict):
        return [key for key in cast("dict[Any, Any]", node) if isinstance(key, str)]
    return [f"[{index}]" for index in range(len(cast("list[Any]", node)))] if isinstance(node, list) else []


def models_at(root: type[BaseModel], path: Path) -> list[type[BaseModel]]:
    """The models whose fields may stand below `path`; empty where anything may."""
    candidates: list[Any] = [root]
    for part in path:
        candidates = [inner for candidate in candidates for inner in _step(candidate, part)]
    return [model for candidate in candidates for model in (*models_in(candidate), *item_models_in(candidate))]


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that a field of this type may hold."""
    return [inner for inner in _alternatives(annotation) if _is_model(inner)]


def item_models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that the items may be if a field of this type holds a list."""
    lists = [inner for inner in _alternatives(annotation) if get_origin(inner) is list]
    return [model for inner in lists for model in models_in(get_args(inner)[0])]


def find_unknown_part(root: type[BaseModel], path: Path) -> int | None:
    """Index of the first part of `path` that no config could have, or None if the path is possible."""
    candidates: list[Any] = [root]
    for index, part in enumerate(path):
        candidates = [inner for candidate in candidates for inner in _step(candidate, part)]
        if not candidates:
            return index
    return None


def _step(annotation: Any, part: str | int) -> list[Any]:
    """What may stand below `annotation` at `part`, with unions taken apart."""
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
    if isinstance(annotation, TypeAliasType):  # `type Name = ...` makes another object
        return _alternatives(annotation.__value__)
    if get_origin(annotation) in (Union, UnionType):
        return [inner for member in get_args(annotation) for inner in _alternatives(member)]
    return [annotation]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
