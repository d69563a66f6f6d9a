"""`evsys new-experiment`: experiments/<yyyymmdd>_<slug>/{config.yaml,run.py}.

A new experiment trains on the project's newest dataset, with the transforms of its `metadata.yaml`, and is scored on
the project's validation and benchmark sets. With `--from` it is derived from an earlier one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import islice
from pathlib import Path
from textwrap import wrap
from typing import Any, cast

from ..config import ExperimentConfig, dump_yaml
from ..config.matrix import MatrixSpec, expand_matrix
from ..config.yaml_text import read_yaml
from ..data.profile import suggest_transforms
from ..data.row_files import read_row_file
from ..data.rows import detect_format
from ..data.workspace.local_folder import LocalFile, LocalFolder, read_metadata
from ..errors import ConfigError, Problem, WorkspaceError, show
from ..files import write_text
from ..history.campaigns.campaign import TAG, load_campaign
from ..history.detail import Detail, read_detail
from ..history.find import find_experiment
from ..record.runs import config_runs
from ..record.values import items, part
from ..registry import registry
from .project import fill_template, find_project

_MODEL, _MOCK_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct", "tiny"
_SLUG = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")
_RUN_EVERY = 10
_RECIPES = {
    "sft": {"max_steps": 30, "batch_size": 16},
    "rl": {"max_steps": 30, "batch_size": 8, "group_size": 8, "sampling": {"max_tokens": 32}},
}


@dataclass(frozen=True, slots=True)
class NewExperiment:
    """The files of a new experiment."""

    name: str
    config: Path
    script: Path
    parent: str | None = None
    open_question: str = ""


def new_experiment(
    slug: str,
    *,
    dataset: str = "",
    claim: str = "",
    backend: str = "mock",
    model: str = "",
    campaign: str = "",
    today: date | None = None,
) -> NewExperiment:
    """Write an experiment on the data of the current project."""
    if backend not in registry("backend"):
        registry("backend").get(backend)  # raises, with the closest name
    root = find_project()
    rows = _choose_dataset(root, dataset)
    transforms: Any = read_metadata(rows.metadata_path).get("transforms")
    first = [row for _, row in islice(read_row_file(rows.path), 1000)]
    transforms = transforms or suggest_transforms(first, str(rows.path))
    algorithm = "rl" if not transforms and detect_format(first[0]) == "harbor_task" else "sft"
    values = {
        "claim": json.dumps(claim or f"Training on {rows.name} raises pass@1 over the model before training."),
        "dataset": rows.name,
        "tags": ", ".join([rows.name, *([f'"{load_campaign(campaign).tag}"'] if campaign else [])]),
        "benchmarks": "\n".join(_benchmark_lines(root, rows.name)),
        "transforms": json.dumps(transforms)[1:-1],  # JSON is YAML, and the template has the brackets
        "algorithm": algorithm,
        "params": json.dumps(_RECIPES[algorithm])[1:-1].replace('"', ""),
        "model": model or (_MOCK_MODEL if backend == "mock" else _MODEL),
        "backend": backend,
    }
    folder = place_experiment(root, slug, today=today)
    config, script = write_experiment(folder, fill_template("config.yaml", {**values, "name": folder.name}))
    return NewExperiment(folder.name, config, script)


def write_experiment(folder: Path, text: str) -> tuple[Path, Path]:
    """Write a config and the script that runs it into the folder of an experiment."""
    config, script = folder / "config.yaml", folder / "run.py"
    write_text(config, text, verbatim=True)
    write_text(script, fill_template("run.py", {"name": folder.name}), verbatim=True)
    return config, script


def place_experiment(root: Path, slug: str, *, today: date | None = None) -> Path:
    """The folder of a new experiment; concurrent agents get different ones."""
    if not _SLUG.fullmatch(slug):
        proposal = re.sub(r"[^a-z0-9]+", "-", slug.lower()).strip("-") or "longer-training"
        raise WorkspaceError(
            f"{show(slug)} cannot name an experiment: use lower-case letters, digits, '-' and '_'. Try '{proposal}'."
        )
    name = f"{today or date.today():%Y%m%d}_{slug}"
    folder = root / "experiments" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()  # atomic: of two concurrent calls, one fails
    except FileExistsError:
        raise WorkspaceError(f"{folder}: this experiment exists already. Choose another slug.") from None
    return folder


def _choose_dataset(root: Path, name: str) -> LocalFile:
    datasets = [file for file in LocalFolder(root).list("dataset") if file.split == "train"]
    if not datasets:
        place = root / "data" / "datasets" / "NAME" / "v1" / "train.jsonl"
        raise WorkspaceError(
            f"this project has no dataset. Put rows into {place}, or start --from an earlier experiment."
        )
    matches = [file for file in datasets if not name or file.name == name]
    if not matches:
        names = ", ".join(sorted({file.name for file in datasets}))
        raise WorkspaceError(f"there is no dataset {show(name)} with a train.jsonl. Choose one of: {names}.")
    first = matches[0].name
    return max((file for file in matches if file.name == first), key=lambda file: file.version)


def _benchmark_lines(root: Path, dataset: str) -> list[str]:
    """The lines of `metadata.benchmark`: the sets whose names begin with the dataset's name, else all."""
    files: Sequence[LocalFile] = LocalFolder(root).list("benchmark")
    sets = [file for file in files if file.name.startswith(dataset)] or files
    if not sets:
        place = root / "data" / "validation" / f"{dataset}_val" / "tasks.jsonl"
        raise WorkspaceError(f"this project has no evaluation tasks. Put some into {place}.")
    lines: list[str] = []
    for file in sorted(sets, key=lambda file: (file.split != "val", file.name)):
        metadata = read_metadata(file.metadata_path)
        purpose = "to choose by, during training" if file.split == "val" else "to report on, once after training"
        lines += [
            f"    - name: {file.name}              # {purpose}",
            f"      split: {file.split}",
            "      max_tokens: 24",
        ]
        lines.append(f"      run_every: {_RUN_EVERY}" if file.split == "val" else "      models: [base]")
        for key in ("metrics", "breakdown_keys"):
            if isinstance(metadata.get(key), list):
                lines.append(f"      {key}: [{', '.join(map(str, cast('list[Any]', metadata[key])))}]")
    return lines


