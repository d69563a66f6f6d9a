"""The folder of an experiment -> evidence. What is missing is missing in the evidence; what is damaged is an error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...config import Metadata
from ...errors import DataError
from ...record.events import Event, Kind
from ...record.layout import ExperimentFiles
from ...record.reader import ExperimentRecord
from ...record.runs import RunRecord
from ...record.values import Object, items, number, part, text
from ..audit.audit import AuditReport, audit_experiment
from .earlier import find_parent
from .evidence import Evidence
from .looks import count_looks
from .recorded_runs import read_runs

_LONGEST = 60
"""Characters of a changed value that are told."""


def read_evidence(path: Path, audit: AuditReport | None = None, record: ExperimentRecord | None = None) -> Evidence:
    """The evidence in the folder of an experiment; an `audit`, and the `record` it read, are not made again."""
    record = record or ExperimentRecord(path)
    config, start = record.load(), record.start
    metadata = _metadata(path, config)
    runs = read_runs(record)
    scorings = [one for run in runs for arm in run.arms for one in arm.scorings.values()]
    tests = {one.sha256 for one in scorings if one.key[0] == "test" and one.sha256}
    audit = audit or audit_experiment(path, quick=True)
    backends = {str(run.settings.get("backend.kind") or "") for run in runs}
    return Evidence(
        experiment=record.experiment_id or path.resolve().name,
        metadata=metadata,
        runs=runs,
        registered="hypothesis_sha256" in start.payload,
        registered_sha256=start.get("hypothesis_sha256"),
        invalidated=record.invalidated or None,
        contradicted=audit.contradiction,
        flags=audit.recorded_flags,
        findings=list(dict.fromkeys(one for run in record.runs for one in run.findings)),
        backend=backends.pop() if len(backends) == 1 else "",
        stopped=record.budget_stop or None,
        searched=bool(record.search_decisions),
        attempt=_attempt(start),
        interim=_looks(start),
        looks=count_looks(path, tests, started=start.time),
        parent=find_parent(record, {one.sha256 for one in scorings if one.sha256}),
        identity=_identity(record.runs_on_disk),
        deviations=_deviations(record.events),
    )


def _attempt(start: Event) -> int | None:
    """Which attempt at its claim it was when it started; later ones do not change that."""
    found = number(start.get("attempt"))
    return int(found) if found is not None and found >= 1 else None


def _looks(start: Event) -> list[int]:
    """The seeds at which it was planned to be judged."""
    found = [number(one) for one in items(start.get("looks"))]
    return sorted({int(one) for one in found if one is not None and one >= 1})


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
    """What did not go as planned: that it was taken up again, and what was another value from then on.

    Taking up what is finished and concluded trains nothing and is none: it must not change what was concluded.
    """
    turns = [at for at, event in enumerate(events) if event.kind == Kind.RESUMED]
    resumed, changes = 0, dict[str, tuple[Any, Any]]()
    for at, end in zip(turns, [*turns[1:], len(events)], strict=False):  # none has no end
        concluded = any(event.kind == Kind.CONCLUDED for event in events[:at])
        if concluded and not any(event.kind in (Kind.ARM_STARTED, Kind.SCORED) for event in events[at:end]):
            continue
        resumed += 1
        for path, values in events[at].part("changed").items():
            old, new = (*items(values), None, None)[:2]
            changes[path] = (changes[path][0] if path in changes else old, new)
    said = [f"It was resumed {'once' if resumed == 1 else f'{resumed} times'}."] if resumed else []
    told = {
        path: f"`{path}` was {_tell(old)} and then {_tell(new)}." for path, (old, new) in changes.items() if old != new
    }
    return [*said, *(one for path, one in told.items() if path != "description")]


def _tell(value: Any) -> str:
    """A value of a config in a sentence; what is long is not told in full."""
    if value is None:
        return "not set"
    found = json.dumps(value, ensure_ascii=False)
    return found if len(found) <= _LONGEST else f"{found[:_LONGEST]} …"


def _identity(runs: Sequence[RunRecord]) -> dict[str, str]:
    """What was measured and with what: the same for all arms, unless the claim is about it; else all of them."""
    known = [identity for run in runs if (identity := run.identity) is not None]
    found: dict[str, dict[str, None]] = {}
    for identity in known:
        for what, which in _name_parts(identity):
            found.setdefault(what, {})[which] = None
    return {what: " or ".join(sorted(which)) for what, which in sorted(found.items())}


def _name_parts(identity: Object) -> Iterator[tuple[str, str]]:
    weights = part(identity, "weights")
    started = text(weights.get("checkpoint"))
    if model := text(weights.get("model")):
        yield "model", f"{model} from {started}" if started else model
    for benchmark in part(identity, "benchmarks").values():
        verifiers = part({"it": benchmark}, "it")
        for name, code in part(verifiers, "verifiers").items():
            yield f"verifier {name}", str(code)
    packages = part(identity, "packages")
    if packages:
        yield "packages", ", ".join(f"{name} {version}" for name, version in packages.items())
