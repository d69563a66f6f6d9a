"""Render a conclusion as `conclusion.md`: the verdict first, then its evidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..statistics.attempts import ERROR
from .model import Conclusion, RunSummary
from .summary import number, pluralise, shorten


def as_markdown(conclusion: Conclusion) -> str:
    """Render the page."""
    parts = [
        f"# {conclusion.experiment}: {conclusion.verdict.replace('_', ', ')}",
        conclusion.summary,
        _bullets("Flags", conclusion.flags),
        _claim(conclusion),
        _runs(conclusion),
        _bullets("What differed", _differences(conclusion)),
        _comparisons(conclusion),
        _bullets("How much this could see", _sensitivity(conclusion)),
        _bullets("Why not more", conclusion.reasons[1:]),
        _bullets("Not scored", (f"`{arm}`: {why}" for arm, why in conclusion.not_scored.items())),
        _bullets("Threats", [*conclusion.threats, *conclusion.deviations]),
        _bullets("Measured with", (f"{what}: {which}" for what, which in conclusion.identity.items())),
        _bullets("Next", conclusion.next),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _claim(conclusion: Conclusion) -> str:
    claim, looks = conclusion.hypothesis, conclusion.sequential
    if claim is None:
        return ""
    when = "registered before the first step" if conclusion.registered else "**not registered before the first step**"
    parts = [f"Claim {when}.", conclusion.rule]
    parts += [f"Trial {conclusion.attempt} of this claim."] if conclusion.attempt else []
    if looks is not None:
        place = f"Analysis {looks.look} of {len(looks.looks)}, with {pluralise(looks.seeds, 'seed')} a run"
        parts.append(f"{place}, tested at {100 * looks.error:.2g} %: {looks.outcome}.")
    # On one line, because a blank line ends a Markdown quotation.
    return f"> {' '.join(str(claim['claim']).split())}\n\n{' '.join(filter(None, parts))}"


def _runs(conclusion: Conclusion) -> str:
    if not conclusion.runs:
        return ""
    chosen = any(run.selection_score is not None for run in conclusion.runs)
    header = ["run", *(["chosen by"] if chosen else []), "mean", "95 % interval", "by seed", "failed", "tokens", "usd"]
    title = f"## {conclusion.metric}" + (f" (chosen by {conclusion.selection})" if chosen else "")
    notes = ["**bold**: the best run."] if conclusion.best_arm else []
    notes += ["Less is better."] if conclusion.mode == "min" else []
    if (found := conclusion.population) is not None and found.n_tasks is not None:
        clusters = f" in {pluralise(found.n_clusters, 'cluster')}" if found.n_clusters is not None else ""
        each = found.samples_per_task or 0
        samples = f", {each:.3g} sample{'' if each == 1 else 's'} each"
        notes.append(f"Scored on {pluralise(found.n_tasks, 'task')} of {found.source}{clusters}{samples}.")
    seeds = {", ".join(map(str, run.seeds)) for run in conclusion.runs if run.seeds}
    notes += [f"Seeds: {' or '.join(sorted(seeds))}."] if seeds else []
    rows = [_run_cells(run, conclusion, chosen=chosen) for run in conclusion.runs]
    return "\n\n".join([title, _table(header, rows), *([" ".join(notes)] if notes else [])])


def _run_cells(run: RunSummary, conclusion: Conclusion, *, chosen: bool) -> list[str]:
    name = f"**{run.name}**" if run.name == conclusion.best_arm else run.name
    counts = {"seed": run.failures, "sample": run.failed_samples}
    return [
        f"{name} (baseline)" if run.is_baseline else name,
        *([number(run.selection_score)] if chosen else []),
        number(run.mean),
        "-" if run.low is None else f"{number(run.low)} to {number(run.high)}",
        " ".join(map(number, run.by_seed)) or "-",
        ", ".join(pluralise(count, noun) for noun, count in counts.items() if count) or "0",
        "-" if run.tokens is None else f"{run.tokens:,}",
        "-" if run.usd is None else f"{run.usd:.2f}",
    ]


def _differences(conclusion: Conclusion) -> Iterator[str]:
    for path in dict.fromkeys(path for run in conclusion.runs for path in run.differs):
        shown = [f"{shorten(run.differs[path])} in `{run.name}`" for run in conclusion.runs if path in run.differs]
        yield f"`{path}`: {', '.join(shown[:8])}" + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")


def _comparisons(conclusion: Conclusion) -> str:
    if not conclusion.comparisons:
        return ""
    sequential = conclusion.sequential
    error = sequential.error if sequential is not None else conclusion.error_rate or ERROR
    rows = [
        [
            one.run,
            number(one.difference, signed=True),
            _interval(one.low, one.high),
            "-" if one.p is None else f"{one.p:.3f}" if one.p >= 0.001 else "< 0.001",
        ]
        for one in conclusion.comparisons
    ]
    note = f"`{conclusion.baseline}` is the baseline: {conclusion.baseline_is}. "
    note += "Intervals contain seed and task sampling variance."
    if rows[1:]:
        note += f" They (Bonferroni) and p (Holm) are corrected for {len(rows)} compared runs; "
        note += "the best of several differences is biased upwards."
    table = _table(["run", "difference", f"{100 * (1 - 2 * error):.3g} % interval", "p"], rows)
    return "\n\n".join([f"## Against {conclusion.baseline}", table, note])


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None else f"{number(low, signed=True)} to {number(high, signed=True)}"


def _sensitivity(conclusion: Conclusion) -> Iterator[str]:
    if (floor := conclusion.noise_floor) is not None:
        yield (
            f"Noise floor: two runs of one recipe differ by up to {number(floor.difference)} in 19 of 20 cases "
            f"(standard deviation over seeds {number(floor.seed_sd)}, from all runs)."
        )
    if conclusion.comparisons and conclusion.hypothesis is not None:
        known, effect = "not computable, too few seeds or tasks", conclusion.smallest_detectable
        yield f"Minimum detectable effect: {known if effect is None else f'{number(effect)} (80 % power)'}."
    if (looks := conclusion.looks) is not None:
        before = f"{pluralise(looks.before, 'time')} in {pluralise(looks.experiments, 'earlier experiment')}"
        yield f"Evaluations on the test set: {looks.here} here, {before if looks.before else 'never before'}."
    if conclusion.comparisons:
        yield "No test can detect a judge or verifier that drifts between runs."


def _bullets(title: str, lines: Iterable[str]) -> str:
    shown = [f"- {' '.join(line.split())}" for line in lines]
    return "\n".join([f"## {title}", "", *shown]) if shown else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
