"""Output of commands: results on stdout, as text or, with `--json`, as JSON."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, TextIO

import click

from ..history import text
from ..user_code import results


def emit(value: Any, as_json: bool, render: Callable[[], str | None]) -> None:
    """Print `value` (or its result, if it is callable) as JSON, or the page that `render` prints or returns."""
    with results():  # marks it as output of evsys, not of user code
        if as_json:
            click.echo(text.printable_json(_as_json(value() if callable(value) else value)))
            return
        with _wrapped_output():
            if (page := render()) is not None:
                click.echo(text.printable(page))


class _Wrapped(io.TextIOBase):
    """A terminal stream that wraps lines between words."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal

    def write(self, text: str, /) -> int:
        return self._terminal.write(_wrap(text))

    def flush(self) -> None:
        self._terminal.flush()

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._terminal.fileno()

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._terminal.encoding


@contextmanager
def _wrapped_output() -> Generator[None]:
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_Wrapped(stream) if stream.isatty() else stream for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def _as_json(value: Any) -> str:
    import json

    try:
        return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):  # a record may hold values that are not JSON
        from ..record.jsonable import jsonable

        return json.dumps(jsonable(value), indent=2, ensure_ascii=False)


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows as aligned columns; on a terminal no wider than it."""
    width = None if sys.stdout.isatty() else sys.maxsize
    return fit_table(headers, rows, width=width, whole=(headers[0], "id"), keep_empty=True)


def fit_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    width: int | None = None,
    whole: Sequence[str] = (),
    keep_empty: bool = False,
) -> str:
    """A table no wider than the terminal, without empty columns; cells of columns that are not `whole` are cut."""
    cells = [[str(cell) for cell in row] for row in rows]
    columns = [at for at in range(len(headers)) if keep_empty or not cells or any(row[at].strip(" -") for row in cells)]
    shown_cells = [[row[column] for column in columns] for row in (headers, *cells)]
    flexible = [at for at, name in enumerate(shown_cells[0]) if name not in whole]
    return text.fit_table(shown_cells[0], shown_cells[1:], width=width or text.terminal_width(), flexible=flexible)


def table_of_differences(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, shared: Sequence[str], whole: Sequence[str] = ()
) -> str:
    """A table; of the columns `shared`, those with one value in all rows become a line below it."""
    values = {name: {row[at] for row in rows} for at, name in enumerate(headers) if name in shared and len(rows) > 1}
    same = {name: min(found) for name, found in values.items() if len(found) == 1}
    kept = [at for at, name in enumerate(headers) if name not in same]
    shown = fit_table(
        [headers[at] for at in kept], [[row[at] for at in kept] for row in rows], whole=whole or headers[:1]
    )
    below = "  ".join(f"{name} {value}" for name, value in same.items())
    return shown + (f"\nthe same for all: {below}" if below else "")


def print_text(sentence: str, *, err: bool = False) -> None:
    """Print text; wrapped between words on a terminal."""
    click.echo(wrap(sentence, err=err), err=err)


def wrap(sentence: str, *, err: bool = False) -> str:
    """Text, wrapped between words if the output is a terminal."""
    return _wrap(sentence) if (sys.stderr if err else sys.stdout).isatty() else sentence


def _wrap(page: str) -> str:
    """Wrap long lines between words and align Markdown tables; indented lines stay unchanged."""
    import textwrap

    width, lines = text.terminal_width(), list[str]()
    for is_table, some in groupby(page.split("\n"), lambda line: line.startswith("|")):
        if is_table:
            cells = [re.split(r"(?<!\\)\|", line.strip("| ")) for line in some]
            body = [
                [cell.strip().replace("\\|", "|") for cell in row] for row in cells if set("".join(row)) - set(" -:")
            ]
            lines.append(fit_table(body[0], [[*row, *[""] * len(body[0])][: len(body[0])] for row in body[1:]]))
            continue
        lines += [
            line
            if len(plain := click.unstyle(line)) <= width or plain[:1] in " \t"
            else textwrap.fill(
                line,
                width,
                subsequent_indent={"- ": "  ", "> ": "> "}.get(line[:2], ""),
                break_long_words=False,
                break_on_hyphens=False,
            )
            for line in some
        ]
    return "\n".join(lines)


def hang(head: str, content: str, *, err: bool = False) -> str:
    """Text after a head, with a hanging indent on a terminal."""
    from textwrap import TextWrapper

    if not (sys.stderr if err else sys.stdout).isatty():
        return f"{head}{content}".rstrip()
    width, start = text.terminal_width(), " " * len(click.unstyle(head))
    margin = start if len(start) <= width // 2 else "    "
    lines = TextWrapper(width, start, margin, break_long_words=False, break_on_hyphens=False)
    return head + lines.fill(content)[len(start) :] if content else head.rstrip()


def group_sentences(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Sentence -> the names that report it; sentences that differ only in numbers and quotations count as equal."""
    groups = dict[str, tuple[str, list[str]]]()
    for name, sentence in pairs:
        groups.setdefault(re.sub(r"'[^']*'|[\d.]+", "", sentence), (sentence, []))[1].append(name)
    return dict(groups.values())


def fields(rows: Iterable[tuple[str, object]], *, indent: int = 2) -> str:
    """Names and values, aligned, without empty values."""
    shown = [(name, str(value)) for name, value in rows if value is not None and value != ""]
    width = max((len(name) for name, _ in shown), default=0)
    return "\n".join(hang(f"{'':{indent}}{name:<{width}}  ", value) for name, value in shown)


def emit_line(value: dict[str, Any], as_json: bool, line: str) -> None:
    """Print one of several results: its JSON on one line, or a line of text."""
    import json

    with results():
        click.echo(json.dumps(value, ensure_ascii=False) if as_json else text.printable(line))


def print_warnings(warnings: Iterable[str]) -> None:
    """Print warnings on stderr."""
    for warning in warnings:
        print_text(f"warning: {warning.rstrip('.')}.", err=True)


class ProgressLine:
    """Progress on stderr: in place on a terminal, else a line per 5 %."""

    def __init__(self, what: str) -> None:
        self._what, self._live, self._shown = what, sys.stderr.isatty(), -1

    def __call__(self, done: int, total: int, failed: int = 0) -> None:
        part = done * 20 // max(total, 1)
        line = f"{self._what}: {done}/{total}" + (f", {failed} failed" if failed else "")
        if self._live:
            click.echo(f"\r{line}", nl=done == total, err=True)
        elif part != self._shown:
            click.echo(line, err=True)
        self._shown = part
