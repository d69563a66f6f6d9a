"""Checks of what transforms make of the raw rows."""

from __future__ import annotations

from collections.abc import Iterator

from ....data import describe_source
from ....errors import Problem
from .context import Context


def rows_lost_in_filters(context: Context) -> Iterator[Problem]:
    """A filter, sample or dedupe that leaves almost no rows."""
    for one in context.sources:
        pulled, data = one.pulled, one.stage.data
        if pulled is None or data is None or not pulled.complete:
            continue
        at = next((at for at, spec in enumerate(data.transforms) if spec.kind in ("filter", "sample", "dedupe")), None)
        if at is not None and len(pulled.rows) < 8 and pulled.read >= 20 * max(len(pulled.rows), 1):
            message = f"{len(pulled.rows)} of {pulled.read} rows of {describe_source(data)} are left"
            hint = "Check its conditions, its key, and the spelling of values."
            yield Problem(message, f"{one.place}.transforms[{at}]", hint=hint)
