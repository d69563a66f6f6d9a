"""`evsys new-experiment --from PARENT`: the next experiment, with what the last one left open.

Without changes it is the parent's config under a new name, to go on with its question. With `--set` the parent's best
run becomes the run `baseline`, and a copy with the changes the run `candidate`, claimed to be better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from textwrap import wrap
from typing import Any

from ..config import ExperimentConfig, dump_yaml
from ..config.matrix import MatrixSpec, expand_matrix
from ..config.yaml_text import read_yaml
from ..errors import ConfigError, Problem, show
from ..history.detail import Detail, read_detail
from ..history.find import find_experiment
from ..loop.campaigns.campaign import TAG, load_campaign
from ..record.runs import config_runs
from ..record.values import items, part
from .experiment import NewExperiment, place_experiment, write_experiment
from .project import find_project

_MARK = "# "


def derive_experiment(
    slug: str,
    parent: str,
    *,
    changes: Sequence[str] = (),
    claim: str = "",
    campaign: str = "",
    today: date | None = None,
) -> NewExperiment:
    """Write an experiment that goes on from `parent`, which is named as on the command line."""
    root = find_project()
    detail = read_detail(find_experiment(parent))
    parsed = _parse_changes(changes)
    config = _go_on(detail, parsed, claim)
    question = next((one for one in items(detail.conclusion.get("next")) if isinstance(one, str)), "")
    data = {"name": slug, **config, "parent_experiment_id": detail.summary.id}
    metadata = part(data, "metadata") | ({"open_question": question} if question else {})
    data["metadata"] = metadata | {"tags": _tags(metadata, campaign)}
    child = ExperimentConfig.model_validate(data)
    folder = place_experiment(root, slug, today=today)
    text = dump_yaml(child.model_copy(update={"name": folder.name}))
    path, script = write_experiment(folder, f"{_head(detail, question)}{text}")
    return NewExperiment(folder.name, path, script, detail.summary.id, question)


def _tags(metadata: Mapping[str, Any], campaign: str) -> list[str]:
    """The parent's tags, in the campaign that was named; without one, in none: the parent's may be over."""
    kept = [tag for tag in items(metadata.get("tags")) if isinstance(tag, str) and not tag.startswith(TAG)]
    return [*kept, load_campaign(campaign).tag] if campaign else kept


def _go_on(detail: Detail, changes: Mapping[str, Any], claim: str) -> dict[str, Any]:
    """The parent's config, or its best run against a changed copy of it."""
    config = {
        key: value for key, value in detail.config.items() if key not in ("name", "version") and value is not None
    }
    metadata = part(config, "metadata")
    said = metadata.get("hypothesis")
    told: dict[str, Any] = dict(part(metadata, "hypothesis")) or {"claim": said if isinstance(said, str) else ""}
    if not changes:
        told["claim"] = claim or told["claim"]
        hypothesis = {key: value for key, value in told.items() if value not in (None, [], "")}
        return {**config, "metadata": {**metadata, "hypothesis": hypothesis}} if hypothesis.get("claim") else config
    best = next((run for run in config_runs(config) if run.get("name") == detail.chosen_run), None)
    if best is None:
        raise ConfigError(
            Problem(f"{detail.summary.id} has no run to change", hint="Start from an experiment that has been run.")
        )
    changed = expand_matrix(
        MatrixSpec(base_run={**best, "name": "candidate"}, axes={path: [value] for path, value in changes.items()}),
        beside=None,
        experiment="candidate",
    )
    shown = ", ".join(f"{path}={show(value)}" for path, value in changes.items())
    hypothesis = {
        "claim": claim or f"{shown} beats run {detail.chosen_run} of {detail.summary.id}.",
        "baseline": "baseline",
        **{key: told[key] for key in ("metric", "direction", "min_effect") if told.get(key)},
    }
    entries = [part({"it": one}, "it") | {"models": list[str]()} for one in items(metadata.get("benchmark"))]
    kept = {key: value for key, value in config.items() if key not in ("run", "runs", "matrix", "base_run", "search")}
    runs = [{**best, "name": "baseline"}, {**changed[0], "name": "candidate"}]
    return {**kept, "metadata": {**metadata, "hypothesis": hypothesis, "benchmark": entries}, "runs": runs}


def _parse_changes(changes: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for change in changes:
        path, equals, value = change.partition("=")
        if not equals or not path.strip():
            hint = "Write it as algorithm.params.max_steps=120."
            raise ConfigError(Problem("--set needs a path in the run and a value", value=change, hint=hint))
        found[path.strip()] = read_yaml(value).data
    return found


def _head(detail: Detail, question: str) -> str:
    """What a reader must know of the parent, as comments."""
    told = [f"Goes on from {detail.summary.id}, whose verdict was: {detail.summary.verdict or 'none'}."]
    told += [detail.summary.sentence] if detail.summary.sentence else []
    told += [f"Left open: {question}"] if question else []
    lines = [line for sentence in told for line in wrap(sentence, 116)]
    return "".join(f"{_MARK}{line}\n" for line in lines)
