"""The manifest next to each cached file of rows. It is written last: without one, a file does not count."""

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

# Where rows come from: their source, or the rows and the transforms they were made of.

ADDED: Final = "added"
PATH: Final = "path"
DERIVED: Final = "derived"


class TransformRecord(Strict):
    """One transform that was applied, precisely enough to tell whether it would do the same today."""

    kind: str
    """Registered name of the transform."""
    params: dict[str, Any] = {}
    """Its params, defaults included."""
    code: str
    """Hash of the code behind it."""


class Lineage(Strict):
    """Where cached rows come from."""

    origin: str = Field(min_length=1)
    """`added` by hand, read from a `path`, `derived` by transforms, or the name of the source they were pulled from."""
    source: str = ""
    """Where they were read: a path (below the project where possible) or an address."""
    parent: str | None = None
    """Id of the rows the transforms were applied to."""
    transforms: tuple[TransformRecord, ...] = ()
    """What was applied to the parent, in order."""


def record_transforms(specs: Sequence[KindSpec]) -> tuple[TransformRecord, ...]:
    """What a chain of transforms is: the same records mean the same rows from the same parent."""
    return tuple(_record(spec) for spec in specs)


def _record(spec: KindSpec) -> TransformRecord:
    transform = get_transform(spec.kind)
    config = config_model(transform)
    params = config.model_validate(spec.params).model_dump(mode="json") if config else spec.params
    # As they are read back: JSON makes lists of tuples, and the same params must give the same record.
    plain = json.loads(dump_json(params, f"params of transform '{spec.kind}'"))
    return TransformRecord(kind=spec.kind, params=plain, code=code_hash(transform))


SUFFIX = ".manifest.json"


class Manifest(Strict):
    """What a cached file of rows is, and what its bytes must be."""

    manifest_version: Literal[1] = 1
    """Version of this file's own layout."""
    kind: Kind
    """Whether these are training rows or the tasks of a benchmark."""
    id: str
    """Stands for exactly these bytes; also the name of the file."""
    name: str
    """What people call it."""
    version: int = Field(ge=0)
    """Version under that name."""
    split: str
    """`train`, `test`, ... for a dataset; the role, `test` or `val`, for a benchmark."""
    format: str
    """Shape of all rows, e.g. `chat_messages`; `mixed` when they differ."""
    formats: dict[str, int] = {}
    """How many rows have which shape."""
    rows: int = Field(ge=1)
    """Number of rows."""
    bytes: int = Field(ge=1)
    """Size of the file."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Hash of the file."""
    mtime_ns: int
    """Modification time when it was written; a file that still has it is not hashed at every use."""
    lineage: Lineage
    """Where the rows come from."""
    metadata: dict[str, Any] = {}
    """What the source says about them, e.g. the content of `metadata.yaml`."""
    created: datetime
    """When they were cached."""
    complete: Literal[True]
    """Always true: an unfinished pull has no manifest."""

    @property
    def location(self) -> str:
        """Where it is, for messages."""
        return f"workspace id {self.id}"

    @property
    def is_derived(self) -> bool:
        """Whether transforms made these rows from other cached rows."""
        return self.lineage.parent is not None

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """The manifest at `path`; ValueError when it is not one, OSError when it cannot be read."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None
