"""Where things are on disk: the project root and the `.evsys/` workspace."""

from __future__ import annotations

from pathlib import Path

WORKSPACE_DIR = ".evsys"


def project_root(start: Path | None = None) -> Path:
    """The nearest folder at or above `start` that is a project; `start` itself when there is none.

    A project has a `.evsys/` workspace, or a `pyproject.toml` that names evsys.
    """
    start = (start or Path.cwd()).resolve()
    return next((folder for folder in (start, *start.parents) if is_project(folder)), start)


def in_project(path: str | Path) -> Path:
    """A path of a config, which starts at the project root; as it is where that is the working folder."""
    given = Path(path).expanduser()
    if given.is_absolute():
        return given
    here = Path.cwd().resolve()
    root = project_root(here)
    return given if root == here else root / given


def is_project(folder: Path) -> bool:
    """Whether a folder is the root of a project."""
    return (folder / WORKSPACE_DIR).is_dir() or _names_evsys(folder / "pyproject.toml")


def _names_evsys(pyproject: Path) -> bool:
    """Whether a file is the pyproject.toml of a project that uses evsys: as a dependency, or with settings for it."""
    try:
        return b"evsys" in pyproject.read_bytes()
    except OSError:
        return False


def workspace_dir(start: Path | None = None) -> Path:
    """The project's `.evsys/` folder, which may not exist yet."""
    return project_root(start) / WORKSPACE_DIR
