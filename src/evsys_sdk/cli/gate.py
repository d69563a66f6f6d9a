"""`evsys gate`: whether weights may replace those that are live."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .output import emit, json_option, recheck_option

if TYPE_CHECKING:
    from ..deploy.gate import Decision


@click.command()
@click.argument("candidate")
@click.option("--against", "current", required=True, help="A deployment, an experiment or arm, or base.")
@click.option("--policy", required=True, type=click.Path(), help="YAML file that says what must hold.")
@click.option("--checkpoint", default="final", show_default=True, help="final, best, or the name of a checkpoint.")
@json_option
@recheck_option
def gate(candidate: str, current: str, policy: str, checkpoint: str, as_json: bool, imports: tuple[str, ...]) -> None:
    """Judge CANDIDATE, an experiment or EXPERIMENT/ARM, against what is live, by a policy; the decision is recorded.

    Exits with 2 if it is refused. Then evsys deploy --gated ships only what passed.
    """
    from ..deploy.gate import judge
    from ..deploy.policy import load_policy
    from ..deploy.source import find_source

    decision = judge(find_source(candidate, checkpoint=checkpoint), current, load_policy(policy), imports=imports)
    emit(decision.to_dict(), as_json, lambda: _render(decision))
    if not decision.passed:
        click.get_current_context().exit(2)


def _render(decision: Decision) -> None:
    click.secho(decision.sentence, bold=True)
    for check in decision.checks:
        mark, colour = ("✓", "green") if check.state == "ok" else ("✗", "red")
        click.echo(f"  {click.style(mark, fg=colour)} {check.name:<14} {check.reason}")
