"""`conclusion.md`: the verdict first, then everything it rests on, on one screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .model import Conclusion, RunSummary
from .summary import counted, number


def as_markdown(conclusion: Conclusion) -> str:
    """The page."""
    parts = [
        f"# {conclusion.experiment}: {conclusion.verdict.replace('_', ', ')}",
        conclusion.summary,
        _claim(conclusion),
        _runs(conclusion),
        _comparisons(conclusion),
        _sensitivity(conclusion),
        _bullets("Why not more", conclusion.reasons[1:]),
        _bullets("Not scored", (f"`{arm}`: {why}" for arm, why in conclusion.not_scored.items())),
        _bullets("Threats", conclusion.threats),
        _bullets("Next", conclusion.next),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _claim(conclusion: Conclusion) -> str:
    claim = conclusion.hypothesis
    if claim is None:
        return ""
    when = "registered before the first step" if conclusion.registered else "**not registered before the first step**"
    return f"> {' '.join(str(claim['claim']).split())}\n\nClaim {when}."


def _runs(conclusion: Conclusion) -> str:
    if not conclusion.runs:
        return ""
    chosen = any(run.selection_score is not None for run in conclusion.runs)
    header = [
        "run",
        *(["chosen by"] if chosen else []),
        "mean",
        "95 % interval",
        "seeds",
        "tasks",
        "failed",
        "tokens",
        "usd",
    ]
    title = f"## {conclusion.metric}" + (f" (chosen by {conclusion.selection})" if chosen else "")
    rows = [_run_cells(run, conclusion, chosen=chosen) for run in conclusion.runs]
    less = " Less is better." if conclusion.mode == "min" else ""
    note = f"**bold**: the best run.{less}" if conclusion.best_arm else less.strip()
    return "\n\n".join(part for part in (title, _table(header, rows), note) if part)


def _run_cells(run: RunSummary, conclusion: Conclusion, *, chosen: bool) -> list[str]:
    name = f"**{run.name}**" if run.name == conclusion.best_arm else run.name
    counts = {"seed": run.failures, "sample": run.failed_samples}
    failures = [counted(count, noun) for noun, count in counts.items() if count]
    interval = "-" if run.low is None else f"{number(run.low)} to {number(run.high)}"
    return [
        f"{name} (baseline)" if run.is_baseline else name,
        *([number(run.selection_score)] if chosen else []),
        number(run.mean),
        interval,
        str(run.n_seeds or "-"),
        "-" if run.n_tasks is None else str(run.n_tasks),
        ", ".join(failures) or "0",
        "-" if run.tokens is None else f"{run.tokens:,}",
        "-" if run.usd is None else f"{run.usd:.2f}",
    ]


def _comparisons(conclusion: Conclusion) -> str:
    if not conclusion.comparisons:
        return ""
    several = conclusion.n_compared > 1
    header = ["run", "difference", "95 % interval", "p", *(["without the luck of being chosen"] if several else [])]
    rows = [
        [
            one.run,
            number(one.difference, signed=True),
            "-" if one.low is None else f"{number(one.low, signed=True)} to {number(one.high, signed=True)}",
            "-" if one.p is None else f"{one.p:.3f}" if one.p >= 0.001 else "< 0.001",
            *([number(one.adjusted, signed=True)] if several else []),
        ]
        for one in conclusion.comparisons
    ]
    corrected = f" Intervals and p are corrected for {conclusion.n_compared} compared runs." if several else ""
    why = f"`{conclusion.baseline}` is the baseline: {conclusion.baseline_is}.{corrected}"
    return "\n\n".join([f"## Against {conclusion.baseline}", _table(header, rows), why])


def _sensitivity(conclusion: Conclusion) -> str:
    lines: list[str] = []
    if (floor := conclusion.noise_floor) is not None:
        lines.append(
            f"Noise floor: two runs of one recipe differ by up to {number(floor.difference)} "
            f"(seed sd {number(floor.seed_sd)}, from {floor.of})."
        )
    if conclusion.smallest_detectable is not None:
        lines.append(
            f"Smallest effect this experiment would have seen, in 80 % of repetitions: "
            f"{number(conclusion.smallest_detectable)}."
        )
    if (looks := conclusion.looks) is not None:
        earlier = (
            f"{counted(looks['before'], 'time')} in {counted(looks['experiments'], 'earlier experiment')}"
            if looks["before"]
            else "never before"
        )
        lines.append(f"Looks at the test set: {looks['here']} here, {earlier}.")
    return _bullets("How much this could see", lines)


def _bullets(title: str, lines: Iterable[str]) -> str:
    shown = [f"- {' '.join(line.split())}" for line in lines]
    return "\n".join([f"## {title}", "", *shown]) if shown else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
