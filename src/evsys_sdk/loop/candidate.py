"""The experiment of one round: the system's template with the round's data, hold-out and starting weights filled in."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, cast

from ..config import ExperimentConfig, validate_yaml
from ..config.yaml_text import read_yaml_file, write_yaml
from ..deploy.deployers.openai_server import WEIGHTS
from ..deploy.deployments import Deployment
from ..errors import ConfigError, Problem
from ..files import write_text
from .system import SystemConfig

HOLDOUT = "holdout"
"""Label of the held-out tasks in the metrics: `test/holdout/pass@1`."""


def scaffold(
    system: SystemConfig, made: dict[str, Any], live: Deployment | None, hypothesis: str, folder: Path
) -> Path:
    """Write the config of a round; the same round always gives the same file."""
    data = _read_template(system.experiment)
    data["name"] = f"{system.name}-round-{made['number']}"
    metadata: dict[str, Any] = data.setdefault("metadata", {})
    metadata.setdefault("hypothesis", hypothesis)
    given: Any = metadata.get("benchmark") or []
    entries = cast(list[dict[str, Any]], given if isinstance(given, list) else [given])
    holdout: dict[str, Any] = {"name": HOLDOUT, "id": made["benchmark"], "split": "test", "metrics": ["pass@1"]}
    if system.traces.max_tokens is not None:
        holdout["max_tokens"] = system.traces.max_tokens
    # The model before training is what is live, so this is how candidate and live weights answer the same tasks.
    metadata["benchmark"] = [{"models": ["base"], **entry} for entry in [*entries, holdout]]
    run: dict[str, Any] = data["run"]
    before: dict[str, Any] = run.get("data") or {}
    transforms = before.get("transforms")
    run["data"] = {"dataset_id": made["dataset"], **({"transforms": transforms} if transforms else {})}
    if live is not None:
        run["model"] = {**run["model"], "init_from_checkpoint": str(weights_of(live))}
    path = folder / f"round-{made['number']}.yaml"
    write_text(path, write_yaml(data), verbatim=True)
    return path


def load_candidate(path: Path) -> ExperimentConfig:
    """The experiment of a round, checked before anything is spent."""
    return validate_yaml(path, deep=True)


def weights_of(live: Deployment) -> Path:
    """The weights of a deployment, as a backend opens them."""
    folder = Path(live.location)
    return folder / WEIGHTS if (folder / WEIGHTS).is_dir() else folder


def _read_template(path: str) -> dict[str, Any]:
    found = read_yaml_file(Path(path)).data
    if not isinstance(found, dict) or not isinstance(cast(dict[str, Any], found).get("run"), dict):
        hint = "Give it one `run`; data, starting weights and the held-out tasks are filled in."
        raise ConfigError(Problem("the template of an experiment must have `run`", file=path, hint=hint))
    return copy.deepcopy(cast(dict[str, Any], found))
