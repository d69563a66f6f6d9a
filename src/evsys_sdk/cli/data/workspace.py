"""`evsys dataset`, and the verbs that it shares with `evsys benchmark`: `list`, `show`, `add`, `verify`, `upload`."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...history.text import clip, printable, terminal_width
from ..options import AT_LEAST_ONE, json_option
from ..output import emit, fit_table, table

if TYPE_CHECKING:
    from ...data.profile import ColumnProfile, DatasetProfile
    from ...data.workspace.inventory import Listing, Shown, Verdict
    from ...data.workspace.reference import Kind

_WIDE_ENOUGH = 100
"""Width from which lists show the format and the size."""


def workspace_group(kind: Kind, summary: str) -> click.Group:
    """The click group of a kind with its verbs."""
    group = click.Group(kind, help=summary)
    for verb in (_list_verb(kind), _show_verb(kind), _add_verb(kind), _verify_verb(kind)):
        group.add_command(verb)
    return group


def _list_verb(kind: Kind) -> click.Command:
    @click.command("list", help=f"List the {kind}s in the workspace and in the project's data folder.")
    @click.option("--all", "derived", is_flag=True, help="Also list datasets that transforms derived from them.")
    @json_option
    def list_(derived: bool, as_json: bool) -> None:
        from ...data.workspace.inventory import as_json as to_json
        from ...data.workspace.workspace import Workspace

        listings = Workspace().list(kind, derived=derived)
        emit([to_json(listing) for listing in listings], as_json, lambda: _print_list(kind, listings))

    return list_


def _show_verb(kind: Kind) -> click.Command:
    @click.command(
        "show",
        help=f"Show the profile of a file or folder of rows: nulls, duplicates, labels, lengths, and the data block to "
        f"train on it; or the origin of a {kind} and its first rows. REF is a path, an id, NAME or NAME@v2.",
    )
    @click.argument("ref")
    @click.option("--rows", default=3, type=click.IntRange(min=0), help="Number of rows to show.")
    @click.option("--model", help="Of a path: count tokens of this model (extra tinker or local).")
    @click.option("--split", default="train", help="Of a folder: the split to read.")
    @json_option
    def show(ref: str, rows: int, model: str | None, split: str, as_json: bool) -> None:
        from ...data.row_files import kind_of
        from ...data.workspace.inventory import as_json as to_json
        from ...data.workspace.workspace import Workspace

        if Path(ref).exists() or kind_of(ref):
            _show_profile(Path(ref), model, split, as_json)
            return
        shown = Workspace().show(kind, ref, rows=rows)
        emit(to_json(shown), as_json, lambda: _print_shown(shown))

    return show


def _add_verb(kind: Kind) -> click.Command:
    splits = "Role of the tasks: test or val." if kind == "benchmark" else "Split of the dataset: train, test, ..."

    also = "a folder that has one, or of Harbor tasks" if kind == "benchmark" else "a folder that has one"

    @click.command("add", help=f"Copy a file of rows (or {also}) into the workspace as a {kind}.")
    @click.argument("path", type=click.Path())
    @click.option("--name", required=True, help="Its name.")
    @click.option("--version", type=AT_LEAST_ONE, help="Its version; by default the next free one.")
    @click.option("--split", help=splits)
    @json_option
    def add(path: str, name: str, version: int | None, split: str | None, as_json: bool) -> None:
        from ...data.workspace.workspace import Workspace

        with _as_rows(kind, path) as file:
            added = Workspace().add(kind, file, name, version=version, split=split)
        manifest = added.rows.manifest
        counts = ", ".join(f"{count} {format}" for format, count in manifest.formats.items())
        verb = "added" if added.is_new else "already there:"

        def render() -> None:
            click.echo(f"{verb} {kind} {name}@v{manifest.version}:{manifest.split}, {manifest.rows} rows ({counts})")
            click.echo(f"id: {manifest.id}")

        emit({"added": added.is_new, **manifest.model_dump(mode="json")}, as_json, render)

    return add


@contextmanager
def _as_rows(kind: Kind, path: str) -> Generator[str | Path]:
    """The path, or for Harbor task folders a temporary file of their tasks."""
    from ...data.rows import to_dict
    from ...record.jsonable import dump_line
    from ...rollouts.harbor.task_folder import holds_task_folders, load_harbor_tasks

    if kind != "benchmark" or not holds_task_folders(Path(path)):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tasks.jsonl"
        file.write_bytes(b"".join(dump_line(to_dict(task), path) for task in load_harbor_tasks(path)))
        yield file


def _verify_verb(kind: Kind) -> click.Command:
    @click.command("verify", help=f"Check the hash of every cached {kind}, or only REF. Exits 1 if one is damaged.")
    @click.argument("ref", required=False)
    @json_option
    @click.pass_context
    def verify(ctx: click.Context, ref: str | None, as_json: bool) -> None:
        from ...data.workspace.inventory import as_json as to_json
        from ...data.workspace.workspace import Workspace

        verdicts = Workspace().verify(kind, ref)
        emit([to_json(verdict) for verdict in verdicts], as_json, lambda: _print_verdicts(kind, verdicts))
        if not all(verdict.is_intact for verdict in verdicts):
            ctx.exit(1)

    return verify


def _print_list(kind: Kind, listings: Sequence[Listing]) -> None:
    if not listings:
        click.echo(f"No {kind}s yet. Add one with: evsys {kind} add PATH --name NAME")
        return
    headers = ("name", "version", "split", "id", "rows", "where", "format", "size")
    columns = len(headers) - 2 * (terminal_width() < _WIDE_ENOUGH)
    click.echo(table(headers[:columns], [_cells(listing)[:columns] for listing in listings]))
    for listing in listings:
        if listing.problem:
            click.echo(f"\n{listing.name}@v{listing.version}:{listing.split}: {listing.problem}")


def _cells(listing: Listing) -> tuple[object, ...]:
    rows, size = (
        ("-" if listing.rows is None else listing.rows),
        ("-" if listing.bytes is None else _size(listing.bytes)),
    )
    where = f"{listing.where} (damaged)" if listing.problem else listing.where
    return (
        listing.name,
        f"v{listing.version}",
        listing.split,
        listing.id or "-",
        rows,
        where,
        listing.format or "-",
        size,
    )


def _print_shown(shown: Shown) -> None:
    import json

    listing, manifest = shown.listing, shown.manifest
    facts: dict[str, object] = {
        "name": listing.name,
        "version": f"v{listing.version}",
        "split": listing.split,
        "id": listing.id,
        "rows": listing.rows,
        "format": listing.format,
        "size": None if listing.bytes is None else _size(listing.bytes),
        "where": listing.where,
        "file": shown.location,
        "problem": listing.problem,
    }
    if manifest is not None:
        lineage = manifest.lineage
        facts |= {"sha256": manifest.sha256, "cached": f"{manifest.created:%Y-%m-%d %H:%M:%S %Z}"}
        facts |= {"origin": lineage.origin, "source": lineage.source, "parent": lineage.parent}
        facts |= {
            f"transform {i}": f"{t.kind} {json.dumps(t.params)} code {t.code}"
            for i, t in enumerate(lineage.transforms, 1)
        }
        facts |= {f"metadata.{key}": json.dumps(value, ensure_ascii=False) for key, value in manifest.metadata.items()}
    for key, value in facts.items():
        if value not in (None, ""):
            click.echo(f"{key}: {value}")
    for number, row in enumerate(shown.preview, 1):
        click.echo(f"\nrow {number}:\n{json.dumps(row, ensure_ascii=False, indent=2)}")


def _print_verdicts(kind: Kind, verdicts: Sequence[Verdict]) -> None:
    for verdict in verdicts:
        click.echo(f"ok       {verdict.id}" if verdict.is_intact else f"DAMAGED  {verdict.id}: {verdict.problem}")
    damaged = sum(not verdict.is_intact for verdict in verdicts)
    if not verdicts:
        click.echo(f"No {kind} is cached, so there is nothing to verify.")
    elif damaged:
        click.echo(f"{damaged} of {len(verdicts)} damaged. The next run pulls them again if their source is unchanged.")
    else:
        click.echo(f"{len(verdicts)} intact.")


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _show_profile(path: Path, model: str | None, split: str, as_json: bool) -> None:
    """Print the profile of a file of rows."""
    from ...data.bad_rows import BadRows
    from ...data.jsonl import cannot_read
    from ...data.profile import profile_rows
    from ...data.row_files import read_row_file
    from ...errors import DataError

    if not path.exists():
        raise cannot_read(path, FileNotFoundError())
    if model is None:
        from ...backends.mock.tokenizer import ByteTokenizer

        tokenizer, unit = ByteTokenizer(), "bytes, as the mock model counts (--model NAME for another)"
    else:
        from ...backends.tinker.tokenizers import load_tokenizer

        tokenizer, unit = load_tokenizer(model, model, None), f"tokens of {model}"
    bad = BadRows(skip=True)
    rows = [(bad.number or 0, row) for row in bad.watch(read_row_file(path, split=split, on_error=bad.note_unread))]
    if not rows:
        reason = bad.report() if bad.count else f"{path}: the file has no rows. Check its path"
        raise DataError(f"{reason}.")
    unreadable = f"{bad.report()}." if bad.count else ""
    profile = profile_rows(
        rows, source=str(path), count_tokens=lambda text: len(tokenizer.encode(text)), unreadable=unreadable
    )
    emit({**asdict(profile), "length_unit": unit}, as_json, lambda: _print_profile(profile, unit))


def _print_profile(profile: DatasetProfile, unit: str) -> None:
    import textwrap

    from ...config.yaml_write import write_yaml

    width = terminal_width()
    what = "" if profile.format == "unknown" else f", {profile.format}"
    first = "" if profile.complete else "the first "
    _title(f"{profile.source}: {first}{profile.rows} rows, {len(profile.columns)} columns{what}", above=False)
    click.echo(
        fit_table(("column", "filled", "distinct", "labels"), [_column_cells(column) for column in profile.columns])
    )
    if profile.lengths:
        _title(f"Length in {unit}")
        heads = ("", "shortest", "median", "95 %", "longest")
        lengths = profile.lengths.items()
        cells = [(side, stats.shortest, stats.median, stats.percentile_95, stats.longest) for side, stats in lengths]
        click.echo(fit_table(heads, cells))
        for end, example in profile.examples.items():
            line = f"{end} (row {example['row']}): {example['prompt']!r} -> {example['answer']!r}"
            click.echo(printable(clip(line, width)))
    _title("Problems" if profile.problems else "No problems found: no nulls, duplicates or spellings of one label.")
    for problem in profile.problems:
        click.echo(
            printable(
                textwrap.fill(problem, width, initial_indent="- ", subsequent_indent="  ", break_long_words=False)
            )
        )
    _title("Data block to paste into a run")
    click.echo(write_yaml({"data": dict(profile.suggestion)}).rstrip())


def _column_cells(column: ColumnProfile) -> tuple[object, ...]:
    return (
        column.name,
        column.filled,
        column.distinct,
        ", ".join(f"{label} {count}" for label, count in column.labels.items()),
    )


def _title(text: str, *, above: bool = True) -> None:
    click.echo("\n" * above + click.style(text, bold=True))


def upload_verb(kind: Kind) -> click.Command:
    """The verb `upload` of a kind."""

    @click.command("upload", help=f"Send a {kind} to the dashboard. REF is an id, NAME, NAME@v2, or a path.")
    @click.argument("ref")
    @click.option("--name", help="Its name on the dashboard, if REF is a path.")
    @click.option("--split", help="Its split, if REF is a path.")
    @json_option
    def upload(ref: str, name: str | None, split: str | None, as_json: bool) -> None:
        from ...dashboard.client.connection import Connection
        from ...dashboard.client.remote_data import upload_rows
        from ...data.workspace.reference import content_id
        from ...data.workspace.workspace import Workspace

        # First, so that without a key nothing is added to the workspace.
        connection = Connection.from_environment(offline=False)
        workspace = Workspace()
        if Path(ref).exists():
            rows = workspace.add(kind, ref, name or Path(ref).stem, split=split).rows
        else:
            manifest = workspace.show(kind, ref, rows=0).listing
            pull = workspace.pull_dataset if kind == "dataset" else workspace.pull_benchmark
            rows = pull(id=manifest.id)
        uploaded = upload_rows(connection, kind, rows)
        # The dashboard numbers versions itself, so the same rows may have another id there.
        local_id = content_id(kind, name=rows.name, version=rows.version, split=rows.split, sha256=rows.manifest.sha256)

        def render() -> None:
            verb = "uploaded" if uploaded["uploaded"] else "already there:"
            name = f"{uploaded['name']}@v{uploaded['version']}:{uploaded['split']}"
            click.echo(f"{verb} {kind} {name}, {uploaded['rows']} rows")
            click.echo(f"id: {uploaded['id']}" + ("" if uploaded["id"] == local_id else f" (here it is {local_id})"))

        emit(uploaded, as_json, render)

    return upload


dataset = workspace_group("dataset", "List, inspect, add, verify and upload datasets.")
dataset.add_command(upload_verb("dataset"))
