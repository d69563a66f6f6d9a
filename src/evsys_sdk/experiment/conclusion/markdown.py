"""Render a conclusion as `conclusion.md`: the verdict first, then its evidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..statistics.attempts import ERROR
from .model import Conclusion, RunSummary
from .summary import number, pluralise

_MOST_SEEDS_SHOWN = 5


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
        _trend(conclusion),
        _sensitivity(conclusion),
        _bullets("Why not more", conclusion.reasons[1:]),
        _bullets("Not scored", (f"`{arm}`: {why}" for arm, why in conclusion.not_scored.items())),
        _bullets("Threats", [*conclusion.extremes, *conclusion.threats, *conclusion.deviations]),
        _bullets("Measured with", (f"{what}: {which}" for what, which in conclusion.identity.items())),
        _bullets("Next", conclusion.next),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _claim(conclusion: Conclusion) -> str:
    claim = conclusion.hypothesis
    if claim is None:
        return ""
    when = "registered before the first step" if conclusion.registered else "**not registered before the first step**"
    rule = f" {conclusion.rule}" if conclusion.rule else ""
    attempt = f" Trial {conclusion.attempt} of this claim." if conclusion.attempt else ""
    # On one line, because a blank line ends a Markdown quotation.
    return f"> {' '.join(str(claim['claim']).split())}\n\nClaim {when}.{rule}{attempt}{_looks(conclusion)}"


def _looks(conclusion: Conclusion) -> str:
    """Describe the interim analysis that ended the experiment, and the number of arms saved."""
    found = conclusion.sequential
    if found is None:
        return ""
    place = f"look {found.look} of {len(found.looks)}, with {pluralise(found.seeds, 'seed')} a run"
    ends = {"decided": f"Decided at {place}", "futile": f"Given up at {place}: more seeds would hardly support it"}
    said = ends.get(found.outcome, f"{found.outcome[:1].upper()}{found.outcome[1:]} ({place})")
    level = f"; this look was tested at {100 * found.error:.2g} %"
    left = found.arms_planned - found.arms
    if left <= 0:
        return f" {said}{level}."
    return f" {said}{level}. Saved: {left} of {pluralise(found.arms_planned, 'arm')}."


def _runs(conclusion: Conclusion) -> str:
    if not conclusion.runs:
        return ""
    chosen = any(run.selection_score is not None for run in conclusion.runs)
    header = ["run", *(["chosen by"] if chosen else []), "mean", "95 % interval", "by seed", "failed", "tokens", "usd"]
    title = f"## {conclusion.metric}" + (f" (chosen by {conclusion.selection})" if chosen else "")
    rows = [_run_cells(run, conclusion, chosen=chosen) for run in conclusion.runs]
    less = " Less is better." if conclusion.mode == "min" else ""
    note = f"**bold**: the best run.{less}" if conclusion.best_arm else less.strip()
    notes = " ".join([note, *_population(conclusion)]).strip()
    return "\n\n".join(part for part in (title, _table(header, rows), notes) if part)


def _population(conclusion: Conclusion) -> Iterator[str]:
    found = conclusion.population
    if found is None or found.n_tasks is None:
        return
    where = f" of {found.source}" if found.source else ""
    clusters = f" in {pluralise(found.n_clusters, 'cluster')}" if found.n_clusters is not None else ""
    each = found.samples_per_task
    samples = f", {each:.3g} {'sample' if each == 1 else 'samples'} each" if each else ""
    yield f"Scored on {pluralise(found.n_tasks, 'task')}{where}{clusters}{samples}."
    seeds = {tuple(run.seeds) for run in conclusion.runs if run.seeds}
    if len(seeds) == 1:
        shown = ", ".join(map(str, next(iter(seeds))))
        several = sum(bool(run.seeds) for run in conclusion.runs) > 1
        yield f"Seeds: {shown}{', the same for all runs' if several else ''}."


def _run_cells(run: RunSummary, conclusion: Conclusion, *, chosen: bool) -> list[str]:
    name = f"**{run.name}**" if run.name == conclusion.best_arm else run.name
    counts = {"seed": run.failures, "sample": run.failed_samples}
    failures = [pluralise(count, noun) for noun, count in counts.items() if count]
    interval = "-" if run.low is None else f"{number(run.low)} to {number(run.high)}"
    return [
        f"{name} (baseline)" if run.is_baseline else name,
        *([number(run.selection_score)] if chosen else []),
        number(run.mean),
        interval,
        _by_seed(run),
        ", ".join(failures) or "0",
        "-" if run.tokens is None else f"{run.tokens:,}",
        "-" if run.usd is None else f"{run.usd:.2f}",
    ]


def _by_seed(run: RunSummary) -> str:
    if len(run.by_seed) > _MOST_SEEDS_SHOWN:
        return f"{len(run.by_seed)} seeds, {number(min(run.by_seed))} to {number(max(run.by_seed))}"
    return " ".join(number(value) for value in run.by_seed) or "-"


def _differences(conclusion: Conclusion) -> Iterator[str]:
    for path in dict.fromkeys(path for run in conclusion.runs for path in run.differs):
        values = {run.name: run.differs[path] for run in conclusion.runs if path in run.differs}
        shown = [f"{_short(value)} in `{name}`" for name, value in list(values.items())[:8]]
        more = f" and {len(values) - 8} more" if len(values) > 8 else ""
        yield f"`{path}`: {', '.join(shown)}{more}"


def _short(value: object) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _comparisons(conclusion: Conclusion) -> str:
    if not conclusion.comparisons:
        return ""
    several = conclusion.n_compared > 1
    header = ["run", "difference", f"{_level(conclusion)} interval", "p"]
    rows = [
        [
            one.run,
            number(one.difference, signed=True),
            _interval(one.low, one.high),
            "-" if one.p is None else f"{one.p:.3f}" if one.p >= 0.001 else "< 0.001",
        ]
        for one in conclusion.comparisons
    ]
    by_seeds = conclusion.noise_floor is not None
    by_task = conclusion.population is not None and (conclusion.population.n_tasks or 0) > 1
    variance = "seed variance and task sampling variance" if by_task else "seed variance, but no task sampling variance"
    corrected = (
        f" Intervals contain {variance}. They (Bonferroni) and p (Holm) are corrected "
        f"for {conclusion.n_compared} compared runs; the best of several differences is biased upwards."
        if several
        else f" The interval contains {variance}."
    )
    if by_seeds:
        corrected += " The end away from the claim is wider, because it uses the seeds of the two runs alone."
    level = conclusion.hypothesis is not None and conclusion.hypothesis.get("level") is not None
    what = f"{conclusion.baseline} is what is compared with" if level else f"`{conclusion.baseline}` is the baseline"
    return "\n\n".join(
        [f"## Against {conclusion.baseline}", _table(header, rows), f"{what}: {conclusion.baseline_is}.{corrected}"]
    )


def _level(conclusion: Conclusion) -> str:
    """Coverage of the intervals of differences."""
    sequential = conclusion.sequential
    error = sequential.error if sequential is not None else conclusion.error_rate or ERROR
    return f"{100 * (1 - 2 * error):.3g} %"


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None else f"{number(low, signed=True)} to {number(high, signed=True)}"


def _trend(conclusion: Conclusion) -> str:
    trend = conclusion.trend
    if trend is None:
        return ""
    rows = [[value, number(mean)] for value, mean in trend.values.items()]
    change = f"From {trend.first:g} to {trend.last:g}, a straight line changes by {number(trend.change, signed=True)}"
    interval = f" ({_interval(trend.low, trend.high)})" if trend.low is not None else ""
    return "\n\n".join([f"## Along {trend.axis}", _table([trend.axis, "mean"], rows), f"{change}{interval}."])


def _sensitivity(conclusion: Conclusion) -> str:
    lines: list[str] = []
    if (floor := conclusion.noise_floor) is not None:
        lines.append(
            f"Noise floor: two runs of one recipe differ by up to {number(floor.difference)} in 19 of 20 cases "
            f"(standard deviation over seeds {number(floor.seed_sd)}, from all runs)."
        )
    if conclusion.smallest_detectable is not None:
        lines.append(f"Minimum detectable effect: {number(conclusion.smallest_detectable)} (80 % power).")
    elif conclusion.comparisons and conclusion.hypothesis is not None:
        lines.append("Minimum detectable effect: not computable, too few seeds or tasks.")
    if (looks := conclusion.looks) is not None:
        earlier = (
            f"{pluralise(looks.before, 'time')} in {pluralise(looks.experiments, 'earlier experiment')}"
            if looks.before
            else "never before"
        )
        lines.append(f"Evaluations on the test set: {looks.here} here, {earlier}.")
    if conclusion.comparisons:
        lines.append("No test can detect a judge or verifier that drifts between runs.")
    return _bullets("How much this could see", lines)


def _bullets(title: str, lines: Iterable[str]) -> str:
    shown = [f"- {' '.join(line.split())}" for line in lines]
    return "\n".join([f"## {title}", "", *shown]) if shown else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
