"""`evsys verify`: whether an exported folder is what its dossier says, on any machine and without the experiment.

The dossier is a copy of the journal, the config and the conclusion. The journal is a chain of hashes that names the
weights, the config and the conclusion. A journal that was written anew as a whole holds as well: compare its head with
the anchor of the experiment.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...errors import DataError
from ...record.events import Event, Kind, chain_head, load_events, verify_chain
from ...record.evidence import hash_conclusion_page, hash_recorded_config, hash_weights
from ...record.folders import read_conclusion
from ...record.layout import ExperimentFiles
from ...record.reader import ExperimentRecord
from ...record.values import Object, find_row, items, part, text
from ...record.view.build import view
from .export import DOSSIER, ORIGIN, README, Export, describe_page, describe_run


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
        origin = part(json.loads((folder / ORIGIN).read_text(encoding="utf-8")))
    except ValueError as error:
        raise DataError(f"{folder / ORIGIN}: this is no JSON ({error}). Export the weights again.") from None
    events = load_events(dossier)
    problems = [*verify_chain(journal), *_find_problems(folder, origin, events)]
    # Only of facts that hold: a page cannot be made of others.
    if not problems and (folder / README).read_text(encoding="utf-8") != describe_page(Export(**origin)):
        problems.append(f"{README}: it differs from {ORIGIN}")
    start = next((one for one in events if one.kind == Kind.STARTED), None)
    when = "" if start is None else str(start.time)
    return ExportCheck(str(folder), text(origin.get("experiment")), when, chain_head(journal), problems)


def _find_problems(folder: Path, origin: Object, events: list[Event]) -> Iterator[str]:
    arm, dossier = text(origin.get("arm")), folder / DOSSIER
    weights = {
        text(hash)
        for one in events
        if one.kind in (Kind.SCORED, Kind.ARM_ENDED) and one.text("arm") == arm
        for name, hash in one.part("weights").items()
        if text(origin.get("checkpoint")).endswith(name)
    }
    if not weights:
        yield f"weights: the journal has no hash of {text(origin.get('checkpoint'))}"
    elif _hash_files(folder) not in weights:
        yield "weights: they are not those that the experiment stored and scored"
    configs = {one.text(key) for one in events for key in ("recorded_config", "found_config")}
    if hash_recorded_config(dossier) not in configs:
        yield "config: it is not the registered one"
    concluded = [one for one in events if one.kind == Kind.CONCLUDED]
    if concluded and hash_conclusion_page(dossier) != concluded[-1].text("page"):
        yield "conclusion: it is not the one that was written"
    written = read_conclusion(dossier)
    found = "" if written is None else sha256(written.encode()).hexdigest()
    if found != (concluded[-1].text("sha256") if concluded else ""):
        yield "conclusion: conclusion.json is not the one that was written"
    for name, value in _expected_facts(origin, dossier, events).items():
        if origin.get(name) != value:
            yield f"{name}: {ORIGIN} has {origin.get(name)!r}, the record has {value!r}"
    if sorted(map(text, items(origin.get("files")))) != _list_files(folder):
        yield f"files: {ORIGIN} lists others than there are"
    if origin.keys() != Export.__dataclass_fields__.keys():
        yield f"{ORIGIN}: its fields are not those of an export"


def _expected_facts(origin: Object, dossier: Path, events: list[Event]) -> dict[str, Any]:
    """What the record in the dossier says of the exported arm."""
    shown = view(ExperimentRecord(dossier))
    found = describe_run(shown, ExperimentRecord(dossier).config or {}, text(origin.get("run")))
    ended = [one for one in events if one.kind == Kind.ARM_ENDED and one.text("arm") == text(origin.get("arm"))]
    if ended:
        metrics = ended[-1].part("metrics")
        found["seed"] = ended[-1].get("seed")
        if "-final/" in text(origin.get("checkpoint")):
            found["step"] = metrics.get("steps")
            concluded = find_row(
                items(part(ExperimentRecord(dossier).conclusion).get("runs")), "name", origin.get("run")
            )
            found["score"] = _same_score(origin.get("score"), items(concluded.get("by_seed")))
    return found


def _same_score(exported: Any, seeds: Sequence[Any]) -> Any:
    """The exported score where it is that of a seed, which the conclusion rounds; else what the record has."""
    close = isinstance(exported, float) and any(abs(exported - one) < 1e-6 for one in seeds)
    return exported if close else list(seeds) or None


def _list_files(folder: Path) -> list[str]:
    """The names of everything but what the export added."""
    return sorted({path.name for path in folder.iterdir()} - {ORIGIN, README, DOSSIER})


def _hash_files(folder: Path) -> str | None:
    """The hash of everything but what the export added."""
    with tempfile.TemporaryDirectory(prefix="evsys-verify-") as place:
        copy = Path(place) / "weights"
        added = {ORIGIN, README, DOSSIER}
        shutil.copytree(
            folder, copy, ignore=lambda at, names: [one for one in names if Path(at) == folder and one in added]
        )
        return hash_weights(copy)
