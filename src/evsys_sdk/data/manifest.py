"""The manifest beside each cached file of rows. It is written last: without one, a file does not count."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from ..config.base import Strict
from .lineage import Lineage
from .reference import Kind

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
