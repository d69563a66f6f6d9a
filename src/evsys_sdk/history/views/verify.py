"""`evsys verify`: whether an exported folder is what its dossier says, on any machine and without the experiment.

The dossier is a copy of the journal, the config and the conclusion. The journal is a chain of hashes that names the
weights, the config and the conclusion. A journal that was written anew as a whole holds as well: compare its head with
the anchor of the experiment.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...errors import DataError
from ...record.events import Event, Kind, chain_head, load_events, verify_chain
from ...record.evidence import hash_conclusion_page, hash_recorded_config, hash_weights
from ...record.layout import ExperimentFiles
from ...record.reader import ExperimentRecord
from ...record.runs import config_runs
from ...record.values import Object, find_row, part, text
from .export import DOSSIER, ORIGIN, README


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
    start = next((one for one in events if one.kind == Kind.STARTED), None)
    when = "" if start is None else str(start.time)
    return ExportCheck(str(folder), text(origin.get("experiment")), when, chain_head(journal), problems)


def _find_problems(folder: Path, origin: Object, events: list[Event]) -> Iterator[str]:
    arm, dossier = text(origin.get("arm")), folder / DOSSIER
    weights = {
        text(sha256)
        for one in events
        if one.kind in (Kind.SCORED, Kind.ARM_ENDED) and one.text("arm") == arm
        for name, sha256 in one.part("weights").items()
        if text(origin.get("checkpoint")).endswith(name)
    }
    if not weights:
        yield f"weights: the journal has no hash of {text(origin.get('checkpoint'))}"
    elif _hash_files(folder) not in weights:
        yield "weights: they are not those that the experiment stored and scored"
    configs = {one.text(key) for one in events for key in ("recorded_config", "found_config")}
    config = ExperimentRecord(dossier).config or {}
    if hash_recorded_config(dossier) not in configs:
        yield "config: it is not the registered one"
    run = find_row(config_runs(config), "name", text(origin.get("run")))
    ended = [one for one in events if one.kind == Kind.ARM_ENDED and one.text("arm") == arm]
    concluded = [one for one in events if one.kind == Kind.CONCLUDED]
    if concluded and hash_conclusion_page(dossier) != concluded[-1].text("page"):
        yield "conclusion: it is not the one that was written"
    start = next((one for one in events if one.kind == Kind.STARTED), None)
    expected: dict[str, Any] = {
        "experiment": "" if start is None else start.text("experiment_id"),
        "model": part(run, "model").get("name"),
        "backend": part(run, "backend").get("kind"),
        "algorithm": part(run, "algorithm").get("kind"),
        "verdict": concluded[-1].text("verdict") if concluded else "",
    }
    if ended:
        expected["seed"] = ended[-1].get("seed")
        metrics = ended[-1].part("metrics")
        if origin.get("step") == metrics.get("steps") and origin.get("metric") in metrics:
            expected["score"] = metrics[text(origin.get("metric"))]
    for name, value in expected.items():
        if origin.get(name) != value:
            yield f"{name}: {ORIGIN} has {origin.get(name)!r}, the record has {value!r}"


def _hash_files(folder: Path) -> str | None:
    """The hash of everything but what the export added."""
    with tempfile.TemporaryDirectory(prefix="evsys-verify-") as place:
        copy = Path(place) / "weights"
        added = {ORIGIN, README, DOSSIER}
        shutil.copytree(
            folder, copy, ignore=lambda at, names: [one for one in names if Path(at) == folder and one in added]
        )
        return hash_weights(copy)
