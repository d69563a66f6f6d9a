"""`evsys list` and `evsys schema`: what can be named in a config, and the params it takes."""

from __future__ import annotations

from dataclasses import asdict

import click

from .output import emit, import_option, json_option, table


@click.command("list")
@click.argument("kind", required=False)
@click.option("--kind", "kind_option", metavar="KIND", help="The same as the argument: show only this kind.")
@json_option
@import_option
def list_(kind: str | None, kind_option: str | None, as_json: bool) -> None:
    """List registered extensions, all or those of one KIND (e.g. transforms)."""
    from ..registry import REGISTRIES, registry

    chosen = kind or kind_option
    registries = [registry(chosen)] if chosen else list(REGISTRIES.values())
    listing = {found.plural: found.entries() for found in registries}
    answer = {
        plural: [asdict(entry) | {"available": entry.available} for entry in found] for plural, found in listing.items()
    }

    def render() -> None:
        for found in registries:
            entries = listing[found.plural]
            if not entries and not chosen:
                continue
            click.secho(found.plural, bold=True)
            if not entries:
                click.echo(f'  none yet; add yours with @{found.decorator}("name")')
            lines = [
                (entry.name, entry.summary + (f" [{entry.problem}]" if entry.problem else "")) for entry in entries
            ]
            width = max((len(name) for name, _ in lines), default=0)
            for name, summary in lines:
                click.echo(f"  {name.ljust(width)}  {summary}".rstrip())

    emit(answer, as_json, render)


@click.command()
@click.argument("kind")
@click.argument("name")
@click.option("--fields", is_flag=True, help="Print a table of the params instead of the JSON schema.")
@json_option
@import_option
def schema(kind: str, name: str, fields: bool, as_json: bool) -> None:
    """Print the JSON schema of the params that NAME of KIND takes, e.g. evsys schema transform dedupe."""
    from ..registry import schema_for

    found = schema_for(kind, name)

    def render() -> None:
        required = set(found.get("required", ()))
        rows = [
            (
                field,
                _type_of(spec),
                "required" if field in required else repr(spec.get("default")),
                spec.get("description", ""),
            )
            for field, spec in found.get("properties", {}).items()
        ]
        click.echo(
            table(("param", "type", "default", "meaning"), rows) if rows else f"{kind} '{name}' takes no params."
        )

    emit(found, as_json or not fields, render)


def _type_of(spec: dict[str, object]) -> str:
    options = spec.get("anyOf") or [spec]
    assert isinstance(options, list)
    names = [str(option.get("type") or option.get("$ref", "any")).rpartition("/")[2] for option in options]  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType, reportUnknownVariableType]
    return " | ".join(dict.fromkeys(names))
