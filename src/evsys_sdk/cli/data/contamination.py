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
    if not reports:
        click.echo("There is nothing to compare: no benchmark, or no training rows.")
    for report in reports:
        described = "; ".join(filter(None, (report.flag(), report.remark()))) or "no task occurs in the rows"
        click.echo(f"{report.source}: {report.n_rows:,} rows, {report.n_tasks:,} tasks: {described}.")
        rows = [(one.row + 1, f"{one.benchmark}/{one.task_id}", one.match, one.text[:60]) for one in report.findings]
        if rows:
            click.echo(table(("row", "task", "match", "in common"), rows[:_SHOWN]))
        if len(rows) > _SHOWN:
            click.echo(f"… {len(rows) - _SHOWN} more; --json has them all.")
