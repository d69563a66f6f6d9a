"""Checks of what transforms make of the raw rows."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ....builtins import BUILTINS
from ....config import TransformSpec
from ....data import apply_transforms, build_transforms, describe_source
from ....errors import Problem, show
from ....protocols import Row
from ....registry import get_transform
from ..sources import PulledRows
from .context import Context, StageView

_LEAST = 40
"""Minimum length in characters of the beginning of a text that is recognised."""
_AGAIN = 200
"""Raw rows on which a transform is tried again."""
_HASH = re.compile(r"(?<![\w.])hash\(")


def own_transforms(context: Context) -> Iterator[Problem]:
    """Transforms of the project that drop incomplete rows, cut texts, or give other rows each time."""
    for one in context.sources:
        data, pulled = one.stage.data, one.pulled
        own = [at for at, spec in enumerate(data.transforms) if spec.kind not in BUILTINS["transform"]] if data else []
        if pulled is None or data is None or not own:
            continue
        place = f"{one.place}.transforms[{own[0]}]"
        if found := _changes_by_itself([data.transforms[at] for at in own], data.transforms, pulled):
            hint = "Decide by a digest of the row, e.g. hashlib.sha256, and draw from random.Random(seed)."
            yield Problem(found, place, data.transforms[own[0]].kind, hint)
        if column := _dropped_without(pulled):
            n = pulled.read - len({*pulled.origins})
            message = f"{n} of {pulled.read} rows are dropped, all of them without the column {show(column)}"
            yield Problem(message, place, hint="Fill it in, or drop such rows with the transform `filter` on purpose.")
        if cut := _cut_column(one, pulled):
            message = f"prompts hold only the first {cut[1]} characters of the column {show(cut[0])}"
            yield Problem(message, place, hint="Keep the whole text, or what is asked may be lost.")


def _changes_by_itself(own: Sequence[TransformSpec], every: Sequence[TransformSpec], pulled: PulledRows) -> str | None:
    """Describe transforms whose rows differ between two applications, or between processes."""
    raw = pulled.raw[:_AGAIN]
    once, again = (list(apply_transforms(map(dict[str, object], raw), build_transforms(list(every)))) for _ in range(2))
    if once != again:
        return "it gives other rows each time it is applied"
    with suppress(OSError, TypeError):  # code made by `exec` has no source
        if any(_HASH.search(inspect.getsource(get_transform(spec.kind))) for spec in own):
            return "it decides by hash(), which differs from process to process"
    return None


def _dropped_without(pulled: PulledRows) -> str | None:
    """A column that all kept rows have and no dropped row has."""
    if not pulled.complete or None in pulled.origins or pulled.read > len(pulled.raw):
        return None
    kept, lost, origins = list[Row](), list[Row](), {*pulled.origins}
    for number, row in enumerate(pulled.raw, 1):
        (kept if number in origins else lost).append(row)
    has_all = [name for name in (kept[0] if kept else ()) if all(row.get(name) is not None for row in kept)]
    empty = (name for name in has_all if not any(row.get(name) for row in lost))
    return next(empty, None) if len(lost) >= max(0.1 * pulled.read, 4) else None


def _cut_column(one: StageView, pulled: PulledRows) -> tuple[str, int] | None:
    """A text column of which the prompts contain a beginning of always the same length, and that length."""
    lengths: Counter[tuple[str, int]] = Counter()
    for example in one.examples:
        origin = pulled.origins[example.row]
        row = pulled.raw[origin - 1] if origin is not None and origin <= len(pulled.raw) else {}
        for name, text in row.items():
            if not isinstance(text, str) or len(text) <= _LEAST or text in example.prompt:
                continue
            if (at := example.prompt.find(text[:_LEAST])) >= 0:
                rest = example.prompt[at:]
                same = next(
                    (n for n, pair in enumerate(zip(rest, text, strict=False)) if pair[0] != pair[1]), len(rest)
                )
                lengths[name, same] += 1
    [(cut, count)] = lengths.most_common(1) or [(("", 0), 0)]
    return cut if count >= max(0.3 * len(one.examples), 8) else None


def rows_lost_in_filters(context: Context) -> Iterator[Problem]:
    """A filter, sample or dedupe that leaves almost no rows."""
    for one in context.sources:
        pulled, data = one.pulled, one.stage.data
        if pulled is None or data is None or not pulled.complete:
            continue
        at = next((at for at, spec in enumerate(data.transforms) if spec.kind in ("filter", "sample", "dedupe")), None)
        if at is not None and len(pulled.rows) < 20 and pulled.read >= 10 * max(len(pulled.rows), 1):
            message = f"{len(pulled.rows)} of {pulled.read} rows of {describe_source(data)} are left"
            hint = "Check its conditions, its key, and the spelling of values."
            yield Problem(message, f"{one.place}.transforms[{at}]", hint=hint)
