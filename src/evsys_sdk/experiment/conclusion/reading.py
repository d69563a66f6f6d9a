"""Read the evidence from the folder of an experiment.

Missing files leave gaps in the evidence; damaged files raise an error.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...config import Metadata
from ...errors import DataError, EvsysError
from ...record.events import Event, Kind, first_event
from ...record.flat_config import flatten_config
from ...record.folders import find_attempts, load_result
from ...record.layout import ExperimentFiles
from ...record.reader import ExperimentRecord
from ...record.run_files.scores import find_scored_sets, load_score_lines, task_scores
from ...record.runs import RunRecord, config_runs
from ...record.values import items, number, part, subfolders, text
from ...record.view.build import view
from ...training.callback import is_deadline_stop
from ..audit.audit import AuditReport, audit_experiment
from .evidence import ArmEvidence, Evidence, Looks, RunEvidence, Score, ScoredSet, SetKey
from .summary import shorten


def read_evidence(path: Path, audit: AuditReport | None = None, record: ExperimentRecord | None = None) -> Evidence:
    """Read the evidence of an experiment; pass `audit` and `record` to reuse them."""
    record = record or ExperimentRecord(path)
    config, start, seen = record.load(), record.start, view(record)
    runs = read_runs(record)
    scorings = [one for run in runs for arm in run.arms for one in arm.scorings.values()]
    tests = {one.sha256 for one in scorings if one.key[0] == "test" and one.sha256}
    audit = audit or audit_experiment(path, quick=True)
    return Evidence(
        experiment=seen.id,
        metadata=_metadata(path, config),
        runs=runs,
        registered="hypothesis_sha256" in start.payload,
        registered_sha256=start.get("hypothesis_sha256"),
        invalidated=seen.invalidated or None,
        contradicted=audit.recorded.invalid,
        flags=[str(check) for check in audit.recorded.flags],
        remarks=[one for check in audit.remarks for one in check.evidence],
        findings=list(dict.fromkeys(one for arm in seen.arms for one in arm.findings)),
        backend=seen.backends[0] if len(seen.backends) == 1 else "",
        stopped=record.budget_stop or None,
        attempt=_attempt(record.events),
        interim=sorted({int(one) for value in items(start.get("looks")) if (one := number(value) or 0) >= 1}),
        looks=_count_looks(path, tests, started=start.time),
        parent=_find_parent(record, {one.sha256 for one in scorings if one.sha256}),
        identity=_identity(record.runs_on_disk),
        deviations=_deviations(record.events),
    )


def read_runs(record: ExperimentRecord) -> list[RunEvidence]:
    """Read every run with an arm, in the order of the config; raise an error for a damaged file."""
    known = {text(run.get("name")): run for run in config_runs(record.config or {}) if "name" in run}
    arms: dict[str, dict[int, ArmEvidence]] = {name: {} for name in known}
    for run in sorted(record.runs_on_disk, key=lambda run: run.name):
        # Two arms with the same seed are one seed.
        arms.setdefault(run.run, {}).setdefault(run.seed or 0, _arm(run))
    found: list[RunEvidence] = []
    for name, of_seed in arms.items():
        config = known.get(name, {})
        settings = {key: value for key, value in config.items() if key not in ("name", "tags", "seed")}
        tags = [tag for tag in items(config.get("tags")) if isinstance(tag, str)]
        own = _leave_out_late([of_seed[seed] for seed in sorted(of_seed)])
        found += [RunEvidence(name, own, tags, flatten_config(settings))] if own else []
    return found


def _leave_out_late(arms: list[ArmEvidence]) -> list[ArmEvidence]:
    """Exclude arms that the deadline ended early, which have trained less, unless the run has no other."""
    if all(arm.at_deadline for arm in arms if arm.ended):
        return arms
    return [replace(arm, status="cancelled", at_deadline=False) if arm.at_deadline else arm for arm in arms]


def _arm(run: RunRecord) -> ArmEvidence:
    result = run.result or load_result(run.folder)  # raises an error for a damaged file
    extras = part(result, "extras")
    # Tokens of the result rather than the ledger, which also counts steps repeated after a kill.
    tokens = [count for count in part(extras, "tokens").values() if isinstance(count, int)]
    return ArmEvidence(
        run.name,
        run.run,
        run.seed or 0,
        status=run.status if result else None,
        error=run.error or None,
        unscored=run.unscored or None,
        at_deadline=is_deadline_stop(text(extras.get("stop_reason"))),
        metrics=run.metrics,
        scorings=_scorings(run),
        tokens=sum(tokens) if tokens else None,
        usd=number(part(extras, "spend").get("usd")),
    )


def _scorings(run: RunRecord) -> dict[SetKey, ScoredSet]:
    """The last evaluation on each benchmark: the latest line of the latest step."""
    found: dict[SetKey, ScoredSet] = {}
    for line in load_score_lines(run.folder):
        try:
            scoring = _read_scoring(line)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"{run.files.scores}: this line is not a scoring ({type(error).__name__}: {error}). "
                "Remove the file and score the run again with `evsys run --resume`."
            ) from error
        if scoring.step >= found.get(scoring.key, scoring).step:
            found[scoring.key] = scoring
    return found


def _read_scoring(line: Mapping[str, Any]) -> ScoredSet:
    tasks = [str(task) for task in line.get("tasks") or ()]
    scores = {
        name: Score(value, task_scores(line, each))
        for name, each in line["metrics"].items()
        if (value := number(each.get("value"))) is not None
    }
    return ScoredSet(
        (str(line["split"]), str(line.get("name") or "")),
        int(line["step"]),
        str(line.get("sha256") or ""),
        scores,
        int(line.get("failed_samples") or 0),
        {task: str(why) for task, why in part(line.get("unscored")).items()},
        clusters=_of_tasks(tasks, line.get("clusters")),
        samples=_of_tasks(tasks, line.get("samples")),
        n_samples=max((int(one.get("n_samples") or 0) for one in line["metrics"].values()), default=0),
    )


def _of_tasks(tasks: Sequence[str], values: Sequence[Any] | None) -> dict[str, Any]:
    """Map tasks to their values in a line, without null values."""
    if values is None or len(values) != len(tasks):
        return {}
    return {task: value for task, value in zip(tasks, values, strict=True) if value is not None}


def _attempt(events: Sequence[Event]) -> int | None:
    """The trial number from the last start or extension; later experiments do not change it."""
    found = [number(event.get("attempt")) for event in events if event.kind in (Kind.STARTED, Kind.RESUMED)]
    return next((int(value) for value in reversed(found) if value), None)


def _metadata(path: Path, config: Mapping[str, Any]) -> Metadata:
    try:
        return Metadata.model_validate(config.get("metadata") or {})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in ("metadata", *first["loc"]))
        raise DataError(
            f"{ExperimentFiles(path).config}: {place}: {first['msg']}. Restore the file as `evsys run` wrote it."
        ) from error


def _deviations(events: Sequence[Event]) -> list[str]:
    """List deviations from the plan: resumes and extensions that trained or scored something, and what they changed."""
    same = filter(None, (event.text("same_evidence") for event in events))
    found = [f"Same arms, seeds, data and tasks as {one}: the same evidence, not a new trial." for one in same]
    turn: Event | None = None
    for event in events:
        if event.kind == Kind.RESUMED:
            turn = event
        elif turn is not None and event.kind in (Kind.ARM_STARTED, Kind.SCORED):
            extended = "It was extended; each analysis counts as a trial of the claim."
            changed = {path: values for path, values in turn.part("changed").items() if path != "description"}
            found.append(extended if turn.get("extended") is True else "It was resumed.")
            found += [f"`{path}` was {shorten(old)} and then {shorten(new)}." for path, (old, new) in changed.items()]
            turn = None
    return list(dict.fromkeys(found))


def _identity(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Models, verifiers and packages of all arms; values that differ between arms are joined by "or"."""
    found: dict[str, set[str]] = defaultdict(set)
    for identity in (run.identity or {} for run in runs):
        weights = part(identity, "weights")
        found["model"].add(" from ".join(filter(None, map(text, (weights.get("model"), weights.get("checkpoint"))))))
        for benchmark in part(identity, "benchmarks").values():
            for name, code in part(benchmark, "verifiers").items():
                found[f"verifier {name}"].add(str(code))
        found["packages"].add(", ".join(f"{name} {version}" for name, version in part(identity, "packages").items()))
    return {what: " or ".join(sorted(which - {""})) for what, which in sorted(found.items()) if which - {""}}


