"""Where everything is: the one table of the files and folders that experiments leave behind.

    <root>/                               output_dir: the folder that experiments share
      <experiment>/                       ExperimentFiles; <experiment>.2, .3 ... for later attempts
        <arm>/                            RunFiles: one run with one seed
          logs/                           LogFiles

    RunFiles(run_dir).scores              <run_dir>/scores.jsonl
    ExperimentFiles.journal.name          journal.jsonl

No other module spells one of these names; paths come from here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self, overload


class Place:
    """A file or folder of a fixed name, as an attribute of the class that knows the folder it is in."""

    def __init__(self, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, files: None, kind: type) -> Self: ...
    @overload
    def __get__(self, files: LogFiles | RunFiles | ExperimentFiles, kind: type) -> Path: ...
    def __get__(self, files: LogFiles | RunFiles | ExperimentFiles | None, kind: type) -> Self | Path:
        return self if files is None else files.folder / self.name

    def below(self, folder: Path) -> str:
        """The same as text, for who opens thousands: making a `Path` takes longer than opening a file."""
        return f"{folder}/{self.name}"


@dataclass(frozen=True)
class LogFiles:
    """What log store and callbacks write, at the top of `logs/` or sorted into the folders below it."""

    folder: Path

    metrics = Place("metrics.jsonl")
    """One line a step, and in the folder of a split one line a scoring."""
    timing = Place("timing.jsonl")
    """What differs each time the same run is repeated."""
    rollouts = Place("rollouts.jsonl")
    """The single predictions behind the scores of a split; in the folder of training, what was learned from."""
    rollout_timing = Place("rollout_timing.jsonl")
    """How long the attempts of each step took, in the same order."""
    hyperparams = Place("hyperparams.json")
    artifacts = Place("artifacts.jsonl")
    hypothesis = Place("hypothesis.md")
    conclusion = Place("conclusion.md")
    training = Place("training")
    training_data = Place("data/training_data.jsonl")

    def below(self, name: str) -> LogFiles:
        """The same in a folder below."""
        return LogFiles(self.folder / name)

    def of_split(self, split: str) -> LogFiles:
        """Where the scorings of a split go."""
        return self.below(_SPLITS.get(split) or re.sub(r"[^\w.-]", "_", split).lstrip(".") or "other")

    def find_below(self, pattern: str = "*.jsonl") -> list[Path]:
        """The files of records in the folders below; those of the data are no records of a step."""
        data = self.training_data.parent
        return [path for path in sorted(self.folder.glob(f"*/{pattern}")) if path.parent != data]


_SPLITS = {"val": "validation", "eval": "validation", "test": "test", "train_fit": "train_fit"}


@dataclass(frozen=True)
class RunFiles:
    """The folder of one arm."""

    folder: Path

    config = Place("config.json")
    starts = Place("starts.jsonl")
    """When it was started, and how often."""
    progress = Place("progress.json")
    """The planned steps, for observers."""
    datasets = Place("datasets.json")
    """Which rows it used."""
    examples = Place("rendered_examples.md")
    """The first examples, token for token."""
    benchmarks = Place("benchmarks.json")
    """What it is scored on."""
    identity = Place("identity.json")
    """What it is made of: starting weights, code, package versions."""
    checkpoints = Place("checkpoints.jsonl")
    dropped_checkpoints = Place("dropped_checkpoints.json")
    """Names of those whose weights were removed to save room."""
    stored = Place("checkpoints")
    """Where backends on this machine store weights."""
    late_scores = Place("scores.json")
    """Step -> metric -> value: scores that were known only after the checkpoint of their step was written."""
    scores = Place("scores.jsonl")
    """Every scoring, with the value of each task."""
    prompt_calls = Place("prompt_calls.jsonl")
    """Every call of a search for a prompt."""
    prompts = Place("prompts.json")
    """The prompts that such a search found."""
    result = Place("run_result.json")
    """How it ended; missing while it continues."""
    lock = Place(".lock")
    _logs = Place("logs")
    _predictions = Place("benchmarks")

    @property
    def logs(self) -> LogFiles:
        return LogFiles(self._logs)

    def predictions(self, benchmark: str, step: int) -> Path:
        """The answers behind one scoring of a benchmark, whose name is fit for a folder."""
        return self._predictions / benchmark / f"step{step:06d}.jsonl"

    def all_predictions(self) -> list[Path]:
        """The answers behind every scoring."""
        return sorted(self._predictions.glob("*/step*.jsonl"))


@dataclass(frozen=True)
class ExperimentFiles:
    """The folder of one attempt at an experiment."""

    folder: Path

    config = Place("config.json")
    """The resolved config; a folder is an experiment from the moment it is there."""
    journal = Place("journal.jsonl")
    spend = Place("spend.jsonl")
    conclusion = Place("conclusion.json")
    conclusion_page = Place("conclusion.md")
    console = Place("console.log")
    """What an experiment in the background prints."""
    lock = Place(".lock")
    _baselines = Place(".baselines")

    def run(self, arm: str) -> RunFiles:
        return RunFiles(self.folder / arm)

    def baseline(self, scoring: str) -> Path:
        """The answers of a model that all arms are compared with; they share them. No arm can have this name."""
        return self._baselines / f"{scoring}.jsonl"

    def all_baselines(self) -> list[Path]:
        """The answers of every such model."""
        return sorted(self._baselines.glob("*.jsonl"))

    @property
    def baselines_lock(self) -> Path:
        return self._baselines / ExperimentFiles.lock.name


RESERVED_NAMES = tuple(place.name for place in vars(ExperimentFiles).values() if isinstance(place, Place))
"""Files that stand next to the folders of the arms."""

DEFAULT_ROOT = "outputs"
DRY_RUNS = "dry"
"""Below the default root, what `evsys run --dry` leaves: nothing to learn from."""
HISTORY_CACHE = ".history.sqlite3"
"""In each root: what `evsys history` read there."""
OUTPUT_ROOTS = "output_roots.txt"
"""In the project's `.evsys/`: which other folders hold experiments."""
STANDALONE = "benchmarks"
"""Below a root: scorings outside of any experiment, one folder for each benchmark and model."""
SCORING = "result.json"
"""In the folder of such a scoring: its scores."""
SCORINGS = "scorings.txt"
"""In the project's `.evsys/`: where such scorings are."""
CAMPAIGNS = "campaigns"
"""In the project's `.evsys/`: a folder with a journal for each campaign."""
LOOPS = "loop"
"""In the project's `.evsys/`: a folder for each closed loop."""
ALERTS = "alerts"
"""In the project's `.evsys/`: which alerts were delivered; `alerts.yaml` says where they go."""
CLAIMS = "claims.jsonl"
"""In the project's `.evsys/`: every claim that was registered, which stays when the experiment is removed."""
HEADS = "heads.jsonl"
"""In the project's `.evsys/`: how the journals of experiments ended when somebody last looked."""
SEALS, SEALED = "sealed.jsonl", "sealed"
"""In the project's `.evsys/`: which task files are in use, and a copy of each, named by its hash."""
PROMOTIONS = "promotions.jsonl"
"""In the project's `.evsys/`: which weights were judged, shipped and taken back."""


def lock_beside(file: Path) -> Path:
    """The lock of a file that several processes write."""
    return file.with_name(f".{file.name}{RunFiles.lock.name}")


def run_folders(root: Path) -> list[Path]:
    """The folders of all arms below a root that have ended, in no order."""
    return [path.parent for path in root.glob(f"*/*/{RunFiles.result.name}")]


def find_begun(root: Path) -> list[Path]:
    """The folders of all arms below a root that were begun and have not ended, in no order."""
    begun = (RunFiles(path.parent) for path in root.glob(f"*/*/{RunFiles.starts.name}"))
    return [files.folder for files in begun if not files.result.exists()]


def find_locked(root: Path) -> list[Path]:
    """The experiments below a root that somebody runs or has run."""
    return [path.parent for path in sorted(root.glob(f"*/{ExperimentFiles.lock.name}"))]
