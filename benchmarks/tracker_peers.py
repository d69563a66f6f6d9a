"""One tracker, one workload, in an environment of its own: what a call costs, points a second until they can be read
back, and a listing of many runs. `benchmarks/dashboard.py --peer-python` runs it once for each tracker.

python benchmarks/tracker_peers.py trackio --runs 5 --steps 2000 --listed 1000
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

METRICS = {"loss": 0.5, "lr": 1e-4, "grad_norm": 1.25}

type Waits = list[float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tracker", choices=TRACKERS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--listed", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ |= {"TRACKIO_DIR": folder, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": folder}
        measure_call, measure_listing = TRACKERS[options.tracker]
        waits: Waits = []
        began = time.perf_counter()
        measure_call(options.runs, options.steps, waits)
        took = time.perf_counter() - began
        listed = measure_listing(options.listed)
    waits.sort()
    found = {
        "version": version(options.tracker),
        "p50_us": waits[len(waits) // 2] * 1e6,
        "p99_us": waits[int(len(waits) * 0.99)] * 1e6,
        "points_per_s": options.runs * options.steps * len(METRICS) / took,
        "list_ms": None if listed is None else listed * 1e3,
        "import_cpu_s": import_seconds(options.tracker),
        "size_mb": installed_bytes() / 1e6,
    }
    print(json.dumps(found))


def note(waits: Waits, call: Callable[[], object]) -> None:
    began = time.perf_counter()
    call()
    waits.append(time.perf_counter() - began)


def with_trackio(runs: int, steps: int, waits: Waits) -> None:
    import trackio

    for at in range(runs):
        run: Any = trackio.init(project="bench", name=f"r{at}", config={"lr": at})
        for step in range(steps):
            note(waits, lambda run=run, step=step: run.log(METRICS, step=step))
        trackio.finish()


def list_trackio(runs: int) -> float | None:
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    for at in range(runs):
        run: Any = trackio.init(project="listed", name=f"r{at}", config={"lr": at})
        run.log(METRICS, step=0)
        trackio.finish()
    began = time.perf_counter()
    for name in SQLiteStorage.get_runs("listed"):  # there is no call for the last values of all
        SQLiteStorage.get_logs("listed", name)
    return time.perf_counter() - began


def with_mlflow(runs: int, steps: int, waits: Waits) -> None:
    import mlflow

    mlflow.set_tracking_uri("sqlite:///bench.db")
    for at in range(runs):
        with mlflow.start_run(run_name=f"r{at}"):
            for step in range(steps):
                note(waits, lambda step=step: mlflow.log_metrics(METRICS, step=step))


def list_mlflow(runs: int) -> float | None:
    import mlflow

    client = mlflow.MlflowClient()
    experiment = mlflow.create_experiment("listed")
    for at in range(runs):
        run = client.create_run(experiment, run_name=f"r{at}")
        client.log_batch(
            run.info.run_id, [mlflow.entities.Metric(name, value, 0, 0) for name, value in METRICS.items()]
        )
    began = time.perf_counter()
    assert len(client.search_runs([experiment], max_results=runs)) == runs
    return time.perf_counter() - began


def with_wandb(runs: int, steps: int, waits: Waits) -> None:
    import wandb

    for at in range(runs):
        run = wandb.init(project="bench", name=f"r{at}", config={"lr": at}, settings=wandb.Settings(console="off"))
        for step in range(steps):
            note(waits, lambda run=run, step=step: run.log(METRICS, step=step))
        run.finish()


def list_wandb(runs: int) -> float | None:
    return None  # what it writes offline cannot be read back with the package


def import_seconds(package: str) -> float:
    """Processor seconds of the import, beside an empty interpreter; the least of three."""

    def spend(code: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(spend(f"import {package}") for _ in range(3)) - min(spend("pass") for _ in range(3))


def installed_bytes() -> int:
    """What lies in this environment, pip aside; each tracker should have one of its own."""
    place = Path(sys.prefix)
    skipped = ("pip", "setuptools")
    return sum(
        path.stat().st_size
        for path in place.rglob("*")
        if path.is_file()
        and not path.is_symlink()
        and not any(f"/site-packages/{name}" in str(path) for name in skipped)
    )


TRACKERS = {
    "trackio": (with_trackio, list_trackio),
    "mlflow": (with_mlflow, list_mlflow),
    "wandb": (with_wandb, list_wandb),
}


if __name__ == "__main__":
    main()
