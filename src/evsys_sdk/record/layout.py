"""The names of all files and folders that experiments write.

    <root>/                               output_dir: the folder that experiments share
      <experiment>/                       ExperimentFiles; <experiment>.2, .3 ... for later attempts
        <arm>/                            RunFiles: one run with one seed
          logs/                           LogFiles

    RunFiles(run_dir).scores              <run_dir>/scores.jsonl
    ExperimentFiles.journal.name          journal.jsonl

No other module spells these names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self, overload


class Place:
    """A file or folder with a fixed name; on an instance of the class that declares it, its path."""

    def __init__(self, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, files: None, kind: type) -> Self: ...
    @overload
    def __get__(self, files: _Files, kind: type) -> Path: ...
    def __get__(self, files: _Files | None, kind: type) -> Self | Path:
        return self if files is None else files.folder / self.name

    def below(self, folder: Path) -> str:
        """The path as `str`, because making a `Path` takes longer than opening a file."""
        return f"{folder}/{self.name}"


class _Files:
    """A folder with files of fixed names. No dataclass, because every command would wait for three to be made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder


class LogFiles(_Files):
    """The files that log stores and callbacks write, in `logs/` or one of its folders."""

    metrics = Place("metrics.jsonl")
    """One line per step; in the folder of a split, one line per scoring."""
    timing = Place("timing.jsonl")
    """Measurements that differ between repetitions of the same run."""
    rollouts = Place("rollouts.jsonl")
    """The predictions behind the scores of a split; in the folder of training, the rollouts that were trained on."""
    rollout_timing = Place("rollout_timing.jsonl")
    """Seconds per rollout of each step, in the same order."""
    hyperparams = Place("hyperparams.json")
    artifacts = Place("artifacts.jsonl")
    hypothesis = Place("hypothesis.md")
    conclusion = Place("conclusion.md")
    training = Place("training")
    training_data = Place("data/training_data.jsonl")

    def below(self, name: str) -> LogFiles:
        """The log files in a subfolder."""
        return LogFiles(self.folder / name)

    def of_split(self, split: str) -> LogFiles:
        """The log files of a split."""
        return self.below(_SPLITS.get(split) or re.sub(r"[^\w.-]", "_", split).lstrip(".") or "other")

    def find_below(self, pattern: str = "*.jsonl") -> list[Path]:
        """The record files in the subfolders, without those of the training data."""
        data = self.training_data.parent
        return [path for path in sorted(self.folder.glob(f"*/{pattern}")) if path.parent != data]


_SPLITS = {"val": "validation", "eval": "validation", "test": "test", "train_fit": "train_fit"}


class RunFiles(_Files):
    """The folder of one arm."""

    config = Place("config.json")
    starts = Place("starts.jsonl")
    """One line per start."""
    progress = Place("progress.json")
    """The planned number of steps, for observers."""
    datasets = Place("datasets.json")
    """The training and evaluation rows, by source and hash."""
    examples = Place("rendered_examples.md")
    """The first training examples, token by token."""
    benchmarks = Place("benchmarks.json")
    """The benchmarks that score it."""
    identity = Place("identity.json")
    """Starting weights, code and package versions."""
    checkpoints = Place("checkpoints.jsonl")
    dropped_checkpoints = Place("dropped_checkpoints.json")
    """Names of the checkpoints whose weights were removed to save space."""
    stored = Place("checkpoints")
    """The folder in which local backends store weights."""
    late_scores = Place("scores.json")
    """Step -> metric -> value: scores that arrived after the checkpoint of their step was written."""
    scores = Place("scores.jsonl")
    """Every scoring, with the value of each task."""
    prompt_calls = Place("prompt_calls.jsonl")
    """Every call of a prompt search."""
    prompts = Place("prompts.json")
    """The candidates of a prompt search and the best of them."""
    result = Place("run_result.json")
    """The result; missing while the run continues."""
    lock = Place(".lock")
    _logs = Place("logs")
    _predictions = Place("benchmarks")

    @property
    def logs(self) -> LogFiles:
        return LogFiles(self._logs)

    def predictions(self, benchmark: str, step: int) -> Path:
        """The answers behind one scoring of a benchmark; `benchmark` is a valid folder name."""
        return self._predictions / benchmark / f"step{step:06d}.jsonl"

    def all_predictions(self) -> list[Path]:
        """The answers behind every scoring."""
        return sorted(self._predictions.glob("*/step*.jsonl"))


