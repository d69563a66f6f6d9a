"""`evsys trigger`: whether it is time to learn."""

from __future__ import annotations

from typing import Any

import click

from .output import emit, import_option, json_option


@click.group()
def trigger() -> None:
    """Decide whether it is time to learn."""


@trigger.command()
@click.argument("system", type=click.Path())
@click.option("--scaffold", is_flag=True, help="If it is, seal the traces and write the experiment of the round.")
@json_option
@import_option
def run(system: str, scaffold: bool, as_json: bool) -> None:
    """Judge the new traces of SYSTEM by its rules: how many, how many failed, how new, how rewards moved."""
    from ..loop.decider import decide
    from ..loop.loop import Loop, find_refused_rounds
    from ..loop.system import load_system

    settings = load_system(system)
    running = Loop(settings)
    rounds = running.rounds()
    decision = decide(settings, without=find_refused_rounds(rounds))
    answer: dict[str, Any] = {**decision.to_dict(), "dataset": None, "experiment": None}
    if scaffold and decision.learn:
        number, path = running.scaffold_round()
        made = running.rounds()[number - 1].made
        answer |= {"dataset": made["dataset"], "experiment": str(path)}

    def render() -> None:
        click.secho("Learn." if decision.learn else "Do not learn.", bold=True)
        for one in decision.why:
            mark = {True: "+", False: "-", None: "·"}[one.votes]
            click.echo(f"  {mark} {one.rule:<14} {one.text}")
        if answer["experiment"]:
            click.echo(f"  dataset {answer['dataset']}\n  evsys run {answer['experiment']}")

    emit(answer, as_json, render)
