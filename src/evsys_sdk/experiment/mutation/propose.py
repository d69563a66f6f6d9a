"""Children of a config: one or two fields changed, valid as a whole, with their parent and the change noted in them.

    for child in propose_from_file("config.yaml", seed=1, n=4):
        print(child.name, child.changes)
        Experiment(child.config).run()

The same seed gives the same children.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from random import Random
from typing import Any, cast

from ...config import ExperimentConfig
from ...config.fields import Path, join_path, split_dotted
from ...config.load import load_document
from ...config.matrix import set_value
from ...config.yaml_text import read_yaml
from ...config.yaml_write import write_yaml
from ...errors import ConfigError, Problem, suggest
from ...files import write_text
from ...record.reader import ExperimentRecord, experiment_id
from ..parents import latest_attempt
from ..preflight import PulledRows, check_config
from .space import MutableField, mutation_space, run_paths

# One field: from a value to a neighbouring one, near enough that what worked may still work.
#
# Fields on a log scale are multiplied or divided, by a factor between 1.25 and 3. Others take a step that fits their
# range, or their size where they have none. A choice or a boolean takes another of its values.

_LEAST_FACTOR, _MOST_FACTOR = 1.25, 3.0
_SHARE_OF_RANGE = 0.2
_FROM_NOTHING = (1e-3, 1e-1)
"""Where a number that is 0 goes to, if nothing else says what is much."""
_BACK_TO_NOTHING = 0.1
_TRIES = 20


def move(field: MutableField, rng: Random) -> bool | int | float | str | None:
    """A legal value other than the one it has; None where none was found."""
    if field.kind in ("bool", "choice"):
        others = [choice for choice in field.choices if choice != field.value]
        return rng.choice(others) if others else None
    for _ in range(_TRIES):
        value = _integer(field, rng) if field.kind == "int" else _float(field, rng)
        if value != field.value and field.allows(value):
            return value
    return None


def _integer(field: MutableField, rng: Random) -> int:
    value = int(field.value)
    if field.log and value > 0:
        # Sizes are often powers of two, and stay so.
        if value & (value - 1) == 0 and value > 1:
            return value * 2 if rng.random() < 0.5 else value // 2
        moved = value * _factor(rng)
        # By one at least: rounded, a small number would often stay what it is.
        return max(value + 1, round(moved)) if moved > value else min(value - 1, round(moved))
    reach = max(1, round((abs(value) if field.high is None else _width(field)) * _SHARE_OF_RANGE))
    return value + rng.choice((-1, 1)) * rng.randint(1, reach)


def _float(field: MutableField, rng: Random) -> float:
    value = float(field.value)
    may_be_nothing = field.allows(0.0)
    if value == 0.0 and (field.log or field.high is None):
        low, high = _FROM_NOTHING
        return _round(math.exp(rng.uniform(math.log(low), math.log(high))))
    if field.log or field.high is None or field.low is None:
        if field.log and may_be_nothing and rng.random() < _BACK_TO_NOTHING:
            return 0.0
        return _round(value * _factor(rng))
    return _round(value + rng.choice((-1, 1)) * rng.uniform(0.1, 1.0) * _SHARE_OF_RANGE * _width(field))


def _factor(rng: Random) -> float:
    size = math.exp(rng.uniform(math.log(_LEAST_FACTOR), math.log(_MOST_FACTOR)))
    return size if rng.random() < 0.5 else 1 / size


def _width(field: MutableField) -> float:
    return (field.high or 0.0) - (field.low or 0.0)


def _round(value: float) -> float:
    """Two digits: enough for a search, and readable in a file."""
    return float(f"{value:.2g}")


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
        write_text(path, self.text, verbatim=True)
        return path


def propose_from_file(path: str | FilePath, *, seed: int, n: int = 1, **limits: Any) -> list[Child]:
    """Children of a YAML file."""
    return propose(FilePath(path).read_text(encoding="utf-8-sig"), seed=seed, n=n, file=str(path), **limits)


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
    config = _runnable(text, file)
    data = cast("dict[str, Any]", read_yaml(text).data)
    _refuse_unknown(data, only, freeze)
    spaces = [space for run in run_paths(data) if (space := _space(data, run, only, freeze))]
    if not spaces:
        message = "--freeze leaves no field that may change" if freeze else "nothing in this config may change"
        raise ConfigError(Problem(message, file=file, hint=_list_fields(data)))
    folder = latest_attempt(config)
    if parent is None and folder is not None:
        _refuse_invalid(folder, file)
        parent = experiment_id(folder)
    pulled: dict[str, PulledRows] = {}
    fits = not check_config(config, kinds=False, pulled=pulled).problems  # else its rows say nothing about a child's
    maker = _Maker(text, data, config, parent or config.name, pulled if fits else None)
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


def _runnable(text: str, file: str | None, pulled: dict[str, PulledRows] | None = None) -> ExperimentConfig:
    """The config, if `evsys run` would take it; with `pulled`, its rows included."""
    config = load_document(read_yaml(text, file=file), deep=True)
    if problems := check_config(config, kinds=False, rows=pulled is not None, pulled=pulled).problems:
        raise ConfigError(problems)
    return config


def _refuse_invalid(folder: FilePath, file: str | None) -> None:
    """What descends from a result that must not be believed inherits what is wrong with it."""
    record = ExperimentRecord(folder)
    said = record.invalidated or (record.conclusion.get("verdict") == "invalid" and record.conclusion.get("summary"))
    if said:
        message = f"its latest attempt, {record.experiment_id}, is invalid: {str(said).rstrip('.')}"
        hint = "Repair what is wrong and run it again, take the mark back with `evsys invalidate --undo`, or rename it."
        raise ConfigError(Problem(message, file=file, hint=hint))


@dataclass(frozen=True, slots=True)
class _Maker:
    text: str
    data: Mapping[str, Any]
    config: ExperimentConfig
    parent: str
    pulled: dict[str, PulledRows] | None
    """The rows of the parent, which children share."""

    def child(self, moved: Mapping[MutableField, Any]) -> Child | None:
        """The config with some values changed; None where that is no valid config."""
        name = self.name(moved)
        noted = {field.name: [field.value, new] for field, new in moved.items()}
        # In this order, so that what a child is stands at the top of its file.
        data: Any = {"name": name, "parent_experiment_id": self.parent, **self.data}
        changes: dict[Path, Any] = {field.path: new for field, new in moved.items()}
        changes |= {("name",): name, ("parent_experiment_id",): self.parent, ("metadata", "mutation"): noted}
        for path, value in changes.items():
            data = set_value(data, path, value)
        text = write_yaml(data)
        try:
            config = _runnable(text, f"{name}.yaml", self.pulled)
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
    # In one order, so that the same change gives the same file.
    ordered = sorted(moved, key=lambda field: field.name)
    return {field: moved[field] for field in ordered if moved[field] is not None}


def _space(data: dict[str, Any], run: Path, only: Sequence[str], freeze: Sequence[str]) -> list[MutableField]:
    fields = mutation_space(data, run, opened=_open_blocks(run, only))
    if only:
        fields = [field for field in fields if any(_covers(path, field.path, run) for path in only)]
    return [field for field in fields if not any(_covers(path, field.path, run) for path in freeze)]


def _open_blocks(run: Path, only: Sequence[str]) -> list[str]:
    """Blocks next to the recipe that were named."""
    named = [split_dotted(path) for path in only]
    return [join_path(path[len(run) :] if path[: len(run)] == run else path) for path in named]


def _covers(named: str, path: Path, run: Path) -> bool:
    """Whether a path that was named, from the run or from the top of the file, is this field or holds it."""
    parts = split_dotted(named)
    return parts in (path[: len(parts)], path[len(run) :][: len(parts)])


def _refuse_unknown(data: dict[str, Any], only: Sequence[str], freeze: Sequence[str]) -> None:
    """A name that fits no field was a typo, and must not be taken for a wish that was heard."""
    everything = ("backend", "data")
    fields = [(field.path, run) for run in run_paths(data) for field in mutation_space(data, run, opened=everything)]
    for option, names in (("--only", only), ("--freeze", freeze)):
        for name in names:
            if not any(_covers(name, path, run) for path, run in fields):
                known = [join_path(path[len(run) :]) for path, run in fields] + [join_path(path) for path, _ in fields]
                hint = suggest(name, known, cutoff=0.8) or _list_fields(data)
                raise ConfigError(Problem(f"{option} {name} names no field that may change", hint=hint))


def _list_fields(data: dict[str, Any]) -> str:
    names = [join_path(field.path[len(run) :]) for run in run_paths(data) for field in mutation_space(data, run)]
    if not names:
        return "Its recipe has no schema that says what is legal: give it a Config with bounds, choices or booleans."
    return f"These may change: {', '.join(dict.fromkeys(names))}."
