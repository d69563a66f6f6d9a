"""`evsys contamination`: whether evaluation tasks occur in the training rows."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ..options import import_option, json_option
from ..output import emit, table

if TYPE_CHECKING:
    from ...data.contamination import ContaminationReport

_SHOWN = 20


@click.command()
@click.argument("config", type=click.Path())
@json_option
@import_option
def contamination(config: str, as_json: bool) -> None:
    """Search the training rows of CONFIG for tasks of its benchmarks.

    Finds copies independent of case, markup, look-alike letters or splits over messages, and lists near matches. Exits
    with 2 if there is a copy.
    """
    from ...config import validate_yaml
    from ...data.contamination import count_tasks
    from ...experiment.contamination import scan_config

    reports = scan_config(validate_yaml(config, deep=True))
    sources = [
        {
            "source": report.source,
            "rows": report.n_rows,
            "tasks": report.n_tasks,
            "tasks_found": count_tasks(report.copies),
            "findings": [asdict(finding) for finding in report.findings],
        }
        for report in reports
    ]
    clean = not any(report.copies for report in reports)
    emit({"path": config, "clean": clean, "sources": sources}, as_json, lambda: _render(reports))
    if not clean:
        click.get_current_context().exit(2)


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
            (
                finding.row + 1,
                f"{finding.benchmark}/{finding.task_id}",
                finding.match,
                "yes" if finding.answer else "no",
                finding.text[:60],
            )
            for finding in report.findings[:_SHOWN]
        ]
        click.echo(table(("row", "task", "match", "answer", "in common"), rows))
        if len(report.findings) > _SHOWN:
            click.echo(f"… {len(report.findings) - _SHOWN} more; --json has them all.")
