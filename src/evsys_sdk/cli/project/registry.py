"""`evsys list` and `evsys schema`: the registered extensions and their params."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..options import import_option, json_option
from ..output import emit, hang, table

if TYPE_CHECKING:
    from ...registry import Entry, Registry


@click.command("list")
@click.argument("kind", required=False)
@click.option("--kind", "kind_option", metavar="KIND", help="Same as the argument: show only this kind.")
@json_option
@import_option
def list_(kind: str | None, kind_option: str | None, as_json: bool) -> None:
    """List registered extensions, all or those of one KIND (e.g. transforms)."""
    from ...registry import REGISTRIES, registry

    if kind and kind_option:
        raise click.UsageError(f"KIND is given twice: '{kind}' and '{kind_option}'. Give one.")
    chosen = kind or kind_option
    registries = [registry(chosen)] if chosen else list(REGISTRIES.values())
    listing = [(group, group.entries()) for group in registries]
    answer = {
        group.plural: [entry._asdict() | {"available": entry.available} for entry in entries]
        for group, entries in listing
    }

    def render() -> None:
        for group, entries in listing:
            if entries or chosen:
                click.secho(group.plural, bold=True)
                _print_entries(group, entries)

    emit(answer, as_json, render)


def _print_entries(group: Registry, entries: list[Entry]) -> None:
    if not entries:
        click.echo(f'  none yet; add yours with @{group.decorator}("name")')
    width = max((len(entry.name) for entry in entries), default=0)
    for entry in entries:
        source = "" if entry.source in ("built-in", "registered") else f" (from {entry.source})"
        click.echo(hang(f"  {entry.name.ljust(width)}  ", f"{entry.summary}{source}"))
        if entry.problem:
            click.secho(hang(f"  {'':{width}}  ", f"not available: {entry.problem}"), fg="yellow")


@click.command()
@click.argument("kind")
@click.argument("name")
@click.option("--fields", is_flag=True, help="Print a table of the params instead of the JSON schema.")
@json_option
@import_option
def schema(kind: str, name: str, fields: bool, as_json: bool) -> None:
    """Print the JSON schema of the params of NAME of KIND, e.g. evsys schema transform dedupe."""
    from ...registry import schema_for

    json_schema = schema_for(kind, name)

    def render() -> None:
        required, definitions = json_schema.get("required", ()), json_schema.get("$defs", {})
        rows = [
            (
                field,
                _type_of(spec, definitions),
                "required" if field in required else _default_of(spec),
                spec.get("description", ""),
            )
            for field, spec in json_schema.get("properties", {}).items()
        ]
        headers = ("param", "type", "default", "meaning")
        click.echo(table(headers, rows) if rows else f"{kind} '{name}' takes no params.")

    emit(json_schema, as_json or not fields, render)


def _type_of(spec: dict[str, Any], definitions: dict[str, Any]) -> str:
    """The type of a param as text: `integer`, `list of string`, `exact | normalized`, `{kind}`."""
    if "$ref" in spec:
        return _type_of(definitions[spec["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in spec:
        return " | ".join(dict.fromkeys(_type_of(option, definitions) for option in spec["anyOf"]))
    if "enum" in spec or "const" in spec:
        return " | ".join(str(choice) for choice in spec.get("enum", [spec.get("const")]))
    if spec.get("type") == "array":
        return f"list of {_type_of(spec.get('items', {}), definitions)}"
    if "properties" in spec:
        return f"{{{', '.join(spec['properties'])}}}"
    return spec.get("type", "any")


def _default_of(spec: dict[str, Any]) -> str:
    """The default as YAML."""
    import json

    return json.dumps(spec["default"], ensure_ascii=False) if "default" in spec else ""
