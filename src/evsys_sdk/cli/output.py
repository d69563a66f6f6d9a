"""How commands answer: results on stdout, as text for people or, with `--json`, as JSON for programs."""

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
    """Print `value`, or what it returns, as JSON; or what `render` prints or returns for a person."""
    with results():  # else it would count as output of the project's code
        if as_json:
            click.echo(text.printable_json(_as_json(value() if callable(value) else value)))
            return
        with _wrapped_output():
            if (page := render()) is not None:
                click.echo(text.printable(page))


class _Wrapped(io.TextIOBase):
    """A terminal on which lines break between words."""

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
    held = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_Wrapped(one) if one.isatty() else one for one in held)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = held


def _as_json(value: Any) -> str:
    import json

    try:
        return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):  # a record may hold what JSON does not know, and the answer is JSON all the same
        from ..record.jsonable import jsonable

        return json.dumps(jsonable(value), indent=2, ensure_ascii=False)


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows as aligned columns, plain enough to read, grep and cut; on a terminal no wider than that."""
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
    """A table no wider than the terminal: empty columns are left out, the widest but `whole` shortened."""
    cells = [[str(cell) for cell in row] for row in rows]
    kept = [at for at in range(len(headers)) if keep_empty or not cells or any(row[at].strip(" -") for row in cells)]
    found = [[row[column] for column in kept] for row in (headers, *cells)]
    flexible = [at for at, name in enumerate(found[0]) if name not in whole]
    return text.fit_table(found[0], found[1:], width=width or text.terminal_width(), flexible=flexible)


def say(sentence: str, *, err: bool = False) -> None:
    """Print sentences; on a terminal they break between words."""
    click.echo(wrap(sentence, err=err), err=err)


def wrap(sentence: str, *, err: bool = False) -> str:
    """Break long lines between words if they go to a terminal."""
    return _wrap(sentence) if (sys.stderr if err else sys.stdout).isatty() else sentence


def _wrap(page: str) -> str:
    """Long lines broken between words, and tables of Markdown as aligned columns; indented lines stay as they are."""
    import textwrap

    width, lines = text.terminal_width(), list[str]()
    for is_table, some in groupby(page.split("\n"), lambda line: line.startswith("|")):
        if is_table:
            cells = [re.split(r"(?<!\\)\|", line.strip("| ")) for line in some]
            kept = [
                [cell.strip().replace("\\|", "|") for cell in row] for row in cells if set("".join(row)) - set(" -:")
            ]
            lines.append(fit_table(kept[0], [[*row, *[""] * len(kept[0])][: len(kept[0])] for row in kept[1:]]))
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
    """Text behind its head; on a terminal it continues below its own beginning."""
    from textwrap import TextWrapper

    if not (sys.stderr if err else sys.stdout).isatty():
        return f"{head}{content}".rstrip()
    width, start = text.terminal_width(), " " * len(click.unstyle(head))
    margin = start if len(start) <= width // 2 else "    "
    lines = TextWrapper(width, start, margin, break_long_words=False, break_on_hyphens=False)
    return head + lines.fill(content)[len(start) :] if content else head.rstrip()


def group_sentences(found: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Names and what is reported of each: every sentence once, whatever its numbers and quotations, with its names."""
    groups = dict[str, tuple[str, list[str]]]()
    for name, sentence in found:
        groups.setdefault(re.sub(r"'[^']*'|[\d.]+", "", sentence), (sentence, []))[1].append(name)
    return dict(groups.values())


def fields(rows: Iterable[tuple[str, object]], *, indent: int = 2) -> str:
    """Names and values, aligned; what has no value is left out."""
    shown = [(name, str(value)) for name, value in rows if value is not None and value != ""]
    width = max((len(name) for name, _ in shown), default=0)
    return "\n".join(hang(f"{'':{indent}}{name:<{width}}  ", value) for name, value in shown)


def emit_line(value: dict[str, Any], as_json: bool, line: str) -> None:
    """Print one of several answers at once: its JSON on one line, or a line for a person."""
    import json

    with results():
        click.echo(json.dumps(value, ensure_ascii=False) if as_json else text.printable(line))


def print_warnings(warnings: Iterable[str]) -> None:
    """What does not stop an experiment but may change what it means; on stderr."""
    for warning in warnings:
        say(f"warning: {warning.rstrip('.')}.", err=True)


class ProgressLine:
    """How many of how many are done, on stderr: in place on a terminal, else in a line for each twentieth."""

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
