"""`evsys dataset show FILE`: what a file of rows holds, for a person or as JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import click

from ...history.text import terminal_width
from ..output import emit, fit_table

if TYPE_CHECKING:
    from ...data.profile import ColumnProfile, DatasetProfile


def show_profile(path: Path, model: str | None, split: str, as_json: bool) -> None:
    """Read the file and print its profile."""
    from ...data.bad_rows import BadRows
    from ...data.jsonl import cannot_read
    from ...data.profile import profile_rows
    from ...data.row_files import read_row_file

    if not path.exists():
        raise cannot_read(path, FileNotFoundError())
    if model is None:
        from ...backends.mock.tokenizer import ByteTokenizer

        tokenizer, unit = ByteTokenizer(), "bytes, as the mock model counts (--model NAME for another)"
    else:
        from ...backends.tinker.tokenizers import load_tokenizer

        tokenizer, unit = load_tokenizer(model, model, None), f"tokens of {model}"
    bad = BadRows(skip=True)
    rows = list(read_row_file(path, split=split, on_error=bad.note_unread))
    refused = [f"{bad.count} rows cannot be read: {bad.report()}."] if bad.count else []
    found = profile_rows(
        rows, source=str(path), count_tokens=lambda text: len(tokenizer.encode(text)), problems=refused
    )
    emit({**asdict(found), "length_unit": unit}, as_json, lambda: _print(found, unit))


def _print(found: DatasetProfile, unit: str) -> None:
    from ...history.text import clip, printable

    width = terminal_width()
    what = "" if found.format == "unknown" else f", {found.format}"
    first = "" if found.complete else "the first "
    _title(f"{found.source}: {first}{found.rows} rows, {len(found.columns)} columns{what}", above=False)
    click.echo(fit_table(("column", "filled", "distinct", "labels"), [_cells(one) for one in found.columns]))
    if found.lengths:
        _title(f"Length in {unit}")
        heads = ("", "shortest", "median", "95 %", "longest")
        lengths = found.lengths.items()
        cells = [(side, one.shortest, one.median, one.percentile_95, one.longest) for side, one in lengths]
        click.echo(fit_table(heads, cells))
        for end, one in found.examples.items():
            line = f"{end} (row {one['row']}): {one['prompt']!r} -> {one['answer']!r}"
            click.echo(printable(clip(line, width)))
    _title("Problems" if found.problems else "No problems found: no nulls, duplicates or spellings of one label.")
    for problem in found.problems:
        click.echo(printable(fill(problem, width, initial_indent="- ", subsequent_indent="  ", break_long_words=False)))
    from ...config.yaml_write import write_yaml

    _title("Data block to paste into a run")
    click.echo(write_yaml({"data": dict(found.suggestion)}).rstrip())


def _cells(one: ColumnProfile) -> tuple[object, ...]:
    return one.name, one.filled, one.distinct, ", ".join(f"{label} {count}" for label, count in one.labels.items())


def _title(text: str, *, above: bool = True) -> None:
    click.echo("\n" * above + click.style(text, bold=True))
