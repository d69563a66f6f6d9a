"""Experiments as `evsys run` leaves them, made by hand: as evidence in memory, or as a folder on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evsys_sdk.config import Metadata
from evsys_sdk.experiment.conclusion.evidence import ArmEvidence, Evidence, RunEvidence, Score, ScoredSet
from evsys_sdk.experiment.hypothesis import hypothesis_sha256, normalise_hypothesis

VAL, TEST = ("val", "suite"), ("test", "suite")
type Grid = Mapping[str, Any]
"""Run -> scores, seeds x tasks."""


def metadata(
    hypothesis: Any = "a beats the baseline", metric: Any = "pass@1", splits: Sequence[str] = ("val",)
) -> Metadata:
    benchmarks = [{"path": "tasks.jsonl", "name": "suite", "split": split} for split in splits]
    return Metadata.model_validate({"hypothesis": hypothesis, "success_metric": metric, "benchmark": benchmarks})


def evidence(val: Grid, test: Grid | None = None, *, about: Metadata | None = None, **more: Any) -> Evidence:
    """Runs that were scored on val and perhaps on test; `more` replaces parts of the evidence."""
    about = about or metadata(splits=("val",) if test is None else ("val", "test"))
    runs = [
        RunEvidence(name, [_arm(name, seed, val, test) for seed in range(len(np.atleast_1d(scores)))])
        for name, scores in val.items()
    ]
    given: dict[str, Any] = {"registered": True, "registered_sha256": hypothesis_sha256(about), **more}
    return Evidence("exp-0000", about, runs, **given)


def _arm(run: str, seed: int, val: Grid, test: Grid | None) -> ArmEvidence:
    scorings = {VAL: scoring(VAL, val[run][seed])} | ({} if test is None else {TEST: scoring(TEST, test[run][seed])})
    return ArmEvidence(f"{run}__seed{seed}", run, seed, "completed", scorings=scorings)


def scoring(key: tuple[str, str], values: Any, *, sha256: str | None = None, **more: Any) -> ScoredSet:
    """One scoring of `pass@1`, its tasks called t0, t1 and so on; NaN stands for a task without a score."""
    row = np.atleast_1d(np.asarray(values, dtype=float))
    per_task = {f"t{index}": float(value) for index, value in enumerate(row) if np.isfinite(value)}
    score = Score(float(np.nanmean(row)), per_task)
    return ScoredSet(key, 10, sha256 or f"sha-{key[0]}", {"pass@1": score}, n_samples=4 * len(row), **more)


def line(
    split: str, values: Sequence[float | None], *, step: int = 10, name: str = "suite", **more: Any
) -> dict[str, Any]:
    """A line of `scores.jsonl`."""
    known = [value for value in values if value is not None]
    score = {"value": sum(known) / len(known), "stderr": 0.01, "n_tasks": len(values), "n_samples": 4 * len(values)}
    return {
        "split": split,
        "name": name,
        "step": step,
        "sha256": f"sha-{split}",
        "metrics": {"pass@1": {**score, "n_missing": 0, "per_task": list(values)}},
        "tasks": [f"t{index}" for index in range(len(values))],
        "failed_samples": 0,
        "unscored": {},
        **more,
    }


def write_experiment(
    path: Path,
    arms: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    about: Metadata | None = None,
    results: Mapping[str, Mapping[str, Any]] | None = None,
    events: Sequence[Mapping[str, Any]] = (),
    started: float = 100.0,
) -> Path:
    """A folder with arms called `<run>__seed<n>` and their lines of scores; `results` replaces parts of a result."""
    about = about or metadata()
    names = {arm: arm.rpartition("__seed")[0] for arm in arms}
    config: dict[str, Any] = {
        "name": path.name,
        "metadata": about.model_dump(mode="json"),
        "runs": [{"name": run, "tags": []} for run in dict.fromkeys(names.values())],
    }
    _write(path / "config.json", config)
    listed = [{"arm": arm, "run": run, "seed": int(arm.rpartition("seed")[2])} for arm, run in names.items()]
    start = {"id": "0" * 12, "time": started, "kind": "experiment_started", "experiment_id": f"{path.name}-00000000"}
    start |= {"hypothesis": normalise_hypothesis(about), "hypothesis_sha256": hypothesis_sha256(about), "arms": listed}
    _write_lines(path / "journal.jsonl", [start, *events])
    for at, (arm, lines) in enumerate(arms.items()):
        result = {"run_id": arm, "status": "completed", "metrics": {"steps": 10.0, "final_loss": 0.5 + at / 100}}
        result |= {"artifacts": {}, "error": None, "extras": {}, **(results or {}).get(arm, {})}
        _write(path / arm / "config.json", {"name": arm, "seed": listed[at]["seed"]})
        _write(path / arm / "run_result.json", result)
        _write_lines(path / arm / "scores.jsonl", lines)
    return path


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def _write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
