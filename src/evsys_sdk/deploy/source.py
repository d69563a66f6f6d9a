"""What is shipped: the weights of one arm, found by the name of its experiment, with all that the record knows of them.

source = find_source("routing")                 # of the latest attempt: best run, first seed, best checkpoint
source = find_source("routing/sft__seed2", checkpoint="final")
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
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
    """Weights on disk and the arm that trained them."""

    detail: Detail
    arm: RunRecord
    checkpoint: str
    """Name of the checkpoint."""
    weights: Path
    """The folder with the sampler's weights."""

    @property
    def experiment(self) -> str:
        return self.detail.record.experiment_id or self.detail.folder.name

    @property
    def base_model(self) -> str:
        """The model that the adapter belongs to."""
        return text(part(self.arm.result, "hparams", "model").get("name"))

    @property
    def backend(self) -> str:
        """Who can open the weights: `mock`, or `local` for an adapter in PEFT's layout."""
        return "local" if (self.weights / ADAPTER).is_file() else "mock"

    @property
    def renderer(self) -> str:
        """How conversations became tokens in training."""
        return text(part(self.arm.result, "extras").get("renderer"))

    @property
    def system_prompt(self) -> str:
        """What the recipe tuned instead of weights, or next to them."""
        return text(part(self.arm.result, "extras").get("system_prompt"))

    @property
    def files(self) -> list[Path]:
        """The files of the weights."""
        return sorted(path for path in self.weights.iterdir() if path.is_file())

    @property
    def sha256(self) -> str:
        """The hash of what holds the numbers."""
        return hash_weights(self.weights)

    def require_adapter(self, kind: str) -> None:
        """Refuse weights that are no adapter of a real model."""
        if self.backend != "local":
            raise DataError(
                f"{self.weights}: these are weights of the mock backend, and '{kind}' ships LoRA adapters of real "
                "models. Use --to openai_server, or train the experiment with the backend local."
            )

    def to_dict(self) -> dict[str, Any]:
        """Where the weights came from, for the record of a deployment."""
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


def find_source(reference: str, *, checkpoint: str = "final", roots: Sequence[Path] | None = None) -> Source:
    """The weights that `reference` names: an experiment, or one of its arms as EXPERIMENT/ARM or by its folder."""
    experiment, arm_name = _split(reference, roots)
    detail = read_detail(experiment)
    arm = _choose_arm(detail, arm_name)
    name, weights = _find_weights(arm, checkpoint)
    check_weights(weights)
    return Source(detail, arm, name, weights)


def _split(reference: str, roots: Sequence[Path] | None) -> tuple[Path, str]:
    try:
        # As an experiment first: folders have slashes in their names too, and only what is none can be EXPERIMENT/ARM.
        return find_experiment(reference, roots), ""
    except DataError as error:
        whole, _, last = reference.rstrip("/").rpartition("/")
        if not whole:
            raise
        try:
            return find_experiment(whole, roots), last
        except DataError:
            raise error from None


def _choose_arm(detail: Detail, name: str) -> RunRecord:
    """The arm of a name; without one, the first seed of the best run, so that no score chooses among its seeds."""
    arms = [arm for arm in detail.arms if arm.name == name] if name else detail.chosen_arms
    if not arms and name:
        arms = [arm for arm in detail.arms if arm.run == name]  # a run, of which the first seed is meant
    if not arms:
        known = [arm.name for arm in detail.arms]
        hint = suggest(name, known) or f"It has {', '.join(known) or 'none'}."
        raise DataError(f"{detail.folder}: there is no arm {show(name)}. {hint}")
    done = [arm for arm in arms if arm.status == "completed"]
    if not done:
        reason = arms[0].problem or f"it is {arms[0].status}"
        raise DataError(f"{arms[0].folder}: this arm did not complete ({reason}), so it has nothing to ship.")
    return done[0]


def _find_weights(arm: RunRecord, wanted: str) -> tuple[str, Path]:
    refs = {text(line.get("name")): text(line.get("sampler")) for line in arm.checkpoints}
    for label in ("final", "best"):
        if ref := arm.artifacts.get(f"{label}_sampler"):
            refs[label] = ref
    # A run without anything to choose by has no best checkpoint but its last.
    if "best" not in refs and "final" in refs:
        refs["best"] = refs["final"]
    if wanted not in refs:
        hint = suggest(wanted, refs) or f"It has {', '.join(refs) or 'none'}."
        raise DataError(f"{arm.folder}: there is no checkpoint {show(wanted)}. {hint}")
    ref = Path(refs[wanted])
    if "://" in refs[wanted]:
        raise DataError(
            f"{arm.folder}: its weights are on a server ({refs[wanted]}), not on this disk. Download them first "
            "(tinker checkpoint download) and pass the folder's adapter to the tool of your choice."
        )
    # The record may have been moved since: its own folder is looked at first.
    places = [arm.folder / _CHECKPOINTS / ref.parent.name / ref.name, ref]
    found = next((place for place in places if _is_complete(place)), None)
    if found is None:
        raise DataError(f"{places[0]}: the weights of this checkpoint are gone. Name another one with --checkpoint.")
    return ref.parent.name, found


def _is_complete(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (ADAPTER, _MOCK_WEIGHTS))


def hash_weights(folder: Path) -> str:
    """sha256 of the file of a checkpoint that holds the numbers."""
    return hash_file(folder / (ADAPTER if (folder / ADAPTER).is_file() else _MOCK_WEIGHTS))


def hash_file(path: Path) -> str:
    """sha256 of a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_scores(source: Source) -> list[str]:
    """What the conclusion says of the run, one line each, for the model card."""
    conclusion = source.detail.conclusion
    metric = text(conclusion.get("metric"))
    lines: list[str] = []
    for one in items(conclusion.get("runs")):
        run = part({"run": one}, "run")
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
    """PEFT's description of the adapter."""
    return part({"it": read_json(source.weights / ADAPTER_CONFIG)}, "it")
