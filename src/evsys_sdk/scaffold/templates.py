"""Files that are written once and are then the user's own: the `*.tmpl` beside this module.

`dot-gitignore.tmpl` becomes `.gitignore`; `$name` in a file is replaced by what the caller says it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template

from ..files import write_text

_HERE = Path(__file__).parent
_SUFFIX = ".tmpl"


def write_templates(folder: str, target: Path, values: Mapping[str, str]) -> list[Path]:
    """Write every template of a folder below `target`; returns what was written, in order."""
    source = _HERE / folder
    written: list[Path] = []
    for path in sorted(source.rglob(f"*{_SUFFIX}")):
        parts = [part.replace("dot-", ".", 1) if part.startswith("dot-") else part for part in _parts(path, source)]
        file = target.joinpath(*parts)
        write_text(file, _fill(path, values), verbatim=True)
        written.append(file)
    return written


def fill_template(name: str, values: Mapping[str, str]) -> str:
    """The text of one template, without its placeholders."""
    return _fill(_HERE / f"{name}{_SUFFIX}", values)


def _fill(path: Path, values: Mapping[str, str]) -> str:
    return Template(path.read_text("utf-8")).substitute(values)


def _parts(path: Path, source: Path) -> tuple[str, ...]:
    return path.relative_to(source).with_suffix("").parts
