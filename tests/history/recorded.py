"""Records of experiments written by hand, in the form that runs leave behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DAY = 86_400.0
BEGAN = 1_760_000_000.0


def write_experiment(
    root: Path,
    name: str,
    *,
    started: float = BEGAN,
    runs: dict[str, float] | None = None,
    seeds: Sequence[int] = (42, 43),
    verdict: str | None = "inconclusive",
    status: str | None = "completed",
    failed: dict[str, str] | None = None,
    params: dict[str, Any] | None = None,
    algorithm: str = "sft",
    mode: str = "max",
    metric: str = "pass@1",
    folder: str | None = None,
    events: Sequence[dict[str, Any]] = (),
    **changes: Any,
) -> Path:
    """An experiment with a journal, results, scores and (unless `verdict` is None) a conclusion."""
    scores = runs if runs is not None else {"base": 0.4, "changed": 0.6}
    path = root / (folder or name)
    config = write_config(path, name, scores, seeds, params or {}, algorithm, mode, metric, changes)
    lines = journal(path, name, config, scores, seeds, started, failed or {}, status, f"val/bench/{metric}")
    (path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, *events]), "utf-8")
    if verdict is not None:
        write_conclusion(path, scores, seeds, verdict, mode, f"val/bench/{metric}")
    return path


def write_config(
    path: Path,
    name: str,
    runs: dict[str, float],
    seeds: Sequence[int],
    params: dict[str, Any],
    algorithm: str,
    mode: str,
    metric: str,
    changes: dict[str, Any],
) -> dict[str, Any]:
    metadata = {
        "hypothesis": {"claim": f"The change of {name} helps."},
        "success_metric": {"name": metric, "mode": mode},
        "tags": ["routing"],
        "benchmark": [],
    }
    config: dict[str, Any] = {
        "version": 1,
        "name": name,
        "description": "",
        "output_dir": "outputs",
        "n_repeats": len(seeds),
        "runs": [
            {
                "name": run,
                "model": {"name": "tiny"},
                "algorithm": {"kind": algorithm, "params": {"learning_rate": 0.1, **params}},
                "backend": {"kind": "mock", "params": {}},
                "seed": seeds[0],
            }
            for run in runs
        ],
        "parent_experiment_id": None,
        "metadata": metadata | changes.pop("metadata", {}),
        **changes,
    }
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config), "utf-8")
    return config


def journal(
    path: Path,
    name: str,
    config: dict[str, Any],
    runs: dict[str, float],
    seeds: Sequence[int],
    started: float,
    failed: dict[str, str],
    status: str | None,
    metric: str,
) -> list[dict[str, Any]]:
    arms = [{"arm": arm_name(run, seed, seeds), "run": run, "seed": seed} for run in runs for seed in seeds]
    start = {"kind": "experiment_started", "experiment_id": f"{path.name}-0a1b2c3d", "name": name, "arms": arms}
    lines = [{**start, "time": started, "config_sha256": "c" * 64, "parent_experiment_id": None, "tags": []}]
    for arm in arms if status is not None else arms[:1]:
        lines.append({"kind": "arm_started", "time": started + 1, "arm": arm["arm"], "attempt": 1})
        if status is None:
            break
        error = failed.get(arm["arm"])
        result = write_arm(path / arm["arm"], arm, runs[arm["run"]], error, metric)
        lines.append({"kind": "arm_ended", "time": started + 2, "arm": arm["arm"], **result})
    if status is not None:
        lines.append({"kind": "experiment_ended", "time": started + 60, "status": status})
    return [{"id": f"{number:012x}", **line} for number, line in enumerate(lines)]


def write_arm(path: Path, arm: dict[str, Any], score: float, error: str | None, metric: str) -> dict[str, Any]:
    """The folder of one arm; returns what the journal tells of its end."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"name": path.name, "seed": arm["seed"]}), "utf-8")
    (path / "logs").mkdir()
    curve = [{"step": step, "loss": 2.0 / step} for step in range(1, 11)]
    (path / "logs" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in curve), "utf-8")
    wobble = 0.01 * (arm["seed"] % 2)
    metrics = {} if error else {"steps": 10.0, "final_loss": 0.2, metric: score + wobble, f"{metric}/stderr": 0.05}
    spend = {"tokens_trained": 1000, "tokens_sampled": 100, "usd": 0.25, "wall_s": 30.0, "gpu_s": 0.0}
    if not error:
        for step in (5, 10):
            write_scores(path, step, score * step / 10 + wobble, metric)
    status = "failed" if error else "completed"
    result = {"run_id": path.name, "status": status, "metrics": metrics, "artifacts": {"final_sampler": "somewhere"}}
    result |= {"error": error, "extras": {"spend": spend}, "hparams": {}, "ts": BEGAN}
    (path / "run_result.json").write_text(json.dumps(result), "utf-8")
    return {"status": status, "error": error, "metrics": metrics, "spend": spend}


def write_scores(path: Path, step: int, score: float, metric: str, n_tasks: int = 20) -> None:
    """Add one scoring of the benchmark `bench`, whose first tasks are the easy ones."""
    split, name, short = metric.split("/", 2)
    good = round(score * n_tasks)
    per_task = [1.0 if task < good else 0.0 for task in range(n_tasks)]
    value = {"value": good / n_tasks, "stderr": 0.1, "n_tasks": n_tasks, "n_samples": n_tasks, "per_task": per_task}
    line = {"split": split, "name": name, "step": step, "sha256": "f" * 64, "metrics": {short: value}}
    line |= {"tasks": [f"task-{task}" for task in range(n_tasks)], "failed_samples": 0, "unscored": {}}
    with (path / "scores.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def write_conclusion(
    path: Path, runs: dict[str, float], seeds: Sequence[int], verdict: str, mode: str, metric: str
) -> None:
    best = (min if mode == "min" else max)(runs, key=lambda run: runs[run])
    rows = [
        {"name": run, "mean": score, "low": score - 0.1, "high": score + 0.1, "n_seeds": len(seeds), "n_tasks": 20}
        | {"failures": 0, "is_baseline": run == "base"}
        for run, score in runs.items()
    ]
    conclusion = {
        "verdict": verdict,
        "error_rate": 0.015,
        "summary": f"The verdict on {path.name} is {verdict}.",
        "metric": metric,
        "mode": mode,
        "best_arm": best,
        "best_score": runs[best],
        "runs": rows,
        "comparisons": [{"run": best, "difference": 0.2, "low": -0.1, "high": 0.5}],
        "next": [f"Add seeds to {path.name}."],
    }
    (path / "conclusion.json").write_text(json.dumps(conclusion), "utf-8")


def arm_name(run: str, seed: int, seeds: Sequence[int]) -> str:
    return run if len(seeds) == 1 else f"{run}__seed{seed}"
