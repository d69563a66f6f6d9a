"""Import training runs of tinker-cookbook as an experiment.

    import_cookbook_runs([Path("/tmp/tinker-examples/sl_basic")], name="sl_basic")

A run folder holds `config.json`, `metrics.jsonl` and `checkpoints.jsonl`. Each becomes a run on the backend `imported`,
which history, compare and the dashboard show. Such a run has no scores by task.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..config import ExperimentConfig
from ..config.base import Strict
from ..data.jsonl import read_json, read_jsonl
from ..data.shapes import is_object
from ..errors import DataError
from ..paths import in_project
from ..protocols import RunContext, RunNotes, RunResult
from ..record.folders import find_attempts
from ..redact import redact
from ..registry import register_algorithm, register_backend
from ..training.services import services_of

if TYPE_CHECKING:
    from .arms.results import ExperimentResult

KIND = "imported"
_LOSSES = ("train_mean_nll", "loss", "loss:sum")
"""Names of the training loss in `metrics.jsonl`."""


@dataclass(frozen=True, slots=True)
class CookbookRun:
    """The content of a run folder of tinker-cookbook."""

    folder: Path
    config: dict[str, Any]
    steps: list[tuple[int, dict[str, float]]]
    """Metrics by step; the first step is 1."""
    checkpoints: list[dict[str, Any]]
    sha256: str

    @property
    def model(self) -> str | None:
        """The trained model."""
        return _find(self.config, "model_name")

    @property
    def hparams(self) -> dict[str, Any]:
        """The settings that are numbers or short strings."""
        return {
            key: value
            for key, value in self.config.items()
            if isinstance(value, bool | int | float)
            or (isinstance(value, str) and len(value) <= 60 and "/" not in value)
        }


def read_cookbook_run(folder: Path) -> CookbookRun:
    """Read a run folder."""
    metrics = folder / "metrics.jsonl"
    config, rows = read_json(folder / "config.json"), list(read_jsonl(metrics))
    if not is_object(config) or not rows:
        raise DataError(f"{folder}: this is no run of tinker-cookbook. Name one with config.json and metrics.jsonl.")
    steps: dict[int, dict[str, float]] = {}
    last = 0
    for row in rows:
        step = row.get("step")
        last = step + 1 if isinstance(step, int) and not isinstance(step, bool) else max(last, 1)
        numbers = {key: float(value) for key, value in row.items() if key != "step" and _is_number(value)}
        steps.setdefault(last, {}).update(numbers)  # a resumed run repeats a step
    saved = folder / "checkpoints.jsonl"
    content = metrics.read_bytes() + (folder / "config.json").read_bytes()
    checkpoints = list(read_jsonl(saved)) if saved.exists() else []
    return CookbookRun(folder, config, sorted(steps.items()), checkpoints, hashlib.sha256(content).hexdigest())


def import_cookbook_runs(folders: Sequence[Path], *, name: str, output_dir: str = "outputs") -> ExperimentResult:
    """Import run folders as the runs of one experiment."""
    from .experiment import Experiment

    if find_attempts(in_project(output_dir) / name):
        raise DataError(f"there is an experiment '{name}' in {output_dir} already. Choose another name.")
    runs = [_run_config(read_cookbook_run(folder)) for folder in folders]
    register_algorithm(KIND)(ImportedRun)
    register_backend(KIND)(ImportedBackend)
    config: dict[str, Any] = {
        "name": name,
        "output_dir": output_dir,
        "runs": runs,
        "metadata": {"tags": [KIND, "tinker-cookbook"]},
        "launcher": {"kind": "local", "params": {"arms_in": "threads"}},  # there is nothing to compute
    }
    return Experiment(ExperimentConfig.model_validate(config)).run()


def _run_config(run: CookbookRun) -> dict[str, Any]:
    if run.model is None:
        raise DataError(f"{run.folder / 'config.json'}: it names no model_name. Add it there.")
    params = {"folder": str(run.folder.resolve()), "sha256": run.sha256, "hparams": redact(run.hparams)}
    return {
        "name": run.folder.resolve().name,
        "data": {"source_kind": "in_memory", "rows": [{"imported_from": run.folder.name, "sha256": run.sha256}]},
        "model": {"name": run.model},
        "algorithm": {"kind": KIND, "params": params},
        "backend": {"kind": KIND},
    }


class ImportedBackend:
    """The backend of runs that another program trained."""

    name: ClassVar[str] = KIND

    def prepare(self, **_: Any) -> dict[str, Any]:
        """Return no handles."""
        return {}

    def teardown(self, handles: dict[str, Any]) -> None:
        """Do nothing."""


class ImportedConfig(Strict):
    """Params of an imported run."""

    folder: str
    """The run folder."""
    sha256: str
    """Hash of its metrics and config."""
    hparams: dict[str, Any] = field(default_factory=dict[str, Any])
    """Settings of the run, for comparisons."""


class ImportedRun:
    """The recipe of an imported run: it reports the recorded metrics."""

    name: ClassVar[str] = KIND
    Config: ClassVar[type[ImportedConfig]] = ImportedConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = ImportedConfig(**params)

    def train(self, ctx: RunContext) -> RunResult:
        """Report the metrics and checkpoints of the run folder."""
        run = read_cookbook_run(Path(self.cfg.folder))
        final: dict[str, float] = {}
        observers = services_of(ctx).observers
        for step, metrics in run.steps:
            loss = next((metrics[name] for name in _LOSSES if name in metrics), None)
            observers.on_step(step, metrics if loss is None else {**metrics, "loss": loss})
            final |= metrics if loss is None else {**metrics, "final_loss": loss}
        final["steps"] = float(run.steps[-1][0])
        last = run.checkpoints[-1] if run.checkpoints else {}
        names = {"final_checkpoint": "state_path", "final_sampler": "sampler_path"}
        artifacts = {ours: str(last[theirs]) for ours, theirs in names.items() if theirs in last}
        reason = None if last.get("name") == "final" else "it has no checkpoint named `final`; it may not have ended"
        return RunResult(ctx.run_id, "completed", final, artifacts, notes=RunNotes(stop_reason=reason))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _find(value: Any, key: str) -> str | None:
    """The first string under a key, at any depth."""
    if not is_object(value):
        return None
    if isinstance(value.get(key), str):
        return str(value[key])
    return next((text for child in value.values() if (text := _find(child, key))), None)
