"""Facts about single arms: the journal compared with their folders, results, code, data and spend."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ...record.events import Kind, read_trained_tasks
from ...record.evidence import hash_file, hash_result, seal_ledger
from ...record.ledger import read_tally
from ...record.runs import RunRecord
from ...record.values import items, number, part, text
from .case import Case
from .identity import COMPARED
from .recheck import TOLERANCE
from .report import Unchecked

_NAMED = 3
_TELLING = 5
"""Minimum number of distinct losses for a comparison of two arms."""


def find_stray_arms(case: Case) -> Iterator[str]:
    """Check that the journal started every arm on disk, and that every ended arm still has its result."""
    started = {event.text("arm") for event in case.of_kind(Kind.ARM_STARTED, Kind.ARM_RECALLED)}
    there = {run.name: run for run in case.runs if run.folder.is_dir()}
    for name in sorted({*there} - started):
        if case.is_chained and (there[name].result is not None or there[name].score_lines):
            yield f"{name} has results, and the journal never started it"
    if any(event.text("status") == "completed" for event in case.of_kind(Kind.ENDED)):
        # Only a completed experiment has started all announced arms.
        announced = {text(part(one).get("arm")) for one in items(case.record.start.get("arms"))} - {""}
        yield from (f"{name} was announced, and never started" for name in sorted(announced - started))
    for name, event in sorted(case.ends.items()):
        run = there.get(name)
        if run is None:
            yield f"{name} ended, and its folder is gone"
        elif case.is_chained and run.result is not None:
            extras = part(run.result, "extras")
            found = {**extras, **run.result, "result": hash_result(run.folder)}
            stated = ("metrics", "status", "tokens", "spend", "result")
            is_equal = all(event.get(what) in (None, found.get(what)) for what in stated)
            if not is_equal or event.text("unscored") != text(extras.get("unscored")):
                yield f"{name}: run_result.json has other values than the journal took when it ended"


def find_equal_seeds(case: Case) -> Iterator[str]:
    """Check that no two arms of a run have the same loss in every step: such copies are not independent seeds."""
    first: dict[tuple[str, str | None], RunRecord] = {}
    for run in case.runs:
        before = first.setdefault((run.run, hash_file(run.files.logs.metrics)), run)
        if before is not run and len({value for _, value in run.logged.get("loss", [])}) >= _TELLING:
            yield f"{run.name} and {before.name} have the same loss in every step: their seeds made no difference"


def find_misquoted_scores(case: Case) -> Iterator[str]:
    """Check that every score in a result occurs in an evaluation of the arm."""
    for run in case.runs:
        given: dict[str, set[float]] = {}
        for metric, _, _, score in run.scores:
            if (value := number(score.get("value"))) is not None:
                given.setdefault(metric, set()).add(value)
        for metric in given.keys() & run.metrics.keys():
            if not any(math.isclose(run.metrics[metric], value, abs_tol=TOLERANCE) for value in given[metric]):
                yield f"{run.name}: its result has {metric} {run.metrics[metric]:.6g}, and no scoring of it gives that"


def find_contamination(case: Case) -> Iterator[str]:
    """Check that neither the training rows nor the trained batches, also of killed attempts, contain tasks."""
    yield from (str(one) for one in items(case.record.start.get("contamination")))
    for arm, found in read_trained_tasks(case.events).items():
        for name, tasks in found.items():
            named = ", ".join(f"'{task}'" for task in tasks[:_NAMED])
            yield f"{arm} was trained on {len(tasks)} tasks of '{name}': {named}"


def find_unequal_parts(case: Case) -> Iterator[str]:
    """Check that compared arms have the same parts, weights and rows, except for those that the claim is about."""
    if all(run.identity is None for run in case.runs):
        raise Unchecked("what its arms are made of was not recorded")
    about = items(part(case.config, "metadata", "hypothesis").get("about"))
    stated: list[tuple[str, tuple[Any, ...], Any]] = []
    for run in case.runs:
        identity = run.identity or {}
        weights, benchmarks = part(identity, "weights"), part(identity, "benchmarks")
        parts: list[tuple[tuple[Any, ...], Any]] = [
            (("weights",), weights and (text(weights.get("checkpoint")) or "the model's own")),
            ((f"weights of the model {text(part(run.config, 'model').get('name'))}",), text(weights.get("model"))),
            (("backend",), identity.get("backend")),
        ]
        for what, field in COMPARED.items():
            values = {name: part(one).get(field) for name, one in benchmarks.items()}
            parts.append(((what,), None if None in values.values() else values))
        for place, rows in part(identity, "rows").items():
            key = f"rows of {place}, with one config and seed", run.seed, text(part(rows).get("config"))
            parts.append((key, text(part(rows).get("sha256"))))
        stated += [(run.name, key, value or None) for key, value in parts]
    for (what, *_), one, other in _find_disagreement(stated):
        if what not in about:
            yield f"{one} and {other} do not have the same {what}, and the claim is not about that"
    if "weights" not in about:
        loaded = {(event.text("arm"), event.text("ref")): None for event in case.of_kind(Kind.WEIGHTS_LOADED)}
        yield from (f"{arm} loaded the weights {ref}, which its config does not name" for arm, ref in loaded)


def find_changed_code(case: Case) -> Iterator[str]:
    """Check that project code with the same name is the same for all arms."""
    own = ((run.name, part(run.identity or {}, "own_code")) for run in case.runs)
    stated = [(arm, (name,), code) for arm, found in own for name, code in found.items()]
    for (name,), one, other in _find_disagreement(stated):
        yield f"the {name} of {one} was not that of {other}: its code was changed in between"


def _find_disagreement(
    stated: Sequence[tuple[str, tuple[Any, ...], Any]],
) -> Iterator[tuple[tuple[Any, ...], str, str]]:
    """Yield each key with two different values, and the first arm of each; None values are ignored."""
    first: dict[tuple[Any, ...], tuple[str, Any]] = {}
    found: set[tuple[Any, ...]] = set()
    for arm, key, value in stated:
        before, known = first.setdefault(key, (arm, value)) if value is not None else (arm, None)
        if known != value and key not in found:
            found.add(key)
            yield key, before, arm


def find_late_seeds(case: Case) -> Iterator[str]:
    """Check that no seed was added after the deciding interim analysis."""
    if not case.record.looks:
        raise Unchecked("there was no interim analysis")
    started: set[str] = set()
    ended: Any = None
    for event in case.events:
        if event.kind == Kind.LOOKED:
            ended = event.get("look") if event.get("ends") is True else None
        elif event.kind == Kind.ARM_STARTED:
            name = event.text("arm")
            if ended is not None and name not in started:
                yield f"{name} was started after look {ended} had ended the experiment"
            started.add(name)


def find_lost_spend(case: Case) -> Iterator[str]:
    """Check that the ledger keeps its sealed beginning, and contains the tokens of arms and their answers."""
    tally = read_tally(case.path)
    known = [event.part("ledger") for event in case.of_kind(Kind.ENDED) if event.part("ledger")]
    if known and seal_ledger(case.path, size=int(number(known[-1].get("size")) or 0)) != known[-1]:
        yield f"spend.jsonl is not as it was when the experiment ended (sha256 {text(known[-1].get('sha256'))[:12]})"
    for event in case.of_kind(Kind.ARM_ENDED):
        arm, before = event.text("arm"), number(event.part("spend").get("tokens_trained")) or 0.0
        if before > (now := tally.of(arm).tokens_trained):
            yield f"{arm} had trained on {before:,.0f} tokens, and spend.jsonl has {now:,.0f}"
    # Only arms without a restart: a killed process may lose ledger lines that it has not written yet.
    starts = Counter(event.text("arm") for event in case.of_kind(Kind.ARM_STARTED))
    completed = {event.text("arm") for event in case.of_kind(Kind.ARM_ENDED) if event.text("status") == "completed"}
    yield from case.answers.find_unpaid(tally, [arm for arm, n in starts.items() if n == 1 and arm in completed])
