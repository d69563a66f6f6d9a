"""Children of a config: one or two fields changed, valid as a whole, with their parent and the change noted in them.

    for child in propose_from_file("config.yaml", seed=1, n=4):
        print(child.name, child.changes)
        Experiment(child.config).run()

The same seed gives the same children.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from random import Random
from typing import Any, cast

from ...config import ExperimentConfig
from ...config.fields import Path, dotted, split_dotted
from ...config.load import load_document
from ...config.yaml_text import read_yaml
from ...errors import ConfigError, Problem, closest
from ...files import write_text
from ..parents import parent_id
from .moves import move
from .space import MutableField, mutation_space, run_paths
from .yaml_edit import edited

_SUFFIX = re.compile(r"-m[0-9a-f]{8}$")
"""What a child's name has after that of its first ancestor."""
_ATTEMPTS_PER_CHILD = 40
_TWO_FIELDS = 0.35
"""How often two fields change instead of one."""


@dataclass(frozen=True, slots=True)
class Child:
    """One proposed config."""

    name: str
    text: str
    """The YAML file."""
    config: ExperimentConfig
    changes: dict[str, tuple[Any, Any]]
    """Dotted path -> the value before and after."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form printed by `evsys mutate --json`."""
        changes = {path: list(pair) for path, pair in self.changes.items()}
        parent = self.config.parent_experiment_id
        return {"name": self.name, "parent_experiment_id": parent, "changes": changes, "yaml": self.text}

    def write(self, folder: FilePath) -> FilePath:
        """Write the file into a folder; its name says what is in it, so it may be there already."""
        path = folder / f"{self.name}.yaml"
        if path.exists() and path.read_text(encoding="utf-8") != self.text:
            message = "another file of this name is there already"
            raise ConfigError(Problem(message, file=str(path), hint="Choose another folder with -o."))
        write_text(path, self.text)
        return path


def propose_from_file(path: str | FilePath, *, seed: int, n: int = 1, **limits: Any) -> list[Child]:
    """Children of a YAML file."""
    return propose(FilePath(path).read_text(encoding="utf-8"), seed=seed, n=n, file=str(path), **limits)


def propose(
    text: str,
    *,
    seed: int,
    n: int = 1,
    only: Sequence[str] = (),
    freeze: Sequence[str] = (),
    file: str | None = None,
    parent: str | None = None,
) -> list[Child]:
    """Up to `n` different children of a config; fewer where it does not have that many neighbours.

    `only` and `freeze` are dotted paths, from the run or from the top of the file, of what may and what must not
    change. `parent` is the id that children note; by default that of the config's latest run on record, else its name.
    """
    config = load_document(read_yaml(text, file=file), deep=True)
    data = cast("dict[str, Any]", read_yaml(text).data)
    spaces = [space for run in run_paths(data) if (space := _space(data, run, only, freeze))]
    if not spaces:
        raise ConfigError(_nothing_to_change(data, only, freeze))
    maker = _Maker(text, config, parent or parent_id(config) or config.name)
    rng = Random(seed)
    tried: dict[str, Child | None] = {}
    found: list[Child] = []
    for _ in range(n * _ATTEMPTS_PER_CHILD):
        moved = _changes(rng.choice(spaces), rng)
        name = maker.name(moved)
        if moved and name not in tried:
            tried[name] = child = maker.child(moved)
            found += [child] if child is not None else []
        if len(found) == n:
            break
    if not found:
        message = "no neighbour of this config is valid"
        raise ConfigError(Problem(message, file=file, hint="Open more fields: fewer --freeze, a wider --only."))
    return found


@dataclass(frozen=True, slots=True)
class _Maker:
    text: str
    config: ExperimentConfig
    parent: str

    def child(self, moved: Mapping[MutableField, Any]) -> Child | None:
        """The config with some values changed; None where that is no valid config."""
        name = self.name(moved)
        noted = {field.name: [field.value, new] for field, new in moved.items()}
        changes: dict[Path, Any] = {field.path: new for field, new in moved.items()}
        changes |= {("name",): name, ("parent_experiment_id",): self.parent, ("metadata", "mutation"): noted}
        text = edited(self.text, changes)
        try:
            config = load_document(read_yaml(text, file=f"{name}.yaml"), deep=True)
        except ConfigError:
            return None
        return Child(name, text, config, {path: (pair[0], pair[1]) for path, pair in noted.items()})

    def name(self, moved: Mapping[MutableField, Any]) -> str:
        """Made of what the child is, so that the same change has the same name and no two changes share one."""
        content = json.dumps([self.text, sorted((field.name, str(new)) for field, new in moved.items())])
        digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        return f"{_SUFFIX.sub('', self.config.name)}-m{digest}"


def _changes(space: Sequence[MutableField], rng: Random) -> dict[MutableField, Any]:
    count = 2 if len(space) > 1 and rng.random() < _TWO_FIELDS else 1
    moved = {field: move(field, rng) for field in rng.sample(list(space), count)}
    return {field: value for field, value in moved.items() if value is not None}


def _space(data: dict[str, Any], run: Path, only: Sequence[str], freeze: Sequence[str]) -> list[MutableField]:
    opened = [dotted(_below(split_dotted(path), run)) for path in only]
    fields = mutation_space(data, run, opened=opened)
    if only:
        fields = [field for field in fields if any(_covers(path, field.path, run) for path in only)]
    return [field for field in fields if not any(_covers(path, field.path, run) for path in freeze)]


def _covers(named: str, path: Path, run: Path) -> bool:
    """Whether a path that was named, from the run or from the top of the file, is this field or holds it."""
    parts = split_dotted(named)
    inside = path[len(run) :]
    return path[: len(parts)] == parts or inside[: len(parts)] == parts


def _below(path: Path, run: Path) -> Path:
    return path[len(run) :] if path[: len(run)] == run else path


def _nothing_to_change(data: dict[str, Any], only: Sequence[str], freeze: Sequence[str]) -> Problem:
    names = [dotted(field.path[len(run) :]) for run in run_paths(data) for field in mutation_space(data, run)]
    known = list(dict.fromkeys(names))
    if not known:
        message = "nothing in the recipe of this config has a schema that says what is legal"
        return Problem(message, hint="Give the algorithm a Config with bounds, choices or booleans.")
    wrong = next((name for name in only if name not in known), None)
    guess = closest(wrong, known) if wrong else None
    hint = f"Did you mean '{guess}'?" if guess else f"These may change: {', '.join(known)}."
    named = " and ".join([*(f"--only {name}" for name in only), *(f"--freeze {name}" for name in freeze)])
    return Problem(f"{named} leaves no field that may change", hint=hint)