# `evsys new-experiment --from PARENT`: derive the next experiment.
#
# Its claim compares with the parent's best run. Without changes it has the parent's runs, to be edited, and the
# parent's record is the baseline. With `--set`, the best run is trained again as `baseline`,
# and a changed copy as `candidate`.

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
    """Write an experiment derived from `parent`, a path, id or name."""
    root = find_project()
    detail = read_detail(find_experiment(parent))
    parsed = _parse_changes(changes)
    config = _derive_config(detail, parsed, claim)
    question = next((step for step in items(detail.conclusion.get("next")) if isinstance(step, str)), "")
    data = {"name": slug, **config, "parent_experiment_id": detail.view.id}
    metadata = part(data, "metadata") | ({"open_question": question} if question else {})
    data["metadata"] = metadata | {"tags": _tags(metadata, campaign)}
    child = ExperimentConfig.model_validate(
        data
    )  # before creating the folder, so that an invalid config leaves no files
    folder = place_experiment(root, slug, today=today)
    text = dump_yaml(child.model_copy(update={"name": folder.name}))
    path, script = write_experiment(folder, f"{_head(detail, question)}{text}")
    return NewExperiment(folder.name, path, script, detail.view.id, question)


def _tags(metadata: Mapping[str, Any], campaign: str) -> list[str]:
    """The parent's tags, with the tag of `campaign` instead of the parent's campaign."""
    tags = [tag for tag in items(metadata.get("tags")) if isinstance(tag, str) and not tag.startswith(TAG)]
    return [*tags, load_campaign(campaign).tag] if campaign else tags


def _derive_config(detail: Detail, changes: Mapping[str, Any], claim: str) -> dict[str, Any]:
    """The parent's config, or its best run against a changed copy of it."""
    config = {
        key: value for key, value in detail.config.items() if key not in ("name", "version") and value is not None
    }
    metadata = part(config, "metadata")
    text = metadata.get("hypothesis")
    parent_hypothesis: dict[str, Any] = dict(part(metadata, "hypothesis")) or {
        "claim": text if isinstance(text, str) else ""
    }
    if not changes:
        inherited = {
            key: value for key, value in parent_hypothesis.items() if value not in (None, [], "") and key != "baseline"
        }
        inherited["claim"] = claim or f"This change beats run {detail.chosen_run} of {detail.view.id}."
        return {**config, "metadata": {**metadata, "hypothesis": inherited}}
    best = next((run for run in config_runs(config) if run.get("name") == detail.chosen_run), None)
    if best is None:
        raise ConfigError(
            Problem(f"{detail.view.id} has no run to change", hint="Start from an experiment that has been run.")
        )
    changed = expand_matrix(
        MatrixSpec(base_run={**best, "name": "candidate"}, axes={path: [value] for path, value in changes.items()}),
        shared_base=None,
        experiment="candidate",
    )
    shown = ", ".join(f"{path}={show(value)}" for path, value in changes.items())
    hypothesis = {
        "claim": claim or f"{shown} beats run {detail.chosen_run} of {detail.view.id}.",
        "baseline": "baseline",
        **{key: parent_hypothesis[key] for key in ("metric", "direction", "min_effect") if parent_hypothesis.get(key)},
    }
    shared = {key: value for key, value in config.items() if key not in ("run", "runs", "matrix", "base_run", "search")}
    runs = [{**best, "name": "baseline"}, {**changed[0], "name": "candidate"}]
    return {**shared, "metadata": {**metadata, "hypothesis": hypothesis}, "runs": runs}


def _parse_changes(changes: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for change in changes:
        path, equals, value = change.partition("=")
        if not equals or not path.strip():
            hint = "Write it as algorithm.params.max_steps=120."
            raise ConfigError(Problem("--set needs a path in the run and a value", value=change, hint=hint))
        values[path.strip()] = read_yaml(value).data
    return values


def _head(detail: Detail, question: str) -> str:
    """The parent, its verdict and its open question, as YAML comments."""
    sentences = [f"Derived from {detail.view.id}, whose verdict was: {detail.view.verdict or 'none'}."]
    sentences += [detail.view.sentence] if detail.view.sentence else []
    sentences += [f"Left open: {question}"] if question else []
    lines = [line for sentence in sentences for line in wrap(sentence, 116)]
    return "".join(f"{_MARK}{line}\n" for line in lines)
