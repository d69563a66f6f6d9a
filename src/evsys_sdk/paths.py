"""Where things are on disk: the project root and the `.evsys/` workspace."""

from __future__ import annotations

from pathlib import Path

WORKSPACE_DIR = ".evsys"


def project_root(start: Path | None = None) -> Path:
    """The nearest folder at or above `start` that has a `.evsys/` workspace; `start` itself when there is none."""
    start = (start or Path.cwd()).resolve()
    return next((folder for folder in (start, *start.parents) if (folder / WORKSPACE_DIR).is_dir()), start)


def workspace_dir(start: Path | None = None) -> Path:
    """The project's `.evsys/` folder, which may not exist yet."""
    return project_root(start) / WORKSPACE_DIR