class ExperimentFiles(_Files):
    """The folder of one attempt at an experiment."""

    config = Place("config.json")
    """The resolved config; a folder with this file is an experiment."""
    journal = Place("journal.jsonl")
    spend = Place("spend.jsonl")
    conclusion = Place("conclusion.json")
    conclusion_page = Place("conclusion.md")
    console = Place("console.log")
    """The output of an experiment in the background."""
    lock = Place(".lock")
    _baselines = Place(".baselines")

    def run(self, arm: str) -> RunFiles:
        return RunFiles(self.folder / arm)

    def baseline(self, scoring: str) -> Path:
        """The answers of a baseline model, which all arms share. No arm can have this folder's name."""
        return self._baselines / f"{scoring}.jsonl"

    def all_baselines(self) -> list[Path]:
        """The answers of every baseline model."""
        return sorted(self._baselines.glob("*.jsonl"))

    @property
    def baselines_lock(self) -> Path:
        return self._baselines / ExperimentFiles.lock.name


RESERVED_NAMES = tuple(place.name for place in vars(ExperimentFiles).values() if isinstance(place, Place))
"""Names that no arm can have, because the experiment uses them."""

DEFAULT_ROOT = "outputs"
DRY_RUNS = "dry"
"""Below the default root: records of `evsys run --dry`, which hold no results."""
HISTORY_CACHE = ".history.sqlite3"
"""In each root: the cache of `evsys history`."""
OUTPUT_ROOTS = "output_roots.txt"
"""In the project's `.evsys/`: other folders that hold experiments."""
STANDALONE = "benchmarks"
"""Below a root: scorings outside of experiments, one folder per benchmark and model."""
SCORING = "result.json"
"""In the folder of a scoring outside of experiments: its scores."""
SCORINGS = "scorings.txt"
"""In the project's `.evsys/`: the folders of scorings outside of experiments."""
CAMPAIGNS = "campaigns"
"""In the project's `.evsys/`: one folder with a journal per campaign."""
LOOPS = "loop"
"""In the project's `.evsys/`: one folder per closed loop."""
ALERTS = "alerts"
"""In the project's `.evsys/`: the delivered alerts; `alerts.yaml` configures their targets."""
CLAIMS = "claims.jsonl"
"""In the project's `.evsys/`: every registered claim, also of removed experiments."""
HEADS = "heads.jsonl"
"""In the project's `.evsys/`: the head hashes of journals, as last noted."""
SEALS, SEALED = "sealed.jsonl", "sealed"
"""In the project's `.evsys/`: the task files in use, and a copy of each, named by its hash."""
PROMOTIONS = "promotions.jsonl"
"""In the project's `.evsys/`: weights that were gated, deployed and rolled back."""


def lock_beside(file: Path) -> Path:
    """The lock file of a file that several processes write."""
    return file.with_name(f".{file.name}{RunFiles.lock.name}")


def run_folders(root: Path) -> list[Path]:
    """The folders of all ended arms below a root, unordered."""
    return [path.parent for path in root.glob(f"*/*/{RunFiles.result.name}")]


def find_begun(root: Path) -> list[Path]:
    """The folders of all arms below a root that started and have no result, unordered."""
    begun = (RunFiles(path.parent) for path in root.glob(f"*/*/{RunFiles.starts.name}"))
    return [files.folder for files in begun if not files.result.exists()]


def find_locked(root: Path) -> list[Path]:
    """The experiments below a root that have a lock file: running, or run before."""
    return [path.parent for path in sorted(root.glob(f"*/{ExperimentFiles.lock.name}"))]
