"""How commands answer: results on stdout, as text for people or, with `--json`, as JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from ..user_code import results


def json_option[F: Callable[..., Any]](command: F) -> F:
    """Add `--json` to a command, as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(command)


def emit(value: Any, as_json: bool, render: Callable[[], None]) -> None:
    """Print `value` as JSON, or let `render` print it for a person."""
    with results():
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


def fit_table(
    headers: Sequence[str], rows: Sequence[Sequence[object]], width: int | None = None, whole: Sequence[str] = ()
) -> str:
    """A table for people, no wider than the terminal: empty columns are left out, the widest but `whole` shortened."""
    from ..history import text

    cells = [[str(cell) for cell in row] for row in rows]
    kept = [column for column in range(len(headers)) if not cells or any(row[column].strip() for row in cells)]
    found = [[row[column] for column in kept] for row in (headers, *cells)]
    flexible = [at for at, name in enumerate(found[0]) if name not in whole]
    return text.fit_table(found[0], found[1:], width=width or text.terminal_width(), flexible=flexible)


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


def say(text: str, *, err: bool = False) -> None:
    """Print sentences; on a terminal they break between words."""
    import sys
    import textwrap

    from ..history.text import terminal_width

    if (sys.stderr if err else sys.stdout).isatty():
        width = terminal_width()
        text = "\n".join(
            textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) for line in text.split("\n")
        )
    click.echo(text, err=err)


def print_warnings(warnings: Iterable[str]) -> None:
    """What does not keep an experiment from running, but from meaning what was meant; on stderr."""
    for warning in warnings:
        say(f"warning: {warning.rstrip('.')}.", err=True)
