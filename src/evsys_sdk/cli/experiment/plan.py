"""`evsys plan`: estimate an experiment before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ...history.text import count_text, duration_text
from ..options import import_option, json_option
from ..output import emit, print_text, print_warnings, table_of_differences

if TYPE_CHECKING:
    from ...experiment.plan.plan import ExperimentPlan, LimitPlan, RunNeeds
    from ...experiment.plan.sensitivity import Sensitivity


@click.command()
@click.argument("path", type=click.Path())
@json_option
@import_option
def plan(path: str, as_json: bool) -> None:
    """Estimate the experiment in PATH: arms, steps, tokens, cost, time, and whether its budget suffices."""
    from ...experiment.plan.plan import plan_experiment
    from ...experiment.plan.plan_hash import hash_plan
    from ...experiment.preflight import check_file

    checked = check_file(path)
    estimate = plan_experiment(checked.config, checked=True)
    answer = {**estimate.to_dict(), "hash": hash_plan(checked.config)}
    emit(answer | ({"warnings": [*checked.warnings]} if checked.warnings else {}), as_json, lambda: _render(estimate))
    if not as_json:
        print_warnings(checked.warnings)


def _render(plan: ExperimentPlan) -> None:
    places = sorted({f"{run.model} on {run.backend}" for run in plan.runs})
    click.secho(
        f"{plan.name}: {_count(plan.n_arms, 'arm')}, {', '.join(places[:3])}{' …' * (len(places) > 3)}", bold=True
    )
    shown = plan.runs[:20]
    rows: list[tuple[str, ...]] = [(run.run, f"x{len(run.arms)}", run.algorithm, *_cells(run.each)) for run in shown]
    if len(plan.runs) > len(shown):
        rows.append((f"… {len(plan.runs) - len(shown)} more", "", shown[0].algorithm, *[""] * 5))
    if plan.n_arms > 1:
        recipes = {run.algorithm for run in plan.runs}
        rows.append(("all arms", f"{plan.n_arms}", recipes.pop() if len(recipes) == 1 else "", *_cells(plan.total)))
    headers = ("run", "arms", "recipe", "steps", "trained", "sampled", "usd", "time")
    click.echo(table_of_differences(headers, rows, shared=("recipe", "usd"), whole=headers[1:]))
    for name, limit in plan.budget.items():
        print_text(_verdict(name, limit))
    if plan.sensitivity is not None:
        for line in _sensitivity(plan):
            print_text(line)
    notes = {note: None for run in plan.runs for note in run.notes}
    for sentence in (*plan.assumptions, *notes):
        print_text(f"{sentence[:1].upper()}{sentence[1:]}.")


def _cells(needs: RunNeeds) -> tuple[str, str, str, str, str]:
    steps = "?" if needs.steps is None else f"{needs.steps:,}"
    usd = "?" if needs.usd is None else f"{needs.usd:,.2f}" if needs.usd else "0"
    sampled = count_text(needs.tokens_sampled)
    if needs.most_sampled > needs.tokens_sampled:
        sampled += f" to {count_text(needs.most_sampled)}"
    time = "?" if needs.wall_s is None else duration_text(needs.wall_s)
    return steps, count_text(needs.tokens_trained), sampled, usd, time


def _verdict(name: str, limit: LimitPlan) -> str:
    from ...spend.ledger import amount

    unit = name.rpartition(".")[2]
    owner = "each arm's own budget" if name.startswith("per_arm.") else "budget"
    head = f"{owner} of {amount(unit, limit.limit)} {unit}"
    if limit.needed is None:
        return f"{head}: not known whether it lasts"
    needed = f"at most {amount(unit, limit.needed)}"
    if limit.lasts:
        return f"{head}: lasts ({needed})"
    where = f" and would then end in arm '{limit.ends_at}'" if limit.ends_at else ""
    return f"{head}: may not last ({needed}){where}"


def _sensitivity(plan: ExperimentPlan) -> Iterator[str]:
    """The decision rule, the minimum detectable effect, and the seeds needed for the claimed effect."""
    sensitivity = plan.sensitivity
    if sensitivity is None:
        return
    yield sensitivity.rule
    if sensitivity.detectable is None:
        return
    seeds = _count(sensitivity.seeds, "seed")
    yield f"Minimum detectable effect with {seeds} a run: {sensitivity.detectable:.3f} (80 % power)."
    if sensitivity.claimed is not None and sensitivity.claimed < sensitivity.detectable:
        yield _seeds_needed(plan, sensitivity, sensitivity.claimed)


def _seeds_needed(plan: ExperimentPlan, sensitivity: Sensitivity, claimed: float) -> str:
    if sensitivity.seeds_needed is None:
        return f"No number of seeds would show the claimed {claimed:g}: add tasks, or samples of each task."
    times = sensitivity.seeds_needed / sensitivity.seeds
    usd = f", {plan.total.usd * times:,.2f} usd" if plan.total.usd else ""
    arms = _count(len(plan.runs) * sensitivity.seeds_needed, "arm")
    return (
        f"To see the claimed {claimed:g}: n_repeats: {sensitivity.seeds_needed} "
        f"({arms}, at most {count_text(plan.total.tokens * times)} tokens{usd})."
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
