"""`evsys verify`: check an exported folder against its dossier, on any machine and without the experiment.

The dossier is a copy of the journal, the config, the conclusion and the identity of the arm. The journal is a hash
chain with the hashes of the weights and of each of these files. A journal that was rewritten as a whole passes too:
compare its head with an anchor of the experiment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...config import Metadata
from ...errors import DataError
from ...experiment.audit.recheck import compare_conclusions
from ...experiment.audit.report import AuditReport
from ...experiment.conclusion.write import conclude, read_stored_conclusion
from ...experiment.hypothesis import normalise_hypothesis
from ...record.events import Event, Kind, chain_head, load_events, verify_chain
from ...record.evidence import hash_conclusion_page, hash_file, hash_recorded_config, hash_weights
from ...record.folders import read_conclusion
from ...record.jsonl_file import find_repeated_keys
from ...record.layout import ExperimentFiles
from ...record.values import Object, find_row, part, text
from ..detail import Detail, read_detail
from .export import DOSSIER, ORIGIN, README, Export, describe_export, describe_page, dossier_files

_ADDED = {ORIGIN, README, DOSSIER}
"""Files that the export adds to the weights."""


@dataclass(frozen=True, slots=True)
class ExportCheck:
    """The result of a check of an exported folder."""

    folder: str
    experiment: str
    registered: str
    """Time of the registration of the claim."""
    head: str
    """Hash of the last line of the journal, to compare with an anchor."""
    problems: list[str]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def verify_export(folder: Path) -> ExportCheck:
    """Compare weights, facts and conclusion of an exported folder with the journal in its dossier."""
    dossier = folder / DOSSIER
    journal = ExperimentFiles(dossier).journal
    if not (folder / ORIGIN).is_file() or not journal.is_file():
        raise DataError(f"{folder}: the folder has no dossier. Export the weights again with `evsys export`.")
    try:
        origin_text = (folder / ORIGIN).read_text(encoding="utf-8")
        origin = part(json.loads(origin_text))
    except ValueError as error:
        raise DataError(f"{folder / ORIGIN}: this is not JSON ({error}). Export the weights again.") from None
    events = load_events(dossier)
    problems = [*verify_chain(journal), *_find_problems(folder, origin, events)]
    problems += [
        f"{ORIGIN}: the key '{name}' occurs twice, so that readers may differ"
        for name in find_repeated_keys(origin_text)
    ]
    page = (folder / README).read_bytes() if (folder / README).is_file() else b""
    # Only for correct facts, because the page is built from them.
    if not problems and page != describe_page(Export(**origin)).encode():
        problems.append(f"{README}: it differs from {ORIGIN}")
    start = next((event for event in events if event.kind == Kind.STARTED), None)
    when = "" if start is None else str(start.time)
    return ExportCheck(str(folder), text(origin.get("experiment")), when, chain_head(journal), problems)


def _find_problems(folder: Path, origin: Object, events: list[Event]) -> Iterator[str]:
    detail = read_detail(folder / DOSSIER)
    arm = next((arm for arm in detail.arms if arm.name == origin.get("arm")), None)
    line = find_row(arm.checkpoints if arm else (), "sampler", origin.get("checkpoint"))
    if arm is None or not line:
        yield f"checkpoint: the dossier has no {text(origin.get('checkpoint'))} of {text(origin.get('arm'))}"
        return
    weights = {
        text(hash)
        for event in events
        if event.kind in (Kind.SCORED, Kind.ARM_ENDED) and event.text("arm") == arm.name
        for name, hash in event.part("weights").items()
        if text(origin.get("checkpoint")).endswith(name)
    }
    if hash_weights(folder, without=_ADDED) not in weights:
        yield "weights: they differ from those that the experiment stored and scored"
    yield from _find_changed_files(folder, detail, {*dossier_files(detail, arm.name)})
    yield from _find_other_claim(detail)
    expected = describe_export(detail, arm, line, _list_files(folder)).to_dict()
    free = {
        name: origin.get(name) for name in ("folder", "trials")
    }  # the folder and the project at the time of the export
    for name, value in (expected | free).items():
        if name not in origin or origin[name] != value:
            yield f"{name}: {ORIGIN} has {origin.get(name)!r}, the record has {value!r}"
    if origin.keys() != expected.keys():
        yield f"{ORIGIN}: its fields differ from those of an export"


def _find_changed_files(folder: Path, detail: Detail, dossier: set[Path]) -> Iterator[str]:
    """Problems of links, which may change, of unknown files, and of files that changed since the end of their arm."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            yield f"{path}: this is a link"
        elif path.is_file() and path.is_relative_to(detail.folder) and path not in dossier:
            yield f"{path}: this file is not part of an export"
    journaled = {run.name: (run.status, run.metrics) for run in detail.record.runs}
    for arm in detail.arms:
        ended = (event for event in detail.record.events if event.kind == Kind.ARM_ENDED)
        ends = [event for event in ended if event.text("arm") == arm.name]
        for name, sealed in ends[-1].part("sealed").items() if ends else ():
            if arm.folder / name in dossier and hash_file(arm.folder / name) != sealed:
                yield f"{arm.folder / name}: the file changed since the arm ended"
        if (arm.status, arm.metrics) != journaled[arm.name]:
            yield f"{arm.files.result}: status or metrics differ from the journal"


def _find_other_claim(detail: Detail) -> Iterator[str]:
    """Problems of claim, config and conclusion, compared with the journal and with each other."""
    start, folder, events = detail.record.start, detail.folder, detail.record.events
    configs = {event.text(key) for event in events for key in ("recorded_config", "found_config")}
    if hash_recorded_config(folder) not in configs:
        yield "config: it differs from the registered one"
    claim = normalise_hypothesis(Metadata.model_validate((detail.record.config or {}).get("metadata") or {}))
    if start.get("hypothesis") != claim:
        yield "claim: the config's claim differs from the one registered before the first step"
    concluded = [event for event in events if event.kind == Kind.CONCLUDED]
    if concluded and hash_conclusion_page(folder) != concluded[-1].text("page"):
        yield "conclusion: conclusion.md differs from the one in the journal"
    written = read_conclusion(folder)
    stored_hash = "" if written is None else sha256(written.encode()).hexdigest()
    if stored_hash != (concluded[-1].text("sha256") if concluded else ""):
        yield "conclusion: conclusion.json differs from the one in the journal"
    elif concluded and not any(event.kind == Kind.AUDITED for event in events) and not detail.view.invalidated:
        stored, drawn = read_stored_conclusion(folder), conclude(folder, AuditReport(folder))
        yield from () if stored is None else compare_conclusions(stored, drawn)


def _list_files(folder: Path) -> list[str]:
    """The names of all files that the export did not add."""
    return sorted({path.name for path in folder.iterdir()} - _ADDED)
