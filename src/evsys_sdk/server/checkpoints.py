"""Saved weights by their public names, on disk, so that they outlive the server.

    <state_dir>/runs/<run>/run.json                     the model: base model, rank, seed
    <state_dir>/runs/<run>/weights/<name>.json          weights and optimizer, saved under a name
    <state_dir>/runs/<run>/sampler_weights/<name>.json  weights to sample from
    <state_dir>/runs/<run>/engine/                      what the backend wrote

A name exists once its file does, which is written last; so a server that is killed leaves no half checkpoint behind.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from ..errors import show
from ..files import write_json
from ..log import get_logger
from .answer import Refusal

WEIGHTS, SAMPLER = "weights", "sampler_weights"
_TYPES: Final = {WEIGHTS: "training", SAMPLER: "sampler"}
_RUN: Final = re.compile(r"[A-Za-z0-9_-]{1,80}:train:[0-9]{1,9}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a checkpoint is: `tinker://<run>/<kind>/<name>`."""

    run_id: str
    kind: str
    name: str

    @classmethod
    def parse(cls, path: str) -> Place:
        """Read a tinker path; refuses what cannot be one, so that no path leads out of the folder."""
        run_id, _, rest = path.removeprefix("tinker://").partition("/")
        return cls.of(run_id, rest) if path.startswith("tinker://") else cls.of("", path)

    @classmethod
    def of(cls, run_id: str, checkpoint_id: str) -> Place:
        """From a run and `weights/<name>` or `sampler_weights/<name>`."""
        kind, _, name = checkpoint_id.partition("/")
        if not _RUN.fullmatch(run_id) or kind not in _TYPES or not _NAME.fullmatch(name):
            raise Refusal(
                400,
                f"{show(f'tinker://{run_id}/{checkpoint_id}')} is no path of saved weights. They look like "
                "tinker://<run>/weights/<name> or tinker://<run>/sampler_weights/<name>.",
            )
        return cls(run_id, kind, name)

    @property
    def path(self) -> str:
        return f"tinker://{self.run_id}/{self.kind}/{self.name}"


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """All that was saved below one folder. Reads and writes files; not for the event loop where there are many."""

    state_dir: Path

    def run_dir(self, run_id: str) -> Path:
        return self.state_dir / "runs" / run_id.replace(":", "_")

    def engine_dir(self, run_id: str) -> Path:
        return self.run_dir(run_id) / "engine"

    def add_run(self, run_id: str, about: dict[str, Any]) -> None:
        """Record a model that is going to be trained."""
        write_json(self.run_dir(run_id) / "run.json", {"training_run_id": run_id, "created": _now(), **about})

    def run(self, run_id: str) -> dict[str, Any] | None:
        """What was recorded about a model."""
        return _read(self.run_dir(run_id) / "run.json") if _RUN.fullmatch(run_id) else None

    def runs(self) -> list[dict[str, Any]]:
        """All models, the latest first."""
        found = _readable((self.state_dir / "runs").glob("*/run.json"))
        return sorted(found, key=lambda run: run["created"], reverse=True)

    def exists(self, place: Place) -> bool:
        return self._file(place).exists()

    def add(
        self,
        place: Place,
        ref: str,
        *,
        ttl_seconds: int | None,
        user_metadata: dict[str, str] | None,
        about: dict[str, Any],
    ) -> None:
        """Give what the backend wrote its name; a checkpoint that had it before is removed."""
        before = _read(self._file(place))
        engine = self.engine_dir(place.run_id)
        inside = Path(ref).is_relative_to(engine)  # then the folder can be moved
        record = {
            "tinker_path": place.path,
            "ref": str(Path(ref).relative_to(engine)) if inside else ref,
            "inside": inside,
            "time": _now(),
            "expires_at": expiry(ttl_seconds),
            "user_metadata": user_metadata,
            "size_bytes": _size(Path(ref)) if inside else None,
            **about,
        }
        write_json(self._file(place), record)
        if before is not None:
            self._discard(place, before)

    def get(self, path: str) -> dict[str, Any]:
        """The record of a checkpoint, with `ref` as the backend takes it."""
        place = Place.parse(path)
        record = _read(self._file(place))
        if record is None or _expired(record):
            raise Refusal(404, f"there are no saved weights {path!r}: never saved here, deleted, or expired.")
        engine = self.engine_dir(place.run_id)
        return {**record, "ref": str(engine / record["ref"]) if record["inside"] else record["ref"]}

    def listed(self, run_id: str | None = None) -> list[dict[str, Any]]:
        """Checkpoints of a run or of all, the latest first, as the protocol describes them."""
        folders = [self.run_dir(run_id)] if run_id else sorted((self.state_dir / "runs").glob("*"))
        found = [_described(record) for folder in folders for record in _records(folder)]
        return sorted(found, key=lambda checkpoint: checkpoint["time"], reverse=True)

    def set_ttl(self, place: Place, ttl_seconds: int | None) -> None:
        """Change how long it is kept; None keeps it for good."""
        self.get(place.path)
        record = _read(self._file(place))
        write_json(self._file(place), {**(record or {}), "expires_at": expiry(ttl_seconds)})

    def delete(self, place: Place) -> None:
        """Remove a checkpoint: first its name, then its content."""
        self.get(place.path)
        record = _read(self._file(place))
        self._file(place).unlink(missing_ok=True)
        self._discard(place, record or {})

    def delete_expired(self) -> None:
        """Remove what has outlived its time."""
        for folder in (self.state_dir / "runs").glob("*"):
            for record in _records(folder, expired=True):
                place = Place.parse(record["tinker_path"])
                self._file(place).unlink(missing_ok=True)
                self._discard(place, record)

    def _file(self, place: Place) -> Path:
        return self.run_dir(place.run_id) / place.kind / f"{place.name}.json"

    def _discard(self, place: Place, record: dict[str, Any]) -> None:
        if not record.get("inside"):
            return
        engine = self.engine_dir(place.run_id)
        folder = engine / record["ref"]
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: another kind of checkpoint lies beside it
            if folder.parent != engine:
                folder.parent.rmdir()


def expiry(ttl_seconds: int | None) -> str | None:
    """When something ends that is to be kept for so long."""
    return None if ttl_seconds is None else (datetime.now(UTC) + timedelta(seconds=ttl_seconds)).isoformat()


def _records(folder: Path, *, expired: bool = False) -> Iterator[dict[str, Any]]:
    for kind in _TYPES:
        yield from (record for record in _readable(folder.glob(f"{kind}/*.json")) if _expired(record) == expired)


def _described(record: dict[str, Any]) -> dict[str, Any]:
    place = Place.parse(record["tinker_path"])
    return {
        "checkpoint_id": f"{place.kind}/{place.name}",
        "checkpoint_type": _TYPES[place.kind],
        "public": False,
        **{key: record[key] for key in ("time", "tinker_path", "size_bytes", "user_metadata", "expires_at")},
    }


def _expired(record: dict[str, Any]) -> bool:
    return record["expires_at"] is not None and datetime.fromisoformat(record["expires_at"]) <= datetime.now(UTC)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Refusal(400, f"{path} on the server cannot be read ({error}). Use other saved weights.") from None


def _readable(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """What can be read; what cannot is named in the log, because a listing must not fail for it."""
    for path in paths:
        try:
            if (record := _read(path)) is not None:
                yield record
        except Refusal as refusal:
            get_logger(__name__).warning("%s", refusal.message)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _now() -> str:
    return datetime.now(UTC).isoformat()
