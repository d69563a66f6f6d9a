"""Where experiments are: `outputs` here and at the project's root, and wherever runs of this project wrote to.

Runs note other folders in `.evsys/` (`record/roots.py`). `--root` takes the place of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import DataError
from ..paths import WORKSPACE_DIR, project_root
from ..record.layout import DEFAULT_ROOT, OUTPUT_ROOTS
from ..record.roots import read_output_roots


def experiment_roots(given: Sequence[str | Path] = ()) -> list[Path]:
    """The folders to look for experiments in, each once; those that were given, or else every known one."""
    if given:
        for path in map(Path, given):
            if not path.is_dir():
                raise DataError(f"--root {path}: there is no such folder. Name the output_dir of your experiments.")
        return _each_once(map(Path, given))
    here = Path.cwd()
    known = [here / DEFAULT_ROOT, project_root(here) / DEFAULT_ROOT, *read_output_roots(here)]
    return _each_once(path for path in known if path.is_dir())


def looked_in(roots: Sequence[Path]) -> str:
    """The folders that were searched, for a message."""
    if not roots:
        return f"no folder of experiments was found (looked for ./{DEFAULT_ROOT} and in {WORKSPACE_DIR}/{OUTPUT_ROOTS})"
    shown = ", ".join(str(shortest(root)) for root in roots[:3])
    return f"looked in {shown}" + (f" and {len(roots) - 3} more folders" if len(roots) > 3 else "")


def shortest(path: Path) -> Path:
    """A path as one would type it: relative to here where it lies below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) and path != here else path


def _each_once(paths: Iterable[Path]) -> list[Path]:
    return list(dict.fromkeys(path.resolve() for path in paths))
