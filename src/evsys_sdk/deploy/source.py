"""The weights of one arm, found by the name of its experiment, with the facts that the record has about them.

source = find_source("routing")                 # of the latest attempt: best run, first seed, final checkpoint
source = find_source("routing/sft__seed2", checkpoint="final")
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.jsonl import read_json
from ..errors import DataError, show, suggest
from ..history.detail import Detail, read_detail
from ..history.find import find_experiment
from ..record.evidence import check_weights
from ..record.runs import RunRecord
from ..record.values import items, number, part, text

ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
_MOCK_WEIGHTS = "weights.npz"
_CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, slots=True)
class Source:
    """Weights on disk, and the arm that trained them."""

    detail: Detail
    arm: RunRecord
    checkpoint: str
    """Name of the checkpoint."""
    weights: Path
    """Folder of the sampler weights."""

    @property
    def experiment(self) -> str:
        return self.detail.record.experiment_id or self.detail.folder.name

    @property
    def base_model(self) -> str:
        """Name of the base model of the adapter."""
        return text(part(self.arm.result, "hparams", "model").get("name"))

    @property
    def backend(self) -> str:
        """The backend that can load the weights: `local` for an adapter in PEFT's layout, else `mock`."""
        return "local" if (self.weights / ADAPTER).is_file() else "mock"

    @property
    def renderer(self) -> str:
        """Name of the renderer that was used in training."""
        return text(part(self.arm.result, "extras").get("renderer"))

    @property
    def system_prompt(self) -> str:
        """The system prompt that the recipe tuned; empty if it tuned none."""
        return text(part(self.arm.result, "extras").get("system_prompt"))

    @property
    def files(self) -> list[Path]:
        """The files of the weights."""
        return sorted(path for path in self.weights.iterdir() if path.is_file())

    @property
    def sha256(self) -> str:
        """sha256 of the weights file."""
        return hash_weights(self.weights)

    def require_adapter(self, kind: str) -> None:
        """Raise if the weights are not a LoRA adapter of a real model."""
        if self.backend != "local":
            raise DataError(
                f"{self.weights}: these are weights of the mock backend, and '{kind}' ships LoRA adapters of real "
                "models. Use --to openai_server, or train the experiment with the backend local."
            )

    def to_dict(self) -> dict[str, Any]:
        """The origin of the weights, for the record of a deployment."""
        conclusion = self.detail.conclusion
        return {
            "experiment": self.experiment,
            "path": str(self.detail.folder),
            "arm": self.arm.name,
            "checkpoint": self.checkpoint,
            "weights_sha256": self.sha256,
            "base_model": self.base_model,
            "backend": self.backend,
            "renderer": self.renderer,
            "verdict": text(conclusion.get("verdict")),
            "summary": text(conclusion.get("summary")),
        }


def find_source(reference: str, *, checkpoint: str = "final") -> Source:
    """Find the weights of an experiment, or of an arm given as EXPERIMENT/ARM or by its folder."""
    experiment, arm_name = _split(reference)
    detail = read_detail(experiment)
    arm = _choose_arm(detail, arm_name)
    name, weights = _find_weights(arm, checkpoint)
    check_weights(weights)
    return Source(detail, arm, name, weights)


def _split(reference: str) -> tuple[Path, str]:
    try:
        # An experiment is tried first, because paths of experiments contain slashes too.
        return find_experiment(reference), ""
    except DataError as error:
        whole, _, last = reference.rstrip("/").rpartition("/")
        if not whole:
            raise
        try:
            return find_experiment(whole), last
        except DataError:
            raise error from None


def _choose_arm(detail: Detail, name: str) -> RunRecord:
    """The arm with this name; without a name, the first completed seed of the best run.

    Seeds are not chosen by score, which would add selection bias.
    """
    arms = [arm for arm in detail.arms if arm.name == name] if name else detail.chosen_arms
    if not arms and name:
        arms = [arm for arm in detail.arms if arm.run == name]  # the name of a run: its first completed seed
    if not arms:
        names = [arm.name for arm in detail.arms]
        hint = suggest(name, names) or f"It has {', '.join(names) or 'none'}."
        raise DataError(f"{detail.folder}: there is no arm {show(name)}. {hint}")
    completed = [arm for arm in arms if arm.status == "completed"]
    if not completed:
        reason = arms[0].problem or f"it is {arms[0].status}"
        raise DataError(f"{arms[0].folder}: this arm did not complete ({reason}), so it has nothing to ship.")
    return completed[0]


def _find_weights(arm: RunRecord, checkpoint: str) -> tuple[str, Path]:
    refs = {text(line.get("name")): text(line.get("sampler")) for line in arm.checkpoints}
    for label in ("final", "best"):
        if ref := arm.artifacts.get(f"{label}_sampler"):
            refs[label] = ref
    # A run without validation scores has no best checkpoint; its last one is used.
    if "best" not in refs and "final" in refs:
        refs["best"] = refs["final"]
    if checkpoint not in refs:
        hint = suggest(checkpoint, refs) or f"It has {', '.join(refs) or 'none'}."
        raise DataError(f"{arm.folder}: there is no checkpoint {show(checkpoint)}. {hint}")
    ref = Path(refs[checkpoint])
    if "://" in refs[checkpoint]:
        raise DataError(
            f"{arm.folder}: its weights are on a server ({refs[checkpoint]}), not on this disk. Download them first "
            "(tinker checkpoint download) and pass the folder's adapter to the tool of your choice."
        )
    # The record may have been moved, so its own folder is tried before the recorded path.
    places = [arm.folder / _CHECKPOINTS / ref.parent.name / ref.name, ref]
    files = (place / name for place in places for name in (ADAPTER, _MOCK_WEIGHTS))
    weights = next((file.parent for file in files if file.is_file()), None)
    if weights is None:
        raise DataError(f"{places[0]}: the weights of this checkpoint are gone. Name another one with --checkpoint.")
    return ref.parent.name, weights


def hash_weights(folder: Path) -> str:
    """sha256 of the weights file of a checkpoint."""
    return hash_file(folder / (ADAPTER if (folder / ADAPTER).is_file() else _MOCK_WEIGHTS))


def hash_file(path: Path) -> str:
    """sha256 of a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_scores(source: Source) -> list[str]:
    """One line per run of the conclusion with its score, for the model card."""
    conclusion = source.detail.conclusion
    metric = text(conclusion.get("metric"))
    lines: list[str] = []
    for row in items(conclusion.get("runs")):
        run = part({"run": row}, "run")
        mean = number(run.get("mean"))
        if mean is None:
            continue
        low, high = number(run.get("low")), number(run.get("high"))
        interval = "" if low is None or high is None else f" (95 % interval {low:.4g} to {high:.4g})"
        seeds = number(run.get("n_seeds"))
        mark = " **(this run)**" if run.get("name") == source.arm.run else ""
        lines.append(f"`{text(run.get('name'))}`: {metric} {mean:.4g}{interval}, {seeds:g} seed(s){mark}")
    return lines


def read_adapter_config(source: Source) -> dict[str, Any]:
    """The adapter config of PEFT."""
    return part({"it": read_json(source.weights / ADAPTER_CONFIG)}, "it")
