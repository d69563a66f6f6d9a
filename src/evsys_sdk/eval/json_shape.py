"""The shape of a JSON value, described by the part of JSON Schema that tells structure apart.

A keyword that is not understood is refused when the description is read, because ignoring it would let anything pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..data.shapes import is_list, is_object
from ..errors import closest, show
from .compare import Comparison

type Schema = dict[str, Any]

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": is_object,
    "array": is_list,
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": lambda value: _is_number(value),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
_BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, bound: not _is_number(value) or value >= bound,
    "maximum": lambda value, bound: not _is_number(value) or value <= bound,
    "minLength": lambda value, bound: not isinstance(value, str) or len(value) >= bound,
    "maxLength": lambda value, bound: not isinstance(value, str) or len(value) <= bound,
    "minItems": lambda value, bound: not is_list(value) or len(value) >= bound,
    "maxItems": lambda value, bound: not is_list(value) or len(value) <= bound,
}
_WORDS = {"title", "description"}
_KNOWN = {"type", "enum", "const", "properties", "required", "additionalProperties", "items", *_BOUNDS, *_WORDS}


def check_schema(schema: Any, path: str = "") -> None:
    """Refuse a description that uses what is not understood here, or that is none."""
    if not is_object(schema):
        raise ValueError(f"{path or 'the schema'} should be an object, not {show(schema)}. Correct it.")
    for key in schema:
        if key not in _KNOWN:
            guess = closest(key, _KNOWN)
            hint = f"Did you mean '{guess}'?" if guess else f"Known are: {', '.join(sorted(_KNOWN))}."
            raise ValueError(f"the keyword '{key}' at '{path or '.'}' is not understood. {hint}")
    for name in _as_list(schema.get("type", [])):
        if name not in _TYPES:
            raise ValueError(f"{show(name)} at '{path or '.'}' is not a type. Use one of: {', '.join(_TYPES)}.")
    for key in _BOUNDS:
        if not _is_number(schema.get(key, 0)):
            raise ValueError(f"'{key}' at '{path or '.'}' should be a number, not {show(schema[key])}. Correct it.")
    for key in ("enum", "required"):
        if not is_list(schema.get(key, [])):
            raise ValueError(f"'{key}' at '{path or '.'}' should be a list, not {show(schema[key])}. Correct it.")
    for name, inner in _object(schema, "properties").items():
        check_schema(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema and not (key == "additionalProperties" and isinstance(schema[key], bool)):
            check_schema(schema[key], f"{path}.{key}")


def faults(value: Any, schema: Schema, path: str = "") -> Iterator[str]:
    """What is wrong with a value, with the place of each fault."""
    place = path or "the value"
    types = _as_list(schema.get("type", []))
    if types and not any(_TYPES[name](value) for name in types):
        yield f"{place} should be of type {' or '.join(types)}"
        return
    choices = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]
    if choices and not any(Comparison().same(value, choice) for choice in choices):
        yield f"{place} should be {' or '.join(show(choice) for choice in choices)}"
    yield from (
        f"{place} breaks {key} {schema[key]}" for key in _BOUNDS if key in schema and not _holds(key, value, schema)
    )
    if is_object(value):
        yield from _object_faults(value, schema, path)
    elif is_list(value) and "items" in schema:
        for index, item in enumerate(value):
            yield from faults(item, schema["items"], f"{path}[{index}]")


def _object_faults(value: dict[str, Any], schema: Schema, path: str) -> Iterator[str]:
    properties = _object(schema, "properties")
    yield from (f"{path}.{key} is missing" for key in schema.get("required", ()) if key not in value)
    others = schema.get("additionalProperties", True)
    for key, inner in value.items():
        if key in properties:
            yield from faults(inner, properties[key], f"{path}.{key}")
        elif others is False:
            yield f"{path}.{key} should not be there"
        elif is_object(others):
            yield from faults(inner, others, f"{path}.{key}")


def _holds(key: str, value: Any, schema: Schema) -> bool:
    return _BOUNDS[key](value, schema[key])


def _object(schema: Schema, key: str) -> dict[str, Any]:
    found = schema.get(key, {})
    if not is_object(found):
        raise ValueError(f"'{key}' should be an object, not {show(found)}. Correct it.")
    return found


def _as_list(value: Any) -> list[Any]:
    return value if is_list(value) else [value]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
