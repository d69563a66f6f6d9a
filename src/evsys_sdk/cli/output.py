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


def import_option[F: Callable[..., Any]](command: F) -> F:
    """Add `--import`, which loads the user's own extensions before the command runs."""

    def load(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
        if not ctx.resilient_parsing:
            import sys
            from contextlib import redirect_stdout

            from ..settings import import_project_code

            with redirect_stdout(sys.stderr):  # what a module prints when it is imported is no result
                import_project_code(value)
        return value

    return click.option(
        "--import",
        "imports",
        multiple=True,
        metavar="MODULE",
        callback=load,
        expose_value=False,
        is_eager=True,
        help="Import your own extensions first: a module name or a .py file. May be repeated.",
    )(command)
