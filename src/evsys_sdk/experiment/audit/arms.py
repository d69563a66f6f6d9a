"""What the journal tells about single arms that their folders, or honest training, would not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...record.events import Event, Kind, read_trained_tasks
from ...record.evidence import hash_file, hash_result, seal_ledger
from ...record.ledger import Tally
from ...record.reader import ExperimentRecord
from ...record.runs import RunRecord
from ...record.values import Object, items, number, part, text
from .identity import COMPARED
from .recheck import TOLERANCE

_NAMED = 3
_TELLING = 5
"""Losses that are not equal by chance."""


def find_stray_arms(record: ExperimentRecord, runs: Sequence[RunRecord], *, is_chained: bool) -> Iterator[str]:
    """Arms on disk that the orchestrator never started, and those of which it knows something else than the disk."""
    events = record.events
    started = {event.text("arm") for event in events if event.kind in (Kind.ARM_STARTED, Kind.ARM_RECALLED)}
    there = {run.name: run for run in runs if run.folder.is_dir()}
    for name in sorted({*there} - started):
        if is_chained and (there[name].result is not None or there[name].score_lines):
            yield f"{name} has results, and the journal never started it"
    ended = {event.text("arm"): event for event in events if event.kind == Kind.ARM_ENDED}
    yield from (f"{name} ended, and its folder is gone" for name in sorted(ended) if name not in there)
    yield from (f"{name} was announced, and never started" for name in sorted(_find_announced(record) - started))
    for name, event in ended.items() if is_chained else ():
        run = there.get(name)
        if run is not None and run.result is not None and (what := _find_difference(event.payload, run)):
            yield f"{name}: run_result.json has other {what} than the journal took when it ended"


def _find_announced(record: ExperimentRecord) -> set[str]:
    """Arms that must have been started: those of an experiment that nothing but its own end has stopped."""
    completed = any(event.kind == Kind.ENDED and event.text("status") == "completed" for event in record.events)
    # A search starts the arms that it decides for, and may leave out others.
    if not completed or record.search_decisions:
        return set()
    return {text(part(one).get("arm")) for one in items(record.start.get("arms"))} - {""}


def _find_difference(told: Object, run: RunRecord) -> str | None:
    """What a result says that the journal does not, in one word; None where they agree."""
    result = run.result or {}
    before, now = part(told, "metrics"), part(result, "metrics")
    if any(before.get(key) != now.get(key) for key in before.keys() | now.keys()):
        return "metrics"
    if text(told.get("status")) != text(result.get("status")):
        return "status"
    extras = part(result, "extras")
    if any(name in told and told[name] != extras.get(name) for name in ("tokens", "spend")):
        return "costs"
    if text(told.get("unscored")) != text(extras.get("unscored")):
        return "words about its scores"
    return "words" if told.get("result") not in (None, hash_result(run.folder)) else None


def find_equal_seeds(runs: Sequence[RunRecord]) -> Iterator[str]:
    """Arms of one run whose seeds made no difference in any step: they are one arm, counted several times."""
    of_size: dict[tuple[str, int], list[RunRecord]] = {}
    for run in runs:
        with suppress(OSError):
            of_size.setdefault((run.run, run.files.logs.metrics.stat().st_size), []).append(run)
    for alike in of_size.values():
        first: dict[str | None, RunRecord] = {}
        for run in alike if len(alike) > 1 else ():  # logs may be long: only those of the same length are read
            before = first.setdefault(hash_file(run.files.logs.metrics), run)
            if before is not run and len({value for _, value in run.logged.get("loss", [])}) >= _TELLING:
                yield f"{run.name} and {before.name} have the same loss in every step: their seeds made no difference"


def find_misquoted_scores(runs: Sequence[RunRecord]) -> Iterator[str]:
    """Results that name a score which no scoring of the arm has given."""
    for run in runs:
        given: dict[str, set[float]] = {}
        for metric, _, _, score in run.scores:
            if (value := number(score.get("value"))) is not None:
                given.setdefault(metric, set()).add(value)
        for metric in given.keys() & run.metrics.keys():
            if not any(math.isclose(run.metrics[metric], value, abs_tol=TOLERANCE) for value in given[metric]):
                yield f"{run.name}: its result has {metric} {run.metrics[metric]:.6g}, and no scoring of it gives that"


def find_dropped_scores(runs: Sequence[RunRecord]) -> Iterator[str]:
    """Arms that failed after their last scoring, so that what they had scored is left out of the comparison."""
    for run in runs:
        steps, total = [number(line.get("step")) or 0.0 for line in run.score_lines], run.total_steps
        if run.status == "failed" and total and steps and max(steps) >= total:
            yield f"{run.name} failed after it had been scored at its end, and its scores are left out"


def find_trained_tasks(events: Sequence[Event]) -> Iterator[str]:
    """Tasks that an arm learned from, in this attempt at it or in one that was killed."""
    noted = read_trained_tasks(events)
    seen = {(arm, name): (len(tasks), tasks) for arm, found in noted.items() for name, tasks in found.items()}
    for event in events:
        for name in event.part("trained_on") if event.kind == Kind.ARM_ENDED else ():
            told = part(event.payload, "trained_on", name)
            n, first = int(number(told.get("n")) or 0), [str(task) for task in items(told.get("first"))]
            key = event.text("arm"), name
            seen[key] = max(seen.get(key, (0, [])), (n, first), key=lambda one: one[0])
    for (arm, name), (n, tasks) in seen.items():
        named = ", ".join(f"'{task}'" for task in tasks[:_NAMED])
        yield f"{arm} was trained on {n} tasks of '{name}': {named}"


def find_unequal_parts(runs: Sequence[RunRecord], about: Sequence[str]) -> Iterator[str]:
    """What compared arms must share and do not: parts of their identity, weights of one model, rows of one config."""
    told: list[tuple[str, tuple[Any, ...], Any]] = []
    for run in runs:
        identity = run.identity or {}
        told += [(run.name, (what,), read(identity)) for what, read in COMPARED.items() if identity]
        model = f"weights of the model {text(part(run.config, 'model').get('name'))}"
        told.append((run.name, (model,), text(part(identity, "weights").get("model")) or None))
        for place, rows in part(identity, "rows").items():
            key = f"rows of {place}, with one config and seed", run.seed, text(part(rows).get("config"))
            told.append((run.name, key, text(part(rows).get("sha256"))))
    for (what, *_), one, other in _find_disagreement(told):
        if what not in about:
            yield f"{one} and {other} do not have the same {what}, and the claim is not about that"


def find_changed_code(runs: Sequence[RunRecord]) -> Iterator[str]:
    """Code of the project that goes by one name and was another for some of the arms."""
    told = [(run.name, (name,), code) for run in runs for name, code in part(run.identity or {}, "own_code").items()]
    for (name,), one, other in _find_disagreement(told):
        yield f"the {name} of {one} was not that of {other}: its code was changed in between"


def _find_disagreement(
    told: Sequence[tuple[str, tuple[Any, ...], Any]],
) -> Iterator[tuple[tuple[Any, ...], str, str]]:
    """Each key that has two values, with the first arms that have them; None is no value."""
    first: dict[tuple[Any, ...], tuple[str, Any]] = {}
    found: set[tuple[Any, ...]] = set()
    for arm, key, value in told:
        before, known = first.setdefault(key, (arm, value)) if value is not None else (arm, None)
        if known != value and key not in found:
            found.add(key)
            yield key, before, arm


def find_foreign_weights(events: Sequence[Event]) -> Iterator[str]:
    """Weights that an arm took from elsewhere while it continued."""
    loaded = {(event.text("arm"), event.text("ref")): None for event in events if event.kind == Kind.WEIGHTS_LOADED}
    yield from (f"{arm} loaded the weights {ref}, which its config does not name" for arm, ref in loaded)


def find_late_seeds(events: Sequence[Event]) -> Iterator[str]:
    """Arms that were started after an interim analysis had ended the experiment."""
    started: set[str] = set()
    ended: Any = None
    for event in events:
        if event.kind == Kind.LOOKED:
            ended = event.get("look") if event.get("ends") is True else None
        elif event.kind == Kind.ARM_STARTED:
            name = event.text("arm")
            if ended is not None and name not in started:
                yield f"{name} was started after look {ended} had ended the experiment"
            started.add(name)


def find_lost_spend(folder: Path, events: Sequence[Event], tally: Tally) -> Iterator[str]:
    """Whether the ledger begins as it was when the experiment ended, and has what the journal knew of arms."""
    known = [event.part("ledger") for event in events if event.kind == Kind.ENDED and event.part("ledger")]
    if known and seal_ledger(folder, size=int(number(known[-1].get("size")) or 0)) != known[-1]:
        yield f"spend.jsonl is not as it was when the experiment ended (sha256 {text(known[-1].get('sha256'))[:12]})"
    for event in events:
        before = (number(event.part("spend").get("tokens_trained")) or 0.0) if event.kind == Kind.ARM_ENDED else 0.0
        if before > (now := tally.of(event.text("arm")).tokens_trained):
            yield f"{event.text('arm')} had trained on {before:,.0f} tokens, and spend.jsonl has {now:,.0f}"
