"""`evsys benchmark import`: results that another program has written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..output import emit, json_option

if TYPE_CHECKING:
    from ...eval.scores import EvalResult
    from ...history.pairs import PairedDifference

_LOG = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("import")
@click.argument("log", type=_LOG)
@click.option("--against", type=_LOG, help="Log of another run of the same task, to compare with sample by sample.")
@click.option("--scorer", metavar="NAME[/KEY]", help="Which score to read, where a log has several.")
@json_option
def import_logs(log: Path, against: Path | None, scorer: str | None, as_json: bool) -> int:
    """Read a log of inspect_ai (.eval or .json), and compare it with another one."""
    from ...eval.foreign_run import read_inspect_log
    from ...history.foreign_runs import compare_foreign_runs

    run = read_inspect_log(log, scorer=scorer)
    result = run.to_result()
    answer: dict[str, Any] = {**result.to_dict(), "program": run.program, "status": run.status, "by_task": run.by_task}
    pair = None
    if against is not None:
        pair = compare_foreign_runs(read_inspect_log(against, scorer=scorer), run)
        answer["difference"] = pair.to_dict()
    emit(answer, as_json, lambda: _render(result, pair))
    return 2 if result.n_failed or run.status != "success" else 0


def _render(result: EvalResult, pair: PairedDifference | None) -> None:
    score = result.metrics.get("mean_reward")
    shown = "no score" if score is None else f"mean_reward {score.value:.4g}"
    shown += "" if score is None or score.stderr is None else f" (standard error {score.stderr:.2g})"
    click.echo(f"{result.benchmark}: {result.model}: {shown}, {result.n_tasks} samples")
    if result.n_failed:
        click.echo(f"{result.n_failed} of {len(result.predictions)} samples failed and are not counted.")
    if pair is not None:
        interval = "" if pair.low is None or pair.high is None else f" [{pair.low:+.3g}, {pair.high:+.3g}]"
        click.echo(f"difference: {pair.difference:+.3g}{interval}, paired over {pair.n_tasks or 0} samples")
        if pair.remark:
            click.echo(f"note: {pair.remark}")
