"""The project root and the `.evsys/` workspace."""

from __future__ import annotations

from pathlib import Path

WORKSPACE_DIR = ".evsys"


def project_root(start: Path | None = None) -> Path:
    """The nearest project folder at or above `start`; `start` itself without one.

    A project has a `.evsys/` workspace, or a `pyproject.toml` that names evsys.
    """
    start = (start or Path.cwd()).resolve()
    return next((folder for folder in (start, *start.parents) if is_project(folder)), start)


def in_project(path: str | Path) -> Path:
    """A path of a config as a path from the working folder; config paths start at the project root."""
    expanded = Path(path).expanduser()
    if expanded.is_absolute():
        return expanded
    here = Path.cwd().resolve()
    root = project_root(here)
    return expanded if root == here else root / expanded


def is_project(folder: Path) -> bool:
    """Whether a folder is the root of a project."""
    return (folder / WORKSPACE_DIR).is_dir() or _names_evsys(folder / "pyproject.toml")


def _names_evsys(pyproject: Path) -> bool:
    """Whether a pyproject.toml names evsys, as a dependency or in settings."""
    try:
        return b"evsys" in pyproject.read_bytes()
    except OSError:
        return False


def workspace_dir(start: Path | None = None) -> Path:
    """The project's `.evsys/` folder; it may not exist."""
    return project_root(start) / WORKSPACE_DIR
