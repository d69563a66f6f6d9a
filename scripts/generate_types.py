"""Write `web/src/api/types.ts` from the classes that the API answers with.

python scripts/generate_types.py            # write the file
python scripts/generate_types.py --check    # write nothing; exit 1 if the file is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from evsys_sdk.dashboard.shapes import experiment, loops, record

TYPES = Path(__file__).resolve().parents[1] / "web" / "src" / "api" / "types.ts"
HEAD = """/** What the API answers. Made by `make types-web` from `dashboard/shapes` and `record/view`; change those. */

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type Dict = { [key: string]: Json };
export type Amounts = { [name: string]: number };
"""
SENT = ("NewControlRequest", "NewProjectRequest", "NewNote", "ApiProblem", "ApiShape")
"""What the page sends, or needs no type for."""
_PLAIN = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "null": "null"}


def write_types() -> str:
    """The whole file."""
    made = [one for module in (experiment, loops, record) for one in vars(module).values() if isinstance(one, type)]
    own = {one.__name__: one for one in made if one.__module__.startswith(str(experiment.__package__))}
    adapters = [TypeAdapter[Any](one) for name, one in sorted(own.items()) if name not in SENT]
    _, schema = TypeAdapter.json_schemas([(one, "serialization", adapter) for one, adapter in enumerate(adapters)])
    return "\n".join([HEAD, *(_interface(name, one) for name, one in sorted(schema["$defs"].items()))])


def _interface(name: str, schema: dict[str, Any]) -> str:
    if "properties" not in schema:
        return f"export type {name} = {_type(schema)};\n"
    lines = [f"  {field}: {_type(one)};" for field, one in schema["properties"].items()]
    return "\n".join([f"export interface {name} {{", *lines, "}", ""])


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(f'"{one}"' for one in schema["enum"])
    if "const" in schema:
        return f'"{schema["const"]}"'
    match schema.get("type"):
        case "array":
            inner = _type(schema["items"] if "items" in schema else schema["prefixItems"][0])
            return f"({inner})[]" if " " in inner else f"{inner}[]"
        case "object":
            return _mapping(schema.get("additionalProperties", True))
        case None:
            return "Json"
        case plain:
            return _PLAIN[plain]


def _mapping(values: Any) -> str:
    inner = "Json" if values is True else _type(values)
    return {"Json": "Dict", "number": "Amounts"}.get(inner, f"{{ [name: string]: {inner} }}")


if __name__ == "__main__":
    made = write_types()
    if "--check" in sys.argv[1:]:
        sys.exit(0 if TYPES.read_text("utf-8") == made else f"{TYPES}: out of date. Run: make types-web")
    TYPES.write_text(made, "utf-8")