def _find_parent(record: ExperimentRecord, hashes: set[str]) -> RunEvidence | None:
    """The best run of the parent experiment, if it was scored on the same tasks.

    A parent that is unfinished, invalidated, flagged by an audit or damaged is ignored.
    """
    named = text((record.config or {}).get("parent_experiment_id"))
    parent = _find_record(record.folder.resolve(), named) if named else None
    if parent is None:
        return None
    best, runs = text(parent.conclusion.get("best_arm")), list[RunEvidence]()
    with suppress(EvsysError):
        runs = [run for run in read_runs(parent) if run.name == best and not run.problems]
    for run in runs:
        scored = [{one.sha256 for one in arm.scorings.values() if one.sha256} for arm in run.arms]
        if all(own and own <= hashes for own in scored):
            name, prefix = f"{best} of {parent.experiment_id}", f"{parent.experiment_id}/"
            return replace(run, name=name, arms=[replace(arm, arm=prefix + arm.arm, run=name) for arm in run.arms])
    return None


def _find_record(folder: Path, name: str) -> ExperimentRecord | None:
    """The sibling experiment with an id, or the latest attempt with a name."""
    by_id = ExperimentRecord(folder.parent / name.rpartition("-")[0])  # an id is the folder name with a suffix
    attempts = sorted(find_attempts(folder.parent / name).items(), reverse=True)
    latest = [ExperimentRecord(path) for _, path in attempts if path.resolve() != folder]
    known = [by_id] if by_id.experiment_id == name else latest
    return next((one for one in known if one.is_finished and not one.invalidated and not one.flags), None)


def _count_looks(path: Path, hashes: set[str], *, started: float | None) -> dict[str, Looks]:
    """Count the evaluations on each test set (by sha256 of its tasks); each one may bias later choices.

    Other experiments count only if they started earlier, so that the number does not change afterwards.
    """
    here, before, experiments = _evaluations(path, hashes), Counter[str](), Counter[str]()
    for name in subfolders(path.resolve().parent) if hashes else ():
        other = path.resolve().parent / name
        first = first_event(other) if started is not None else None
        is_late = first is not None and first.time is not None and started is not None and first.time >= started
        if other != path.resolve() and not is_late:
            seen = _evaluations(other, hashes)
            before.update(seen)
            experiments.update(seen.keys())
    return {sha256: Looks(before[sha256], experiments[sha256], here[sha256]) for sha256 in sorted(hashes)}


def _evaluations(experiment: Path, hashes: set[str]) -> Counter[str]:
    """Number of evaluations of an experiment's arms on each test set."""
    arms = (experiment / name for name in subfolders(experiment))
    return Counter(sha256 for arm in arms for sha256, _ in find_scored_sets(arm, "test", sorted(hashes)))
