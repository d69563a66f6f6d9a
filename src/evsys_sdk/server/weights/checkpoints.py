"""Saved weights by public name, on disk, so that they survive a restart.

    <state_dir>/runs/<run>/run.json                     the model: base model, rank, seed
    <state_dir>/runs/<run>/weights/<name>.json          weights and optimizer, saved under a name
    <state_dir>/runs/<run>/sampler_weights/<name>.json  weights to sample from
    <state_dir>/runs/<run>/external_weights/<name>.json weights for other programs
    <state_dir>/runs/<run>/engine/                      files of the backend

The file of a name is written last, so a killed server leaves no partial checkpoint.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from pydantic import AwareDatetime, Field, ValidationError

from ...config.base import Strict
from ...errors import show
from ...files import write_json
from ...log import get_logger
from ..answer import Refusal

WEIGHTS, SAMPLER, EXTERNAL = "weights", "sampler_weights", "external_weights"
_TYPES: Final = {WEIGHTS: "training", SAMPLER: "sampler", EXTERNAL: "external"}
_RUN: Final = re.compile(r"[A-Za-z0-9_-]{1,80}:train:[0-9]{1,9}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}")


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    """The public path of a checkpoint: `tinker://<run>/<kind>/<name>`."""

    run_id: str
    kind: str
    name: str

    @classmethod
    def parse(cls, path: str) -> CheckpointPlace:
        """Parse a tinker path; refuses invalid ones, including paths outside the folder."""
        run_id, _, rest = path.removeprefix("tinker://").partition("/")
        return cls.of(run_id, rest) if path.startswith("tinker://") else cls.of("", path)

    @classmethod
    def of(cls, run_id: str, checkpoint_id: str) -> CheckpointPlace:
        """From a run and `weights/<name>`, `sampler_weights/<name>` or `external_weights/<name>`."""
        kind, _, name = checkpoint_id.partition("/")
        if not _RUN.fullmatch(run_id) or kind not in _TYPES or not _NAME.fullmatch(name):
            raise Refusal(
                400,
                f"{show(f'tinker://{run_id}/{checkpoint_id}')} is not a path of saved weights. They look like "
                "tinker://<run>/weights/<name>, with sampler_weights or external_weights for weights.",
            )
        return cls(run_id, kind, name)

    @property
    def path(self) -> str:
        return f"tinker://{self.run_id}/{self.kind}/{self.name}"


class ServedRunRecord(Strict):
    """The record of a model trained here."""

    training_run_id: str = Field(pattern=f"^{_RUN.pattern}$")
    created: str
    base_model: str
    lora_rank: int
    seed: int
    user_metadata: dict[str, Any] | None = None


class CheckpointRecord(Strict):
    """The record of saved weights."""

    tinker_path: str
    ref: str
    """The backend's reference."""
    inside: bool
    """Whether `ref` is relative to the run's backend folder, which can then be moved."""
    time: str
    expires_at: AwareDatetime | None
    user_metadata: dict[str, str] | None
    size_bytes: int | None
    base_model: str
    lora_rank: int

    @property
    def place(self) -> CheckpointPlace:
        return CheckpointPlace.parse(self.tinker_path)

    @property
    def expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= datetime.now(UTC)

    def describe(self) -> dict[str, Any]:
        """The protocol's description of a checkpoint."""
        place = self.place
        shown = {"time", "tinker_path", "size_bytes", "user_metadata", "expires_at"}
        about = {"checkpoint_id": f"{place.kind}/{place.name}", "checkpoint_type": _TYPES[place.kind]}
        return {**about, "public": False, **self.model_dump(mode="json", include=shown)}


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """All saved weights below one folder. Reads and writes files, so not for the event loop."""

    state_dir: Path
    _unreadable: set[Path] = field(default_factory=set[Path])
    """Unreadable files that were already logged."""

    def run_dir(self, run_id: str) -> Path:
        return self.state_dir / "runs" / run_id.replace(":", "_")

    def engine_dir(self, run_id: str) -> Path:
        return self.run_dir(run_id) / "engine"

    def add_run(self, run_id: str, about: dict[str, Any]) -> None:
        """Record a new model."""
        record = ServedRunRecord(training_run_id=run_id, created=_now(), **about)
        write_json(self.run_dir(run_id) / "run.json", record.model_dump())

    def run(self, run_id: str) -> ServedRunRecord | None:
        """The record of a model."""
        return _read(ServedRunRecord, self.run_dir(run_id) / "run.json") if _RUN.fullmatch(run_id) else None

    def runs(self) -> list[ServedRunRecord]:
        """All models, the latest first."""
        records = [
            record for folder in self._folders() for record in self._readable(ServedRunRecord, folder, "run.json")
        ]
        return sorted(records, key=lambda run: run.created, reverse=True)

    def exists(self, place: CheckpointPlace) -> bool:
        return self._file(place).exists()

    def add(
        self,
        place: CheckpointPlace,
        ref: str,
        *,
        ttl_seconds: int | None,
        user_metadata: dict[str, str] | None,
        about: dict[str, Any],
    ) -> None:
        """Publish written weights under a name; an earlier checkpoint of that name is deleted."""
        before = _read(CheckpointRecord, self._file(place))
        engine = self.engine_dir(place.run_id)
        inside = Path(ref).is_relative_to(engine)  # relative, so that the folder can be moved
        size = sum(path.stat().st_size for path in Path(ref).rglob("*") if path.is_file()) if inside else None
        self._write(
            CheckpointRecord(
                tinker_path=place.path,
                ref=str(Path(ref).relative_to(engine)) if inside else ref,
                inside=inside,
                time=_now(),
                expires_at=expiry(ttl_seconds),
                user_metadata=user_metadata,
                size_bytes=size,
                **about,
            )
        )
        if before is not None:  # last, so that the name always refers to a complete checkpoint
            self._discard(before)

    def get(self, path: str) -> CheckpointRecord:
        """The record of a checkpoint, with an absolute `ref`."""
        place = CheckpointPlace.parse(path)
        record = self._read_existing(place)
        # an absolute `ref` stays unchanged when joined
        return record.model_copy(update={"ref": str(self.engine_dir(place.run_id) / record.ref)})

    def describe_all(self, run_id: str | None = None) -> list[dict[str, Any]]:
        """Checkpoints of a run or of all, the latest first, in the protocol's form."""
        folders = [self.run_dir(run_id)] if run_id else self._folders()
        records = [record for folder in folders for record in self._records(folder) if not record.expired]
        return [record.describe() for record in sorted(records, key=lambda record: record.time, reverse=True)]

    def set_ttl(self, place: CheckpointPlace, ttl_seconds: int | None) -> None:
        """Change the lifetime; None means unlimited."""
        self._write(self._read_existing(place).model_copy(update={"expires_at": expiry(ttl_seconds)}))

    def delete(self, place: CheckpointPlace) -> None:
        """Delete a checkpoint: first its name, then its content."""
        record = self._read_existing(place)
        self._file(place).unlink(missing_ok=True)
        self._discard(record)

    def delete_expired(self) -> None:
        """Delete expired checkpoints."""
        for record in [record for folder in self._folders() for record in self._records(folder) if record.expired]:
            self._file(record.place).unlink(missing_ok=True)
            self._discard(record)

    def _read_existing(self, place: CheckpointPlace) -> CheckpointRecord:
        record = _read(CheckpointRecord, self._file(place))
        if record is None or record.expired:
            raise Refusal(404, f"there are no saved weights {place.path!r}: never saved here, deleted, or expired.")
        return record

    def _file(self, place: CheckpointPlace) -> Path:
        return self.run_dir(place.run_id) / place.kind / f"{place.name}.json"

    def _write(self, record: CheckpointRecord) -> None:
        write_json(self._file(record.place), record.model_dump(mode="json"))

    def _discard(self, record: CheckpointRecord) -> None:
        # Records may have been edited: delete only files inside the run's folder.
        engine = self.engine_dir(record.place.run_id)
        folder = (engine / record.ref).resolve()
        if not record.inside or engine.resolve() not in folder.parents:
            return  # not in our folder
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: has another kind of checkpoint
            if folder.parent != engine.resolve():
                folder.parent.rmdir()

    def _folders(self) -> list[Path]:
        return sorted((self.state_dir / "runs").glob("*"))

    def _records(self, folder: Path) -> Iterator[CheckpointRecord]:
        for kind in _TYPES:
            yield from self._readable(CheckpointRecord, folder, f"{kind}/*.json")

    def _readable[R: ServedRunRecord | CheckpointRecord](
        self, kind: type[R], folder: Path, pattern: str
    ) -> Iterator[R]:
        """The readable records; unreadable ones are logged once, so that listings do not fail."""
        for path in sorted(folder.glob(pattern)):
            try:
                record = _read(kind, path)
                # A copied record: deleting it would delete the original.
                if isinstance(record, CheckpointRecord) and self._file(record.place) != path:
                    raise Refusal(400, f"{path} on the server is the record of {record.tinker_path}.")
                if record is not None:
                    yield record
            except Refusal as refusal:
                if path not in self._unreadable:
                    self._unreadable.add(path)
                    get_logger(__name__).warning("left out of listings: %s", refusal.message)


def expiry(ttl_seconds: int | None) -> datetime | None:
    """The time at which something with this lifetime expires."""
    return None if ttl_seconds is None else datetime.now(UTC) + timedelta(seconds=ttl_seconds)


def _read[R: Strict](kind: type[R], path: Path) -> R | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        message = f"{where}: {problem['msg']}" if where else problem["msg"]
    except OSError as error:
        message = error.strerror or str(error)
    raise Refusal(400, f"{path} on the server cannot be read ({message}). Use other saved weights.")


def _now() -> str:
    return datetime.now(UTC).isoformat()
