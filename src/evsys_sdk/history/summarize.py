"""One folder -> its `ExperimentSummary`.

The journal is read first; folders of versions that had none are told from config.json and the results of the arms.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..redact import redact, redact_text
from .arm_records import ArmRecord, add_spend, arm_records, config_runs
from .outcome import Outcome, outcome_of
from .reading import (
    CONCLUSION,
    CONFIG,
    JOURNAL,
    Object,
    items,
    matching,
    mtime,
    number,
    part,
    read_lines,
    read_object,
    text,
)
from .summary import ExperimentSummary, Failure, Note

SPEND = "spend.jsonl"
UNFINISHED = "unfinished"
"""Status of an experiment without an end; `liveness.py` tells running from killed at the moment of asking."""
_KEPT_FAILURES = 5
_KEPT_NOTES = 20
_LONGEST_TEXT = 600


def summarize(folder: Path) -> ExperimentSummary | None:
    """The summary of an experiment's folder; None when it is something else."""
    config, events = read_object(folder / CONFIG), list(read_lines(folder / JOURNAL))
    if not is_experiment(folder, config, events):
        return None
    conclusion = read_object(folder / CONCLUSION) or {}
    return _Builder(folder, config or {}, events, conclusion).build(damaged=config is None)


def is_experiment(folder: Path, config: Object | None, events: Sequence[Object]) -> bool:
    """Whether a folder is the record of an experiment, perhaps a damaged one; a run's folder is not."""
    if any(event.get("kind") == "experiment_started" for event in events):
        return True
    if config is not None:
        return bool(text(config.get("name"))) and bool(config_runs(config) or part(config, "matrix"))
    return (folder / CONFIG).is_file() and not (folder / "starts.jsonl").exists()


