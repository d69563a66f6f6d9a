"""The record of an experiment -> its `ExperimentSummary`."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..record.reader import ExperimentRecord
from ..record.runs import config_runs
from ..record.values import Object, items, number, part, text
from ..redact import redact, redact_text
from .outcome import Outcome, outcome_of
from .summary import ExperimentSummary, Failure

_KEPT_FAILURES = 5
_KEPT_NOTES = 20
_LONGEST_TEXT = 600


def summarize(record: ExperimentRecord) -> ExperimentSummary:
    """One experiment in a few fields; `unfinished` is left to whoever asks when to tell running from killed."""
    config, arms, start = record.config or {}, record.runs, record.start
    metadata, runs = part(config, "metadata"), config_runs(config)
    outcome = outcome_of(record.conclusion, config, arms)
    best, problems = outcome.best, [arm for arm in arms if arm.problem]
    return ExperimentSummary(
        id=record.experiment_id or record.folder.name,
        name=text(config.get("name")) or start.text("name") or record.folder.name,
        path=str(record.folder),
        status="damaged" if record.config is None else record.ending,
        started=record.began,
        ended=record.ended,
        hypothesis=_short(hypothesis_of(config)),
        description=_short(text(config.get("description"))),
        verdict=outcome.verdict,
        sentence=_short(outcome.sentence),
        next=_short(outcome.next),
        metric=outcome.metric,
        mode=outcome.mode,
        best_run=outcome.best_run,
        best_score=best.score if best else None,
        best_low=best.low if best else None,
        best_high=best.high if best else None,
        best_seeds=best.n_seeds if best else 0,
        best_tasks=best.n_tasks if best else None,
        best_covers=best.covers if best else "",
        n_runs=len({arm.run for arm in arms}),
        n_arms=len(arms),
        n_seeds=max(Counter(arm.run for arm in arms).values(), default=0),
        n_done=sum(arm.status == "completed" and not arm.unscored for arm in arms),
        failures=[Failure(arm.name, _short(redact_text(arm.problem))) for arm in problems[:_KEPT_FAILURES]],
        n_failures=len(problems),
        spend=record.spend,
        tags=_texts(metadata.get("tags")) or _texts(start.get("tags")),
        parent_id=text(config.get("parent_experiment_id")),
        notes=record.notes[-_KEPT_NOTES:],
        invalidated=record.invalidated,
        flags=record.flags,
        models=_kinds(text(part(run, "model").get("name")) for run in runs),
        algorithms=_kinds(text(part(run, "algorithm").get("kind")) for run in runs),
        backends=_kinds(text(part(run, "backend").get("kind")) for run in runs),
        params=best_params(runs, outcome),
        varied=varied_paths(runs),
        config_sha256=start.text("config_sha256") or _sha256(config),
    )


def hypothesis_of(config: Object) -> str:
    """The claim, however it was written."""
    metadata = part(config, "metadata")
    return text(metadata.get("hypothesis")) or text(part(metadata, "hypothesis").get("claim"))


def best_params(runs: Sequence[Object], outcome: Outcome) -> dict[str, Any]:
    """The params of the best run's algorithm, flat; of the first run's where none is best."""
    chosen = next((run for run in runs if run.get("name") == outcome.best_run), runs[0] if runs else {})
    return scalars(redact(part(chosen, "algorithm", "params")))


def scalars(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested data as dotted names and plain values; lists are written out as text."""
    found: dict[str, Any] = {}
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, Mapping):
            found |= scalars(part({"it": inner}, "it"), f"{name}.")
        elif isinstance(inner, list):
            found[name] = _short(json.dumps(inner, default=str), 80)
        elif inner is not None and not (isinstance(inner, float) and number(inner) is None):
            found[name] = _short(inner, 80) if isinstance(inner, str) else inner
    return found


def varied_paths(runs: Sequence[Object], most: int = 8) -> list[str]:
    """The dotted paths in which the runs of an experiment differ."""
    flat = [scalars({key: value for key, value in run.items() if key != "name"}) for run in runs[:200]]
    names = dict.fromkeys(name for one in flat for name in one)
    return [name for name in names if any(one.get(name) != flat[0].get(name) for one in flat)][:most]


def _kinds(names: Any) -> list[str]:
    return list(dict.fromkeys(name for name in names if name))


def _texts(value: Any) -> list[str]:
    return [one for one in items(value) if isinstance(one, str)]


def _short(value: str, most: int = _LONGEST_TEXT) -> str:
    return value if len(value) <= most else f"{value[: most - 1]}…"


def _sha256(config: Object) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest() if config else ""
