"""`evsys logs`: the end of what an experiment prints, measures and answers, also while it runs."""

from __future__ import annotations

from typing import Any

import click

from .output import emit, json_option
from .record_options import root_option


@click.command()
@click.argument("experiment")
@click.option("--arm", default="", help="Which arm; by default the first that has begun.")
@click.option("--metrics", "wanted", flag_value="metrics", help="The last steps instead of what it printed.")
@click.option("--rollouts", "split", metavar="SPLIT", help="The last answers: of val, test or training.")
@click.option("--last", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many lines.")
@root_option
@json_option
def logs(
    experiment: str,
    arm: str,
    wanted: str | None,
    split: str | None,
    last: int,
    roots: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the last lines that EXPERIMENT (a path, an id, its beginning, or a name) left behind."""
    from pathlib import Path

    from ..history.find import find_experiment
    from ..record.reader import ExperimentRecord
    from ..record.tails import last_console, last_metrics, last_rollouts

    record = ExperimentRecord(find_experiment(experiment, [Path(root) for root in roots] or None))
    answer: dict[str, Any] = {"path": str(record.folder), "state": record.status}
    if wanted is None and split is None:
        answer |= {"what": "console", "lines": last_console(record.files, last)}
    else:
        run = _choose_arm(record.runs, arm)
        lines = last_rollouts(run.files, split, last) if split is not None else last_metrics(run.files, last)
        answer |= {"arm": run.name, "what": f"rollouts of {split}" if split is not None else "metrics", "lines": lines}
    emit(answer, as_json, lambda: _render(answer))


def _choose_arm(runs: list[Any], name: str) -> Any:
    from ..errors import DataError, closest, show

    if not name:
        found = next((run for run in runs if run.starts), None) or next(iter(runs), None)
        if found is None:
            raise DataError("this experiment has no arm yet. See how it gets on with: evsys status")
        return found
    names = {run.name: run for run in runs}
    if name not in names:
        guess = closest(name, names)
        hint = f"Did you mean '{guess}'?" if guess else f"Choose one of: {', '.join(list(names)[:5])}."
        raise DataError(f"there is no arm {show(name)}. {hint}")
    return names[name]


def _render(answer: dict[str, Any]) -> None:
    import json

    for line in answer["lines"]:
        click.echo(line if isinstance(line, str) else json.dumps(line, ensure_ascii=False))
    if not answer["lines"]:
        click.echo(f"{answer['path']} ({answer['state']}) has no {answer['what']}.", err=True)
