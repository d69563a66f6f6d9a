"""The manifest of each cached file of rows, written last: a file without it is incomplete."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError

from ...config.base import KindSpec, Strict
from ...record.jsonable import dump_json
from ...registry import config_model, get_transform
from ..code_hash import code_hash
from .reference import Kind

# Lineage of rows: their source, or the parent rows and transforms.

ADDED: Final = "added"
PATH: Final = "path"
DERIVED: Final = "derived"


class TransformRecord(Strict):
    """One applied transform, with enough detail to detect changes."""

    kind: str
    """Registered name of the transform."""
    params: dict[str, Any] = {}
    """Its params, including defaults."""
    code: str
    """Hash of its code."""


class Lineage(Strict):
    """Origin of cached rows."""

    origin: str = Field(min_length=1)
    """`added` by hand, read from a `path`, `derived` by transforms, or the name of the source."""
    source: str = ""
    """A path (below the project if possible) or an address."""
    parent: str | None = None
    """Id of the transformed rows."""
    transforms: tuple[TransformRecord, ...] = ()
    """Transforms applied to the parent, in order."""


def record_transforms(specs: Sequence[KindSpec]) -> tuple[TransformRecord, ...]:
    """The records of a chain of transforms: equal records mean equal rows from equal parents."""
    return tuple(_record(spec) for spec in specs)


def _record(spec: KindSpec) -> TransformRecord:
    transform = get_transform(spec.kind)
    config = config_model(transform)
    params = config.model_validate(spec.params).model_dump(mode="json") if config else spec.params
    # Round-trip through JSON, so that tuples and lists give equal records.
    plain = json.loads(dump_json(params, f"params of transform '{spec.kind}'"))
    return TransformRecord(kind=spec.kind, params=plain, code=code_hash(transform))


SUFFIX = ".manifest.json"


class Manifest(Strict):
    """Identity and hash of a cached file of rows."""

    manifest_version: Literal[1] = 1
    """Version of the manifest format."""
    kind: Kind
    """Training rows, or tasks of a benchmark."""
    id: str
    """Identifies the exact bytes; also the file name."""
    name: str
    """The human-readable name."""
    version: int = Field(ge=0)
    """Version under that name."""
    split: str
    """`train`, `test`, ... for a dataset; the role, `test` or `val`, for a benchmark."""
    format: str
    """Format of all rows, e.g. `chat_messages`; `mixed` if they differ."""
    formats: dict[str, int] = {}
    """Number of rows per format."""
    rows: int = Field(ge=1)
    """Number of rows."""
    bytes: int = Field(ge=1)
    """Size of the file."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Hash of the file."""
    mtime_ns: int
    """Modification time when written; an unchanged one skips hashing on use."""
    lineage: Lineage
    """Origin of the rows."""
    metadata: dict[str, Any] = {}
    """The source's metadata, e.g. the content of `metadata.yaml`."""
    created: datetime
    """Time of caching."""
    complete: Literal[True]
    """Always true: an unfinished pull has no manifest."""

    @property
    def location(self) -> str:
        """Its location, for messages."""
        return f"workspace id {self.id}"

    @property
    def is_derived(self) -> bool:
        """Whether the rows were derived from other cached rows."""
        return self.lineage.parent is not None

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """The manifest at `path`; raises ValueError if invalid, OSError if unreadable."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None
