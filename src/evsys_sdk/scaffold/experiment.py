"""`evsys new-experiment`: experiments/<yyyymmdd>_<slug>/{config.yaml,run.py}.

The first one is made for the data of the project: its newest dataset, with the transforms that its `metadata.yaml`
names, scored on its validation and benchmark sets. Later ones start `--from` an earlier one (see `child.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, cast

from ..data.jsonl import read_jsonl
from ..data.rows import detect_format
from ..data.workspace.local_folder import LocalFile, LocalFolder, read_metadata
from ..errors import WorkspaceError, show
from ..files import write_text
from ..loop.campaigns.campaign import load_campaign
from ..registry import registry
from .project import find_project
from .templates import fill_template

_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
_SLUG = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")
_RUN_EVERY = 10
_RECIPES = {
    "sft": {"max_steps": 30, "batch_size": 16},
    "rl": {"max_steps": 30, "batch_size": 8, "group_size": 8, "sampling": {"max_tokens": 32}},
}


@dataclass(frozen=True, slots=True)
class NewExperiment:
    """An experiment that was just written."""

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
    """Write an experiment on the data of the project one is in."""
    if backend not in registry("backend"):
        registry("backend").get(backend)  # raises, with the closest name
    root = find_project()
    rows = _choose_dataset(root, dataset)
    transforms: Any = read_metadata(rows.metadata_path).get("transforms") or _propose_transforms(rows)
    algorithm = "rl" if not transforms and _format_of(rows) == "harbor_task" else "sft"
    values = {
        "claim": json.dumps(claim or f"Training on {rows.name} raises pass@1 over the model before training."),
        "dataset": rows.name,
        "tags": ", ".join([rows.name, *([f'"{load_campaign(campaign).tag}"'] if campaign else [])]),
        "benchmarks": "\n".join(_benchmark_lines(root, rows.name)),
        "transforms": json.dumps(transforms)[1:-1],
        "algorithm": algorithm,
        "params": json.dumps(_RECIPES[algorithm])[1:-1].replace('"', ""),
        "model": model or _MODEL,
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
    """The folder of a new experiment; several agents may ask at once, and each gets one of its own."""
    if not _SLUG.fullmatch(slug):
        proposal = re.sub(r"[^a-z0-9]+", "-", slug.lower()).strip("-") or "longer-training"
        raise WorkspaceError(
            f"{show(slug)} cannot name an experiment: use lower-case letters, digits, '-' and '_'. Try '{proposal}'."
        )
    name = f"{today or date.today():%Y%m%d}_{slug}"
    folder = root / "experiments" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()  # of two that make it at the same time, one fails
    except FileExistsError:
        raise WorkspaceError(f"{folder}: this experiment exists already. Choose another slug.") from None
    return folder


def _choose_dataset(root: Path, name: str) -> LocalFile:
    found = [file for file in LocalFolder(root).list("dataset") if file.split == "train"]
    if not found:
        place = root / "data" / "datasets" / "NAME" / "v1" / "train.jsonl"
        raise WorkspaceError(
            f"this project has no dataset. Put rows into {place}, or start --from an earlier experiment."
        )
    wanted = [file for file in found if not name or file.name == name]
    if not wanted:
        names = ", ".join(sorted({file.name for file in found}))
        raise WorkspaceError(f"there is no dataset {show(name)} with a train.jsonl. Choose one of: {names}.")
    first = wanted[0].name
    return max((file for file in wanted if file.name == first), key=lambda file: file.version)


def _format_of(rows: LocalFile) -> str:
    return next((detect_format(row) or "" for row in read_jsonl(rows.path)), "")


def _propose_transforms(rows: LocalFile) -> list[dict[str, Any]]:
    """What makes conversations of raw rows, for the user to correct: its first text asks, its second answers."""
    if _format_of(rows) in ("chat_messages", "harbor_task"):
        return []
    first = next(iter(read_jsonl(rows.path)), dict[str, Any]())
    texts = [key for key, value in first.items() if isinstance(value, str)]
    if len(texts) < 2:
        raise WorkspaceError(
            f"{rows.path}: its first row has no two texts to ask and to answer with. Say how rows become "
            f"conversations: add `transforms:` to {rows.path.parent / 'metadata.yaml'}."
        )
    params = {"user_template": f"{{{texts[0]}}}", "assistant_template": f"{{{texts[1]}}}"}
    return [{"kind": "jsonl_to_chat", "params": params}]


def _benchmark_lines(root: Path, dataset: str) -> list[str]:
    """The entries of `metadata.benchmark`: the sets that begin with the dataset's name, or else all."""
    files: Sequence[LocalFile] = LocalFolder(root).list("benchmark")
    own = [file for file in files if file.name.startswith(dataset)] or files
    if not own:
        place = root / "data" / "validation" / f"{dataset}_val" / "tasks.jsonl"
        raise WorkspaceError(f"this project has no tasks to be judged by. Put some into {place}.")
    lines: list[str] = []
    for file in sorted(own, key=lambda one: (one.split != "val", one.name)):
        metadata = read_metadata(file.metadata_path)
        why = "to choose by, while training goes on" if file.split == "val" else "to report on, once after training"
        lines += [f"    - name: {file.name}              # {why}", f"      split: {file.split}", "      max_tokens: 24"]
        lines.append(f"      run_every: {_RUN_EVERY}" if file.split == "val" else "      models: [base]")
        for key in ("metrics", "breakdown_keys"):
            if isinstance(metadata.get(key), list):
                lines.append(f"      {key}: [{', '.join(map(str, cast('list[Any]', metadata[key])))}]")
    return lines
