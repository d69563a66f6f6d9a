"""`evsys verify`: whether an exported folder is what its dossier says, on any machine and without the experiment.

The dossier is a copy of the journal, the config, the conclusion and what the arm is made of. The journal is a chain of
hashes that names the weights and each of these files. A journal that was written anew as a whole holds as well: compare
its head with the anchor of the experiment.
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
"""What the export added to the weights."""


@dataclass(frozen=True, slots=True)
class ExportCheck:
    """What differs between an exported folder and its dossier."""

    folder: str
    experiment: str
    registered: str
    """When the claim was registered."""
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
        raise DataError(f"{folder}: there is no dossier. Export the weights again with `evsys export`.")
    try:
        stated = (folder / ORIGIN).read_text(encoding="utf-8")
        origin = part(json.loads(stated))
    except ValueError as error:
        raise DataError(f"{folder / ORIGIN}: this is no JSON ({error}). Export the weights again.") from None
    events = load_events(dossier)
    problems = [*verify_chain(journal), *_find_problems(folder, origin, events)]
    problems += [f"{ORIGIN}: it has '{name}' twice, so that readers may differ" for name in find_repeated_keys(stated)]
    page = (folder / README).read_bytes() if (folder / README).is_file() else b""
    # Only of facts that hold: a page cannot be made of others.
    if not problems and page != describe_page(Export(**origin)).encode():
        problems.append(f"{README}: it differs from {ORIGIN}")
    start = next((one for one in events if one.kind == Kind.STARTED), None)
    when = "" if start is None else str(start.time)
    return ExportCheck(str(folder), text(origin.get("experiment")), when, chain_head(journal), problems)


def _find_problems(folder: Path, origin: Object, events: list[Event]) -> Iterator[str]:
    detail = read_detail(folder / DOSSIER)
    arm = next((one for one in detail.arms if one.name == origin.get("arm")), None)
    line = find_row(arm.checkpoints if arm else (), "sampler", origin.get("checkpoint"))
    if arm is None or not line:
        yield f"checkpoint: the dossier has no {text(origin.get('checkpoint'))} of {text(origin.get('arm'))}"
        return
    weights = {
        text(hash)
        for one in events
        if one.kind in (Kind.SCORED, Kind.ARM_ENDED) and one.text("arm") == arm.name
        for name, hash in one.part("weights").items()
        if text(origin.get("checkpoint")).endswith(name)
    }
    if hash_weights(folder, without=_ADDED) not in weights:
        yield "weights: they are not those that the experiment stored and scored"
    yield from _find_changed_files(folder, detail, {*dossier_files(detail, arm.name)})
    yield from _find_other_claim(detail)
    expected = describe_export(detail, arm, line, _list_files(folder)).to_dict()
    free = {name: origin.get(name) for name in ("folder", "trials")}  # where it was, and what its project had then
    for name, value in (expected | free).items():
        if name not in origin or origin[name] != value:
            yield f"{name}: {ORIGIN} has {origin.get(name)!r}, the record has {value!r}"
    if origin.keys() != expected.keys():
        yield f"{ORIGIN}: its fields are not those of an export"


def _find_changed_files(folder: Path, detail: Detail, known: set[Path]) -> Iterator[str]:
    """Links, which may point to other weights tomorrow, and files that are not those of the arms when they ended."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            yield f"{path}: this is a link"
        elif path.is_file() and path.is_relative_to(detail.folder) and path not in known:
            yield f"{path}: no export writes this file"
    journaled = {one.name: (one.status, one.metrics) for one in detail.record.runs}
    for arm in detail.arms:
        ends = [one for one in detail.record.events if one.kind == Kind.ARM_ENDED and one.text("arm") == arm.name]
        for name, sealed in ends[-1].part("sealed").items() if ends else ():
            if arm.folder / name in known and hash_file(arm.folder / name) != sealed:
                yield f"{arm.folder / name}: it is not the one of the arm when it ended"
        if (arm.status, arm.metrics) != journaled[arm.name]:
            yield f"{arm.files.result}: status or metrics are not those in the journal"


def _find_other_claim(detail: Detail) -> Iterator[str]:
    """Claim, config and conclusion, each as the journal names it, and each following from the others."""
    start, folder, events = detail.record.start, detail.folder, detail.record.events
    configs = {one.text(key) for one in events for key in ("recorded_config", "found_config")}
    if hash_recorded_config(folder) not in configs:
        yield "config: it is not the registered one"
    claim = normalise_hypothesis(Metadata.model_validate((detail.record.config or {}).get("metadata") or {}))
    if start.get("hypothesis") != claim:
        yield "claim: that of the config is not the one that was registered before the first step"
    concluded = [one for one in events if one.kind == Kind.CONCLUDED]
    if concluded and hash_conclusion_page(folder) != concluded[-1].text("page"):
        yield "conclusion: it is not the one that was written"
    written = read_conclusion(folder)
    found = "" if written is None else sha256(written.encode()).hexdigest()
    if found != (concluded[-1].text("sha256") if concluded else ""):
        yield "conclusion: conclusion.json is not the one that was written"
    elif concluded and not any(one.kind == Kind.AUDITED for one in events) and not detail.view.invalidated:
        stored, drawn = read_stored_conclusion(folder), conclude(folder, AuditReport(folder))
        yield from () if stored is None else compare_conclusions(stored, drawn)


def _list_files(folder: Path) -> list[str]:
    """The names of everything but what the export added."""
    return sorted({path.name for path in folder.iterdir()} - _ADDED)
