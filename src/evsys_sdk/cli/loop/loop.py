"""`evsys loop` and `trigger`: the closed loop of a deployed system, and its decision to train."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ..options import import_option, json_option
from ..output import emit, emit_line, fields, hang

if TYPE_CHECKING:
    from ...loop.loop import Loop

_ANSWER_S = 10.0


@click.command()
@click.argument("system", type=click.Path())
@click.option("--follow", is_flag=True, help="Keep running: check for new work every --every seconds.")
@click.option("--every", default=60.0, type=click.FloatRange(min=0.1), help="Seconds between checks.")
@click.option("--status", is_flag=True, help="Show the state of every round, and do nothing.")
@json_option
@import_option
def loop(system: str, follow: bool, every: float, status: bool, as_json: bool) -> None:
    """Run the closed loop of SYSTEM, a YAML file: traces, decision, experiment, gate, deployment, watching.

    Runs all steps that are due, each once, also after a crash, and ends when it has to wait. Exits with 3 if a budget
    ended it.
    """
    from ...loop.loop import Loop
    from ...loop.system import load_system

    running = Loop(load_system(system))
    if status:
        _show(running, as_json)
        return
    from ...loop.page import describe_loop

    with open_dashboard(f"loop:{running.system.name}", lambda: describe_loop(running)) as report:
        while True:
            report()  # also if the loop has nothing to do
            over = False
            for step in running.steps():
                report()
                over = over or step.over_budget  # later steps are still reported
                round = f"round {step.round}" if step.round else ""
                emit_line(step.to_dict(), as_json, hang(f"{round:<9} {step.stage:<10} ", step.text))
            if over:
                click.get_current_context().exit(3)
            if not follow or running.stop_file.exists():
                return
            time.sleep(every)


@contextmanager
def open_dashboard(name: str, describe: Callable[[], dict[str, Any]]) -> Generator[Callable[[], None]]:
    """A function that reports `campaign:NAME` or `loop:NAME` to the environment's dashboard if it has changed.

    It first carries out open requests from the dashboard. A failure is logged and does not stop the loop.
    """
    if not (os.environ.get("EVSYS_API_KEY") and os.environ.get("EVSYS_PROJECT_ID")):
        yield lambda: None
        return
    from ...dashboard.client.client import DashboardClient
    from ...dashboard.client.remote_record import read_open_requests
    from ...errors import EvsysError
    from ...log import get_logger
    from ...loop.page import act_on_request

    reported: dict[str, Any] = {}

    def report() -> None:
        nonlocal reported
        try:
            requests = read_open_requests(name)
            for request in requests:
                client.answer_request(str(request["id"]), *act_on_request(name, request))
            page = describe()
            if page != reported:
                client.log_loop(name.removeprefix("loop:"), page)
                reported = page
            if requests:
                client.flush(_ANSWER_S)  # unanswered requests would be carried out again
        except EvsysError as error:
            get_logger(__name__).warning("%s: the report failed: %s", name, error)

    with DashboardClient(raise_refusals=False) as client:
        yield report


def report_campaign(name: str) -> None:
    """Report a campaign to the environment's dashboard."""
    from ...loop.page import describe_campaign

    with open_dashboard(f"campaign:{name}", lambda: describe_campaign(name)) as report:
        report()


def _show(running: Loop, as_json: bool) -> None:
    from ...loop.page import describe_loop

    page = describe_loop(running)

    def render() -> None:
        click.echo(f"{page['system']}: {page['live'] + ' is live' if page['live'] else 'nothing is live'}")
        limits = ", ".join(f"{name} {value:g}" for name, value in page["limits"].items())
        rollbacks = [
            f"{back['replaced']} -> {back['instead'] or 'nothing'}: {back['reason']}" for back in page["rollbacks"]
        ]
        stated = {"now": page["state"], "limits": limits and f"{limits}; {page['usd']:.2f} USD spent"}
        click.echo(fields([*stated.items(), *(("rollback", rollback) for rollback in rollbacks)]))
        for round in page["rounds"]:
            _show_round(round)
        if not page["rounds"]:
            click.echo("No round yet.")

    emit(page, as_json, render)


def _show_round(round: dict[str, Any]) -> None:
    click.echo(f"round {round['round']}: {round['outcome'] or 'next: ' + round['stage']}")
    facts = {
        "traces": f"{round['traces']}; {round['rows']} rows to learn from, {round['tasks']} tasks held out",
        "decision": round["decision"],
        "experiment": round["experiment_id"] or round["experiment"],
        "gate": round["verdict"],
        "deployment": round["deployment"],
        "approved": ", ".join(round["approvals"]),
        "reason": round["reason"],
    }
    click.echo(fields(facts.items()))
    if round["checks"]:
        click.echo(show_checks(round["checks"], indent=4))


def show_checks(checks: Iterable[Mapping[str, str]], *, indent: int = 2) -> str:
    """The checks of a gate with their reasons."""
    marks = ((check, "✓" if check["state"] == "ok" else "✗") for check in checks)
    return fields(((f"{mark} {check['name']}", check["reason"]) for check, mark in marks), indent=indent)


@click.group()
def trigger() -> None:
    """Decide whether new traces justify a training round."""


@trigger.command("run")
@click.argument("system", type=click.Path())
@click.option("--scaffold", is_flag=True, help="If so, seal the traces and write the experiment of the round.")
@json_option
@import_option
def run_trigger(system: str, scaffold: bool, as_json: bool) -> None:
    """Judge the new traces of SYSTEM by its rules: number, failures, novelty and change of rewards."""
    from ...loop.decider import decide
    from ...loop.loop import Loop, find_refused_rounds
    from ...loop.system import load_system

    settings = load_system(system)
    running = Loop(settings)
    rounds = running.rounds()
    decision = decide(settings, without=find_refused_rounds(rounds))
    answer: dict[str, Any] = {**decision.to_dict(), "dataset": None, "experiment": None}
    if scaffold and decision.learn:
        number, path = running.scaffold_round()
        sealed = running.rounds()[number - 1].sealed
        answer |= {"dataset": sealed["dataset"], "experiment": str(path)}

    def render() -> None:
        click.secho("Learn." if decision.learn else "Do not learn.", bold=True)
        marks = {True: "+", False: "-", None: "·"}
        click.echo(fields((f"{marks[reason.votes]} {reason.rule}", reason.text) for reason in decision.why))
        if answer["experiment"]:
            click.echo(f"  dataset {answer['dataset']}\n  evsys run {answer['experiment']}")

    emit(answer, as_json, render)
