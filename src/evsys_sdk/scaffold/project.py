"""`evsys init-project`: create a research project with an example task that runs.

data/fetch fills data/raw, and data/process makes datasets, validation and benchmark sets of it; both scripts are run
here.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from ..errors import WorkspaceError, show
from ..files import write_text
from ..paths import WORKSPACE_DIR

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_SCRIPTS = ("data/fetch/write_tickets.py", "data/process/split_tickets.py")
_MAY_BE_THERE = {".git", ".gitattributes", ".github", "LICENSE", ".venv", ".claude", ".codex", ".cursor"}
"""Files and folders that may exist before the project."""


@dataclass(frozen=True, slots=True)
class NewProject:
    """The files of a new project."""

    root: Path
    files: tuple[Path, ...]


def init_project(name: str, *, into: Path | None = None) -> NewProject:
    """Create a project in the folder of its name, or in `into`; existing files are never overwritten."""
    root = _find_place(name, into or Path(name))
    files = write_templates("project_template", root, {"name": root.name if name == "." else Path(name).name})
    for script in _SCRIPTS:
        process = subprocess.run([sys.executable, script], cwd=root, capture_output=True, text=True, check=False)
        if process.returncode:
            last = process.stderr.strip().rpartition("\n")[2]
            raise WorkspaceError(f"{root / script}: {last or 'it failed'}. Run it in {root} to see why.")
    data_files = [path for path in sorted((root / "data").rglob("*.jsonl")) if path not in files]
    return NewProject(root, (*files, *data_files))


def find_project() -> Path:
    """The nearest project folder at or above this one; WorkspaceError without one."""
    start = Path.cwd().resolve()
    for folder in (start, *start.parents):
        if (folder / WORKSPACE_DIR).is_dir() and (folder / "data").is_dir():
            return folder
    raise WorkspaceError(
        f"{start}: neither this folder nor one above it is a project (with {WORKSPACE_DIR}/ and data/). "
        "Make one with: evsys init-project NAME"
    )


def _find_place(name: str, folder: Path) -> Path:
    root = folder.resolve()
    label = root.name if name == "." else Path(name).name
    if not _NAME.fullmatch(label):
        raise WorkspaceError(
            f"{show(label)} cannot be the name of a project: it is also that of a Python package. Use letters, digits, "
            "'.', '_' and '-', and begin and end with a letter or digit."
        )
    if root.exists() and not root.is_dir():
        raise WorkspaceError(f"{root}: this is a file. Choose another name.")
    entries = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    if others := [entry for entry in entries if entry not in _MAY_BE_THERE]:
        shown = ", ".join(others[:3]) + (" …" if len(others) > 3 else "")
        raise WorkspaceError(
            f"{root}: this folder is not empty ({shown}). Choose another name; "
            "in an existing project, run `evsys new-experiment SLUG`."
        )
    return root


# Templates: the `*.tmpl` next to this module. `dot-gitignore.tmpl` becomes `.gitignore`; `$name` is a placeholder.

_HERE = Path(__file__).parent
_SUFFIX = ".tmpl"


def write_templates(folder: str, target: Path, values: Mapping[str, str]) -> list[Path]:
    """Write the templates of a folder below `target`; returns the written files in order."""
    source = _HERE / folder
    paths: list[Path] = []
    for path in sorted(source.rglob(f"*{_SUFFIX}")):
        # Not `.gitignore` in the sources, where git and the build would obey it.
        names = path.relative_to(source).with_suffix("").parts
        parts = [part.replace("dot-", ".", 1) if part.startswith("dot-") else part for part in names]
        file = target.joinpath(*parts)
        write_text(file, _fill(path, values), verbatim=True)
        paths.append(file)
    return paths


def fill_template(name: str, values: Mapping[str, str]) -> str:
    """The text of a template with its placeholders filled in."""
    return _fill(_HERE / f"{name}{_SUFFIX}", values)


def _fill(path: Path, values: Mapping[str, str]) -> str:
    return Template(path.read_text("utf-8")).substitute(values)
