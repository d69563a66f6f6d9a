"""Checkpoints on disk: one folder with the numbers (`weights.npz`) and what they are (`manifest.json`, written last).

Only what training changed is stored; the rest is rebuilt from the model's name and seed. A folder without a manifest is
what a killed process left behind and counts as absent. The manifest holds a checksum, so damage is noticed, not loaded.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...errors import BackendError
from ...files import atomic_write, write_json
from ...record.checkpoints import stored_at
from ..checkpoint_name import MANIFEST, check_free

FORMAT: Final = 1
_WEIGHTS = "weights.npz"

type Arrays = Mapping[str, NDArray[Any]]


def write_checkpoint(folder: Path, arrays: Arrays, about: Mapping[str, Any]) -> None:
    """Store a checkpoint; until it is complete there is none."""
    check_free(folder)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    content = buffer.getvalue()
    with atomic_write(folder / _WEIGHTS) as file:
        file.write(content)
    manifest = {"format": FORMAT, **about, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    write_json(folder / MANIFEST, manifest)


def read_checkpoint(ref: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The arrays and the manifest of a checkpoint, after checking that it is whole."""
    folder = Path(stored_at(ref))
    manifest = _read_manifest(folder)
    try:
        content = (folder / _WEIGHTS).read_bytes()
    except OSError as error:
        raise BackendError(f"{folder / _WEIGHTS} cannot be read ({error.strerror}). {_REMEDY}") from None
    if hashlib.sha256(content).hexdigest() != manifest.get("sha256"):
        raise BackendError(
            f"{folder / _WEIGHTS} is damaged: its {len(content)} bytes do not match the checksum in {MANIFEST} "
            f"({manifest.get('bytes')} bytes were written). {_REMEDY}"
        )
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}, manifest
    except (ValueError, zipfile.BadZipFile) as error:
        raise BackendError(f"{folder / _WEIGHTS} is not a checkpoint ({error}). {_REMEDY}") from None


_REMEDY: Final = "Use an earlier checkpoint of the run."


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BackendError(f"there is no complete checkpoint in {folder}: {MANIFEST} is missing. {_REMEDY}") from None
    except (OSError, ValueError) as error:
        raise BackendError(f"{path} cannot be read ({error}). {_REMEDY}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:  # pyright: ignore[reportUnknownMemberType]
        raise BackendError(f"{path} is not a checkpoint of the mock backend in format {FORMAT}. {_REMEDY}")
    return manifest  # pyright: ignore[reportUnknownVariableType]
