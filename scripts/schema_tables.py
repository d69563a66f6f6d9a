"""Models as Markdown tables: fields, types in words, bounds and defaults. Used by `generate_docs.py`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeAliasType, get_args

from pydantic import BaseModel

_PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_SIGNS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
_LARGE = 10**6


@dataclass(frozen=True, slots=True)
class Schema:
    """Turns JSON schemas into words, with links to the sections of nested models."""

    definitions: dict[str, Any]
    here: frozenset[str]
    """Nested models that have a section on the same page; the others are config models."""

    @classmethod
    def of(cls, model: type[BaseModel], here: frozenset[str]) -> Schema:
        return cls(model.model_json_schema().get("$defs", {}), here)

    def type_of(self, spec: dict[str, Any]) -> str:
        """A type in words: `int | None`, `list of TransformSpec`, or the choices."""
        if "$ref" in spec:
            name, target = self._target(spec)
            place = "" if name in self.here else "configuration.md"
            return f"[{name}]({place}#{name.lower()})" if "properties" in target else self.type_of(target)
        if "enum" in spec or "const" in spec:
            return " | ".join(f"`{choice}`" for choice in spec.get("enum", [spec.get("const")]))
        if options := spec.get("anyOf"):
            return " | ".join(dict.fromkeys(self.type_of(option) for option in options))
        if spec.get("type") == "array":
            items = self.type_of(spec.get("items", {}))
            return "list" if items == "any" else f"list of {items}"
        if spec.get("type") == "object":
            values = spec.get("additionalProperties")
            inner = "any" if values in (None, True, False) else self.type_of(values)
            return "mapping" if inner == "any" else f"mapping of names to {inner}"
        return _PLAIN.get(str(spec.get("type")), "any")

    def bounds_of(self, spec: dict[str, Any]) -> Iterator[str]:
        """What a value must satisfy besides its type."""
        if "$ref" in spec:
            target = self._target(spec)[1]
            yield from () if "properties" in target else self.bounds_of(target)
        yield from (f"{sign} {_number(spec[key])}" for key, sign in _SIGNS.items() if key in spec)
        yield from (f"at least {spec[key]}" for key in ("minItems", "minProperties") if key in spec)
        shortest, longest = spec.get("minLength", 0), spec.get("maxLength")
        if longest is not None:
            yield f"{shortest} to {longest} characters"
        elif shortest:
            yield "not empty" if shortest == 1 else f"at least {shortest} characters"
        for option in spec.get("anyOf", ()):
            yield from self.bounds_of(option)

    def table(self, model: type[BaseModel], head: str = "key", without: Collection[str] = ()) -> str:
        """The fields of a model with type, default and meaning."""
        schema = model.model_json_schema()
        # A model that contains itself is only a reference at the top.
        properties = schema.get("properties") or schema["$defs"][model.__name__]["properties"]
        rows = [(head, "type", "default", "meaning"), ("---",) * 4]
        for name, field in model.model_fields.items():
            if name in without:
                continue
            spec = properties[name]
            kind = ", ".join([self.type_of(spec), *dict.fromkeys(self.bounds_of(spec))])
            default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
            rows.append((f"`{name}`", kind, default, str(spec.get("description", ""))))
        return "\n".join(f"| {' | '.join(cell(text) for text in row)} |" for row in rows)

    def _target(self, spec: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        name = str(spec["$ref"]).rpartition("/")[2]
        return name, self.definitions[name]


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models an annotation names itself, not those inside them."""
    if isinstance(annotation, TypeAliasType):
        yield from models_in(annotation.__value__)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    else:
        for argument in get_args(annotation):
            yield from models_in(argument)


def nested_models(model: type[BaseModel]) -> list[type[BaseModel]]:
    """All models below a model, each once, in the order in which a reader of the file meets them."""
    found: list[type[BaseModel]] = []

    def visit(outer: type[BaseModel]) -> None:
        for field in outer.model_fields.values():
            for inner in models_in(field.annotation):
                if inner not in found:
                    found.append(inner)
                    visit(inner)

    visit(model)
    return found


def cell(text: str) -> str:
    """Text as one cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def _number(value: float) -> str:
    whole = int(value)
    if whole == value and whole > _LARGE and whole.bit_count() == 1:
        return f"2^{whole.bit_length() - 1}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _default(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        dumped = value.model_dump(mode="json", exclude_none=True)
        value = {key: part for key, part in dumped.items() if part not in ({}, [])}
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return f"`{text}`"
