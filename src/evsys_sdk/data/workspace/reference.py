"""References to data: kinds, names, versions, splits and ids.

    sft             the latest version of the dataset `sft`, split `train`
    sft@v2          version 2 of it
    sft@v2:test     its split `test`

A name may move to new content, an id identifies exact bytes. Names, splits and ids become file names, so they are plain
ASCII and work on every file system.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

from ...errors import WorkspaceError, show

type Kind = Literal["dataset", "benchmark"]

FOLDERS: dict[Kind, str] = {"dataset": "datasets", "benchmark": "benchmarks"}
"""Kind -> its folder below `.evsys/`."""

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LONGEST = {"name": 80, "split": 32, "id": 160}
_REFERENCE = re.compile(r"(?P<name>[^@:]*)(@v(?P<version>\d{1,9}))?(:(?P<split>[^@:]*))?")


def check_name(text: str, *, what: Literal["name", "split", "id"] = "name") -> str:
    """`text` if it is safe in a file name; otherwise an error with a suggestion."""
    longest = _LONGEST[what]
    if _SAFE.fullmatch(text) and ".." not in text and not text.endswith(".") and len(text) <= longest:
        return text
    proposal = f" Try '{slug(text)}'." if what != "id" else " `evsys dataset list` and `evsys benchmark list` show ids."
    raise WorkspaceError(
        f"{show(text)} cannot be used as {'an id' if what == 'id' else f'a {what}'}: it must have 1 to {longest} ASCII "
        "letters, digits, '.', '_' or '-', start with a letter or digit, not end with '.', and not contain '..'."
        f"{proposal}"
    )


def slug(text: str) -> str:
    """The closest valid name: accents removed, invalid characters replaced."""
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
    replaced = re.sub(r"\.{2,}", ".", re.sub(r"[^A-Za-z0-9._-]+", "_", ascii_text))
    # Stripped again, because truncation may leave a trailing dot.
    return replaced.strip("._-")[: _LONGEST["name"]].rstrip(".") or "rows"


@dataclass(frozen=True, slots=True)
class Reference:
    """A name with an optional version and split."""

    name: str
    version: int | None = None
    """None: the latest."""
    split: str | None = None
    """None: `train` for a dataset, the only split for a benchmark."""

    @classmethod
    def parse(cls, text: str) -> Reference:
        match = _REFERENCE.fullmatch(text)
        if match is None:
            raise WorkspaceError(
                f"{show(text)} is not a reference. Write a name, 'name@v2' for a version or 'name@v2:test' for a split."
            )
        version = match["version"]
        split = None if match["split"] is None else check_name(match["split"], what="split")
        return cls(check_name(match["name"]), None if version is None else int(version), split)

    def __str__(self) -> str:
        version = "" if self.version is None else f"@v{self.version}"
        return f"{self.name}{version}{f':{self.split}' if self.split else ''}"


def content_id(kind: Kind, *, name: str, version: int, split: str, sha256: str) -> str:
    """The id of content under a name: readable, and equal on every machine."""
    return f"{id_prefix(name, version, split)}{fingerprint(kind, name, version, split, sha256)}"


def id_prefix(name: str, version: int, split: str) -> str:
    """The common prefix of ids with this name, version and split."""
    return f"{name}-v{version}-{split}-"


def fingerprint(*parts: object) -> str:
    """Twelve hex digits of a hash of `parts`, which must be plain data."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:12]
