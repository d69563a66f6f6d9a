"""Task sources: libraries that generate tasks and score their answers.

A task source is a verifier that also generates its tasks. A config can name it as a path:

    data: {path: "reasoning_gym:leg_counting?size=500&max_animals=3"}
    benchmark: {path: "reasoning_gym:leg_counting?split=test&size=100"}

The rows are written once to `.evsys/tasks/`, so they are hashed, checked for contamination and audited like other
files. Every row names its source and params as its verifier.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast, runtime_checkable
from urllib.parse import parse_qsl

from ..errors import DataError, UnknownNameError
from ..paths import in_project, workspace_dir
from ..protocols import Row, VerificationResult
from ..registry import config_model, get_verifier, registry

_PATH = re.compile(r"(?P<source>[a-z][a-z0-9_]*):(?P<subject>[A-Za-z0-9_][\w./@,-]*)(?:\?(?P<query>.*))?", re.DOTALL)


@runtime_checkable
class TaskSource(Protocol):
    """A verifier that generates its tasks. Equal params give equal rows with equal ids.

    Its `Config` has the fields `subject` (the part of a path after the colon) and `knobs` (keys of a path that are not
    fields). `version` is part of the name of the rows' file: another version of the library may give other rows.
    """

    name: ClassVar[str]

    @property
    def version(self) -> str: ...
    def make_rows(self) -> Iterator[Row]: ...
    def verify(self, *, completion: str) -> VerificationResult | float: ...


def locate_rows(path: str, *, train: bool = False) -> Path:
    """The file of a config's path: in the project, or generated now by a task source.

    With `train`, tasks that another program solves and scores are refused.
    """
    parsed = _parse(path)
    if parsed is not None and train and hasattr(get_verifier(parsed[0]), "run_tasks"):
        raise DataError(f"{path}: tasks of '{parsed[0]}' are a benchmark only. Name them in metadata.benchmark.")
    return in_project(path) if parsed is None else _write_rows(path, *parsed)


def is_task_source(path: str) -> bool:
    """Whether a config's path names a task source."""
    return _parse(path) is not None


def build_task_source(path: str) -> TaskSource:
    """The task source of a path, with its params."""
    parsed = _parse(path)
    if parsed is None:
        raise DataError(f"{path}: this is not the path of a task source. Write it as 'SOURCE:SUBJECT?param=value'.")
    return _build(path, *parsed)


def _parse(path: str) -> tuple[str, dict[str, Any]] | None:
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    name = match["source"]
    try:
        cls = get_verifier(name) if name in registry("verifier") else None
    except UnknownNameError:
        return None
    if cls is None or not hasattr(cls, "make_rows"):
        return None
    model = config_model(cls)
    fields: set[str] = set() if model is None else set(model.model_fields)
    params: dict[str, Any] = {"subject": match["subject"]}
    knobs: dict[str, Any] = {}
    for key, text in parse_qsl(match["query"] or "", keep_blank_values=True):
        (params if key in fields else knobs)[key] = _value(text)
    return name, params | ({"knobs": knobs} if knobs else {})


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _build(path: str, name: str, params: dict[str, Any]) -> TaskSource:
    from pydantic import ValidationError

    try:
        return cast("TaskSource", get_verifier(name)(**params))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise DataError(f"{path}: {field}: {first['msg']}. Correct the value behind '{field}='.") from error


def _write_rows(path: str, name: str, params: dict[str, Any]) -> Path:
    from .jsonl import write_jsonl

    source = _build(path, name, params)
    try:
        key = hashlib.sha256(json.dumps([name, params, source.version], sort_keys=True).encode()).hexdigest()[:16]
        target = workspace_dir() / "tasks" / f"{name}-{params['subject'].replace('/', '-')}-{key}.jsonl"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            write_jsonl(target, source.make_rows())
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    return target
