"""External weights: saved for other programs and downloaded through signed URLs without a key.

`tinker checkpoint download` requests one URL per file and opens it with a plain HTTP client. So a URL contains its
expiry and a signature of this server.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import FileResponse

from ...errors import EvsysError
from ..answer import Refusal
from .checkpoints import EXTERNAL, CheckpointPlace, Checkpoints

PREFIX: Final = "/api/v1/external_weights/"
"""Paths that need no key, because they are signed."""
_NOT_SIGNED = "this address was not signed by this server, or by an earlier start of it."
_HOLDS_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs URLs; the key changes with each server start."""

    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    def sign(self, place: CheckpointPlace, file: str, until: int) -> str:
        text = f"{place.path}\n{file}\n{until}"
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()

    def check(self, place: CheckpointPlace, file: str, until: int, signature: str) -> None:
        # Check the signature before the expiry, to reveal nothing without one. Compared as bytes, because
        # compare_digest accepts only ASCII text.
        if not hmac.compare_digest(self.sign(place, file, until).encode(), signature.encode("utf-8", "replace")):
            raise Refusal(403, _NOT_SIGNED)
        if until < time.time():
            raise Refusal(403, "this address has expired. Request the addresses again.")


def read_recipients(texts: Sequence[str]) -> list[Any]:
    """The public keys (`age` format) to encrypt files for."""
    try:
        pyrage: Any = import_module("pyrage")
    except ImportError:
        raise EvsysError(
            "age_encryption_recipients: this server cannot encrypt. Install pyrage where it runs (pip install pyrage), "
            "or leave it out."
        ) from None
    try:
        return [pyrage.x25519.Recipient.from_str(text) for text in texts]
    except Exception:  # pyrage has many error types
        raise EvsysError("age_encryption_recipients: not all of them are X25519 keys that begin with age1.") from None


def encrypt_folder(folder: Path, recipients: Sequence[Any]) -> None:
    """Replace all files by encrypted ones; partly written files are never listed."""
    pyrage: Any = import_module("pyrage")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        pyrage.encrypt_file(str(path), f"{path}.age", list(recipients))
        path.unlink()


def addresses(checkpoints: Checkpoints, signer: Signer, place: CheckpointPlace, root: str) -> dict[str, Any]:
    """One URL per file, and their expiry."""
    folder, until = _folder(checkpoints, place), int(time.time()) + _HOLDS_S
    urls: dict[str, str] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        file = path.relative_to(folder).as_posix()
        permission = f"{until}-{signer.sign(place, file, until)}"
        urls[file] = f"{root.rstrip('/')}{PREFIX}{permission}/{quote(place.run_id)}/{place.name}/{quote(file)}"
    return {"urls": urls, "expires": datetime.fromtimestamp(until, UTC).isoformat()}


def download(checkpoints: Checkpoints, signer: Signer, request: Request) -> FileResponse:
    """The file of a signed URL."""
    parts = request.path_params
    try:
        place, file = CheckpointPlace.of(parts["run_id"], f"{EXTERNAL}/{parts['name']}"), parts["file"]
    except Refusal:  # an invalid path was never signed
        raise Refusal(403, _NOT_SIGNED) from None
    until, _, signature = parts["permission"].partition("-")
    signer.check(place, file, int(until) if until.isdecimal() and len(until) < 16 else 0, signature)
    path = _folder(checkpoints, place) / file  # signed, so it was listed
    if not path.is_file():
        raise Refusal(404, f"{place.path} has no file {file!r} any more.")
    return FileResponse(path, media_type="application/octet-stream", filename=path.name)


def _folder(checkpoints: Checkpoints, place: CheckpointPlace) -> Path:
    if place.kind != EXTERNAL:
        raise Refusal(400, f"{place.path} are not external weights. Save them with save_weights_external.")
    return Path(checkpoints.get(place.path).ref)
