"""Where the answers of `evsys doctor` are kept: `.evsys/doctor/<hash>.json`, one file for each server and model.

The hash covers everything that may change the answer: the kind of backend, its address, the model, and the versions of
this SDK and of the package that talks to the server. A file that cannot be read counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...files import write_json
from ...paths import workspace_dir
from .facts import Facts

_PACKAGES = {"tinker": "tinker", "skyrl": "tinker", "fireworks": "fireworks-ai", "local": "torch"}
"""Kind -> the package whose version belongs to the answer."""


@dataclass(frozen=True, slots=True)
class Server:
    """Which server and model facts are about."""

    backend: str
    base_url: str
    model: str

    def path(self, workspace: Path | None = None) -> Path:
        """The file of its facts."""
        identity = json.dumps([self.backend, self.base_url, self.model, self.versions()], sort_keys=True)
        digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
        return (workspace or workspace_dir()) / "doctor" / f"{digest}.json"

    def versions(self) -> dict[str, str]:
        """What the answer may depend on."""
        found = {"evsys_sdk": __version__}
        package = _PACKAGES.get(self.backend)
        if package is not None:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                found[package] = "not installed"
        return found


def read_facts(server: Server, workspace: Path | None = None) -> Facts | None:
    """What was found out about a server earlier; None when nobody has asked."""
    stored = read_answer(server, workspace)
    return None if stored is None else Facts.from_dict(stored["facts"])


def read_answer(server: Server, workspace: Path | None = None) -> dict[str, Any] | None:
    """The whole stored answer."""
    try:
        stored: Any = json.loads(server.path(workspace).read_text(encoding="utf-8"))
        return stored if isinstance(stored["facts"], dict) else None  # pyright: ignore[reportUnknownVariableType]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_answer(
    server: Server, facts: Facts, problems: dict[str, str], workspace: Path | None = None
) -> dict[str, Any]:
    """Keep what was found out; returns the stored answer."""
    answer = {
        "backend": server.backend,
        "base_url": server.base_url,
        "model": server.model,
        "versions": server.versions(),
        "asked_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "facts": facts.to_dict(),
        "problems": problems,
    }
    write_json(server.path(workspace), answer)
    return answer
