"""Where rows come from: their source, or the rows and the transforms they were made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from pydantic import Field

from ..config.base import KindSpec, Strict
from ..record.jsonable import dump_json
from ..registry import config_model, get_transform
from .code_hash import code_hash

ADDED: Final = "added"
PATH: Final = "path"
DERIVED: Final = "derived"


class TransformRecord(Strict):
    """One transform that was applied, precisely enough to tell whether it would do the same today."""

    kind: str
    """Registered name of the transform."""
    params: dict[str, Any] = {}
    """Its params, defaults included."""
    code: str
    """Hash of the code behind it."""


class Lineage(Strict):
    """Where cached rows come from."""

    origin: str = Field(min_length=1)
    """`added` by hand, read from a `path`, `derived` by transforms, or the name of the source they were pulled from."""
    source: str = ""
    """Where they were read: a path (below the project where possible) or an address."""
    parent: str | None = None
    """Id of the rows the transforms were applied to."""
    transforms: tuple[TransformRecord, ...] = ()
    """What was applied to the parent, in order."""


def record_transforms(specs: Sequence[KindSpec]) -> tuple[TransformRecord, ...]:
    """What a chain of transforms is: the same records mean the same rows from the same parent."""
    return tuple(_record(spec) for spec in specs)


def _record(spec: KindSpec) -> TransformRecord:
    transform = get_transform(spec.kind)
    config = config_model(transform)
    params = config.model_validate(spec.params).model_dump(mode="json") if config else spec.params
    plain = json.loads(dump_json(params, f"params of transform '{spec.kind}'"))
    return TransformRecord(kind=spec.kind, params=plain, code=code_hash(transform))
