"""`evsys contamination`: whether evaluation tasks occur in the training rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..options import import_option, json_option
from ..output import emit, table

if TYPE_CHECKING:
    from ...data.contamination import ContaminationReport

_SHOWN = 20


@click.command()
@click.argument("path", type=click.Path())
@click.option(
    "--benchmark",
    "-b",
    multiple=True,
    help="With a data file: a benchmark's path, id or name; all of them if not given.",
)
@json_option
@import_option
def contamination(path: str, benchmark: tuple[str, ...], as_json: bool) -> None:
    """Look in the training rows of PATH, a config or a JSONL file, for tasks of benchmarks.

    Copies are found whatever their case, markup, look-alike letters or split over messages; near matches are listed as
    well. Exits with 2 if there is a copy.
    """
    from ...data.contamination import count_tasks

    scan = _scan_file if path.endswith((".jsonl", ".jsonl.gz")) else _scan_config
    reports = scan(path, benchmark)
    answer = {
        "path": path,
        "clean": not any(report.copies for report in reports),
        "sources": [
            {
                "source": report.source,
                "rows": report.n_rows,
                "tasks": report.n_tasks,
                "tasks_found": count_tasks(report.copies),
                "findings": [finding.to_dict() for finding in report.findings],
            }
            for report in reports
        ],
    }
    emit(answer, as_json, lambda: _render(reports))
    if not answer["clean"]:
        click.get_current_context().exit(2)


def _scan_config(path: str, benchmarks: tuple[str, ...]) -> list[ContaminationReport]:
    from ...config import validate_yaml
    from ...experiment.contamination import scan_config

    if benchmarks:
        raise click.UsageError("--benchmark goes with a data file; a config names its own benchmarks.")
    return scan_config(validate_yaml(path, deep=True))


def _scan_file(path: str, named: tuple[str, ...]) -> list[ContaminationReport]:
    from pathlib import Path

    from ...data.jsonl import read_jsonl
    from ...eval.benchmark import Benchmark
    from ...experiment.contamination import project_benchmarks, scan_rows

    benchmarks = [
        Benchmark.load(path=name) if Path(name).exists() else Benchmark.load(name=name) for name in named
    ] or list(project_benchmarks())
    if not benchmarks:
        raise click.UsageError(
            "there is no benchmark to look for. Name one with --benchmark, or add one to the project."
        )
    return [scan_rows(read_jsonl(path), benchmarks, source=path)]


def _render(reports: list[ContaminationReport]) -> None:
    from ...data.contamination import count_tasks

    if not reports:
        click.echo("There is nothing to compare: no benchmark, or no training rows.")
    for report in reports:
        head = f"{report.source}: {report.n_rows:,} rows, {report.n_tasks:,} tasks"
        if not report.findings:
            click.echo(f"{head}: no task occurs in the rows.")
            continue
        copies = count_tasks(report.copies)
        near = count_tasks(report.findings) - copies
        click.secho(f"{head}: {copies} tasks occur in the rows, {near} more resemble some.", bold=True)
        rows = [
            (one.row + 1, f"{one.benchmark}/{one.task_id}", one.match, "yes" if one.answer else "no", one.text[:60])
            for one in report.findings[:_SHOWN]
        ]
        click.echo(table(("row", "task", "match", "answer", "in common"), rows))
        if len(report.findings) > _SHOWN:
            click.echo(f"… {len(report.findings) - _SHOWN} more; --json has them all.")