class _Builder:
    def __init__(self, folder: Path, config: Object, events: list[Object], conclusion: Object) -> None:
        self.folder, self.config, self.events = folder, config, events
        self.arms = arm_records(folder, config, events)
        self.outcome = outcome_of(conclusion, config, self.arms)
        self.started = matching(events, "kind", "experiment_started")

    def build(self, *, damaged: bool) -> ExperimentSummary:
        config, outcome, metadata = self.config, self.outcome, part(self.config, "metadata")
        best, runs = outcome.best, config_runs(config)
        problems = [arm for arm in self.arms if arm.problem]
        notes, invalidated = self._notes()
        return ExperimentSummary(
            id=text(self.started.get("experiment_id")) or self.folder.name,
            name=text(config.get("name")) or text(self.started.get("name")) or self.folder.name,
            path=str(self.folder),
            status="damaged" if damaged else self._status(),
            started=self._began(),
            ended=self._ended(),
            hypothesis=_short(hypothesis_of(config)),
            description=_short(text(config.get("description"))),
            verdict=outcome.verdict,
            sentence=_short(outcome.sentence),
            next=_short(outcome.next),
            metric=outcome.metric,
            mode=outcome.mode,
            best_run=outcome.best_run,
            best_score=best.score if best else None,
            best_low=best.low if best else None,
            best_high=best.high if best else None,
            best_seeds=best.n_seeds if best else 0,
            best_tasks=best.n_tasks if best else None,
            n_runs=len({arm.run for arm in self.arms}),
            n_arms=len(self.arms),
            n_seeds=max(_seeds_of_each_run(self.arms), default=0),
            n_done=sum(arm.status == "completed" and not arm.unscored for arm in self.arms),
            failures=[Failure(arm.name, _short(redact_text(arm.problem))) for arm in problems[:_KEPT_FAILURES]],
            n_failures=len(problems),
            spend=self._spend(),
            tags=_texts(metadata.get("tags")) or _texts(self.started.get("tags")),
            parent_id=text(config.get("parent_experiment_id")),
            notes=notes,
            invalidated=invalidated,
            models=_kinds(text(part(run, "model").get("name")) for run in runs),
            algorithms=_kinds(text(part(run, "algorithm").get("kind")) for run in runs),
            backends=_kinds(text(part(run, "backend").get("kind")) for run in runs),
            params=best_params(runs, outcome),
            varied=varied_paths(runs),
            config_sha256=text(self.started.get("config_sha256")) or _sha256(config),
        )

    def _status(self) -> str:
        status = ""
        for event in self.events:
            if event.get("kind") in ("experiment_started", "experiment_resumed"):
                status = UNFINISHED
            elif event.get("kind") == "experiment_ended":
                status = text(event.get("status")) or "completed"
        if status:
            return status
        states = {arm.status for arm in self.arms}
        if not self.arms or states & {"pending", "started"}:
            return UNFINISHED
        return "interrupted" if "cancelled" in states else "failed" if "failed" in states else "completed"

    def _began(self) -> float | None:
        starts = [self.folder / arm.name / "starts.jsonl" for arm in self.arms[:1]]
        early = [number(line.get("time")) for path in starts for line in read_lines(path)]
        return number(self.started.get("time")) or next(iter(early), None) or mtime(self.folder / CONFIG)

    def _ended(self) -> float | None:
        if self._status() == UNFINISHED:
            return None
        ends = [number(event.get("time")) for event in self.events if event.get("kind") == "experiment_ended"]
        results = [mtime(self.folder / arm.name / "run_result.json") or 0.0 for arm in self.arms] if not ends else []
        return ends[-1] if ends else max(results, default=0.0) or None

    def _spend(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for arm in self.arms:
            total = add_spend(total, arm.spend)
        ends = [part(event, "spend") for event in self.events if event.get("kind") == "experiment_ended"]
        if not ends and (ledger := list(read_lines(self.folder / SPEND))):  # killed: only the ledger knows
            priced = not any(line.get("unpriced") for line in ledger)
            names = ("tokens_trained", "tokens_sampled", "gpu_s", *(["usd"] if priced else []))
            sums = {name: sum(number(line.get(name)) or 0.0 for line in ledger) for name in names}
            return total | sums
        # The end's own bill includes what is not any arm's, and counts arms that ran side by side once.
        return total | (add_spend({}, ends[-1]) if ends else {})

    def _notes(self) -> tuple[list[Note], str]:
        notes: list[Note] = []
        invalidated = ""
        for event in self.events:
            kind = event.get("kind")
            if kind == "note" and text(event.get("text")):
                notes.append(Note(text(event.get("text")), number(event.get("time")), text(event.get("author"))))
            elif kind == "invalidated":
                invalidated = text(event.get("reason")) or "no reason was given"
            elif kind == "reinstated":
                invalidated = ""
        return notes[-_KEPT_NOTES:], invalidated


def hypothesis_of(config: Object) -> str:
    """The claim, however it was written."""
    metadata = part(config, "metadata")
    return text(metadata.get("hypothesis")) or text(part(metadata, "hypothesis").get("claim"))


def best_params(runs: Sequence[Object], outcome: Outcome) -> dict[str, Any]:
    """The params of the best run's algorithm, flat; of the first run's where none is best."""
    chosen = next((run for run in runs if run.get("name") == outcome.best_run), runs[0] if runs else {})
    return scalars(redact(part(chosen, "algorithm", "params")))


def scalars(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested data as dotted names and plain values; lists are written out as text."""
    found: dict[str, Any] = {}
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, Mapping):
            found |= scalars(part({"it": inner}, "it"), f"{name}.")
        elif isinstance(inner, list):
            found[name] = _short(json.dumps(inner, default=str), 80)
        elif inner is not None and not (isinstance(inner, float) and number(inner) is None):
            found[name] = _short(inner, 80) if isinstance(inner, str) else inner
    return found


def varied_paths(runs: Sequence[Object], most: int = 8) -> list[str]:
    """The dotted paths in which the runs of an experiment differ."""
    flat = [scalars({key: value for key, value in run.items() if key != "name"}) for run in runs[:200]]
    names = dict.fromkeys(name for one in flat for name in one)
    return [name for name in names if any(one.get(name) != flat[0].get(name) for one in flat)][:most]


def _seeds_of_each_run(arms: Sequence[ArmRecord]) -> list[int]:
    counts: dict[str, int] = {}
    for arm in arms:
        counts[arm.run] = counts.get(arm.run, 0) + 1
    return list(counts.values())


def _kinds(names: Any) -> list[str]:
    return list(dict.fromkeys(name for name in names if name))


def _texts(value: Any) -> list[str]:
    return [one for one in items(value) if isinstance(one, str)]


def _short(value: str, most: int = _LONGEST_TEXT) -> str:
    return value if len(value) <= most else f"{value[: most - 1]}…"


def _sha256(config: Object) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest() if config else ""
