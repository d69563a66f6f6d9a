"""How commands answer: results on stdout, as text for people or, with `--json`, as JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click


def json_option[F: Callable[..., Any]](command: F) -> F:
    """Add `--json` to a command, as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(command)


def emit(value: Any, as_json: bool, render: Callable[[], None]) -> None:
    """Print `value` as JSON, or let `render` print it for a person."""
    if not as_json:
        render()
        return
    import json

    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows as aligned columns, plain enough to read, grep and cut."""
    texts = [[str(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(headers))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in texts]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


_NARROWEST_COLUMN = 12


def fit_table(headers: Sequence[str], rows: Sequence[Sequence[object]], width: int | None = None) -> str:
    """A table for people, no wider than the terminal: empty columns are left out, the widest ones shortened."""
    width = terminal_width() if width is None else width
    texts = [[" ".join(str(cell).split()) for cell in row] for row in rows]
    kept = [column for column in range(len(headers)) if not texts or any(row[column] for row in texts)]
    heads, texts = [headers[column] for column in kept], [[row[column] for column in kept] for row in texts]
    widths = [max(len(row[column]) for row in (heads, *texts)) for column in range(len(heads))]
    # The widest column gives first, each time to just below the next widest, so that none is cut beside a longer one.
    while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > _NARROWEST_COLUMN:
        widest = widths.index(max(widths))
        others = sorted(widths)[-2] if len(widths) > 1 else 0
        over = sum(widths) + 2 * (len(widths) - 1) - width
        widths[widest] = max(_NARROWEST_COLUMN, widths[widest] - over, min(others - 1, widths[widest] - 1))
    return table(heads, [[_cut(cell, widths[column]) for column, cell in enumerate(row)] for row in texts])


def terminal_width() -> int:
    """How wide a table may be: the terminal's width, or what a reader of a file or a pipe can follow."""
    import shutil
    import sys

    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 120


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def recheck_option[F: Callable[..., Any]](command: F) -> F:
    """Add `--import` to a command that must not be spoken for: another process imports what it names."""
    return click.option(
        "--import",
        "imports",
        multiple=True,
        metavar="MODULE",
        help="Let your own verifiers and metrics judge again: a module name or a .py file. May be repeated.",
    )(command)


def import_option[F: Callable[..., Any]](command: F) -> F:
    """Add `--import`, which loads the user's own extensions before the command runs."""

    def load(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
        if not ctx.resilient_parsing:
            from ..settings import import_project_code

            import_project_code(value)
        return value

    return click.option(
        "--import",
        "imports",
        multiple=True,
        metavar="MODULE",
        callback=load,
        expose_value=False,
        is_eager=True,  # before the other options, wherever it stands among them
        help="Import your own extensions first: a module name or a .py file. May be repeated.",
    )(command)


def read_params(pairs: tuple[str, ...], option: str) -> dict[str, Any]:
    """The params that an option was given as `KEY=VALUE`, by name; the value as YAML reads it."""
    import yaml

    from ..errors import ConfigError

    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"{option} takes KEY=VALUE (got {pair!r}).")
        try:
            found[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"{option} {key}: {value!r} is no YAML value. Put quotes around a text.") from None
    return found
