"""One tracker, one workload, in an environment of its own: what a call costs, points a second until they can be read
back, and a listing of many runs. `benchmarks/dashboard.py --peer` runs it for each tracker; `evsys` needs a server.

python benchmarks/tracker_peers.py trackio --runs 5 --steps 2000 --listed 1000

What is imported and started is so before the clock runs. The clock stops when the tracker's own finish has returned and
its own reader finds every point.
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
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

METRICS = {"loss": 0.5, "lr": 1e-4, "grad_norm": 1.25}

type Waits = list[float]


class Evsys:
    """Its client and its server; the server's address and key are in the environment."""

    def __init__(self, folder: Path, server: int | None) -> None:
        import http.client  # noqa: F401  it imports this when it first sends

        from evsys_sdk import DashboardClient

        self.client, self.id, self.server = DashboardClient, f"bench-{os.getpid()}", server

    def log(self, runs: int, steps: int, waits: Waits) -> None:
        client = self.client(raise_refusals=False)  # as `evsys_logger` has it: no call waits for the server
        experiment = client.create_experiment("bench", experiment_id=self.id)
        for at in range(runs):
            run = client.create_run(experiment, name=f"r{at}")
            for step in range(steps):
                note(waits, lambda run=run, step=step: client.log_step_metric(run, step, METRICS))
        assert client.close(600), "not everything arrived"

    def count(self, runs: int) -> int:
        answers = [ask(f"/experiments/{self.id}/curves?metric={name}&points=2000") for name in METRICS]
        return sum(series["n"] for answer in answers for series in answer["series"])

    def list(self, runs: int) -> float:
        client = self.client(raise_refusals=False)
        for at in range(runs):
            told: dict[str, Any] = {
                "name": f"e{at}",
                "status": "completed",
                "config": {"lr": at},
                "best_score": at / 1e3,
            }
            client.update_experiment(f"list-{at}", **told)
            client.log_step_metric(client.create_run(f"list-{at}", name="r0"), 0, METRICS)
        assert client.close(600)
        return least(lambda: ask(f"/experiments?limit={runs}&q=e"))


class Trackio:
    """In its own process, which writes the database itself."""

    def __init__(self, folder: Path, server: int | None) -> None:
        os.environ["TRACKIO_DIR"] = str(folder)
        import trackio

        self.trackio, self.server, self.more = trackio, server, dict[str, Any]()

    def log(self, runs: int, steps: int, waits: Waits) -> None:
        for at in range(runs):
            run: Any = self.trackio.init(project="bench", name=f"r{at}", config={"lr": at}, **self.more)
            for step in range(steps):
                note(waits, lambda run=run, step=step: run.log(METRICS, step=step))
            self.trackio.finish()

    def count(self, runs: int) -> int:
        from trackio.sqlite_storage import SQLiteStorage

        return sum(len(SQLiteStorage.get_logs("bench", f"r{at}")) for at in range(runs)) * len(METRICS)

    def list(self, runs: int) -> float | None:
        from trackio.sqlite_storage import SQLiteStorage

        for at in range(runs):
            run: Any = self.trackio.init(project="listed", name=f"r{at}", config={"lr": at})
            run.log(METRICS, step=0)
            self.trackio.finish()
        # There is no call for the last values of all.
        return least(lambda: [SQLiteStorage.get_logs("listed", name) for name in SQLiteStorage.get_runs("listed")])


class TrackioServer(Trackio):
    """Over HTTP to its own server, as two machines would."""

    SERVE = (
        "import json, sys, trackio\n"
        "found = trackio.show(open_browser=False, block_thread=False)\n"
        "print('\\n' + json.dumps(found[3]), flush=True)\nsys.stdin.read()"
    )

    def __init__(self, folder: Path, server: int | None) -> None:
        super().__init__(folder / "client", server)
        environment = {**os.environ, "TRACKIO_DIR": str(folder / "server")}
        command = [sys.executable, "-c", self.SERVE]
        self.environment = environment
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout
        line = next(line for line in self.process.stdout if line.startswith('"'))
        self.server, self.more = self.process.pid, {"server_url": json.loads(line)}

    def count(self, runs: int) -> int:
        code = (
            "from trackio.sqlite_storage import SQLiteStorage\n"
            f"print(sum(len(SQLiteStorage.get_logs('bench', f'r{{at}}')) for at in range({runs})))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], env=self.environment, check=True, text=True, stdout=subprocess.PIPE
        )
        return int(done.stdout.split()[-1]) * len(METRICS)

    def list(self, runs: int) -> None:
        return None  # the same reader as above

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(30)


class Mlflow:
    """In its own process on SQLite, the way its documentation shows first."""

    def __init__(self, folder: Path, server: int | None) -> None:
        import mlflow

        mlflow.set_tracking_uri(f"sqlite:///{folder}/bench.db")
        self.mlflow, self.server = mlflow, server
        mlflow.set_experiment("bench")  # makes the tables

    def log(self, runs: int, steps: int, waits: Waits) -> None:
        for at in range(runs):
            with self.mlflow.start_run(run_name=f"r{at}"):
                for step in range(steps):
                    note(waits, lambda step=step: self.mlflow.log_metrics(METRICS, step=step))

    def count(self, runs: int) -> int:
        client = self.mlflow.MlflowClient()
        found = client.search_runs([client.get_experiment_by_name("bench").experiment_id])
        return sum(len(client.get_metric_history(run.info.run_id, name)) for run in found for name in METRICS)

    def list(self, runs: int) -> float:
        client = self.mlflow.MlflowClient()
        experiment = self.mlflow.create_experiment("listed")
        for at in range(runs):
            run = client.create_run(experiment, run_name=f"r{at}")
            metrics = [self.mlflow.entities.Metric(name, value, 0, 0) for name, value in METRICS.items()]
            client.log_batch(run.info.run_id, metrics)
        return least(lambda: client.search_runs([experiment], max_results=runs))


class Wandb:
    """Offline; what it writes cannot be read back with the package, so its finish is all there is to wait for."""

    def __init__(self, folder: Path, server: int | None) -> None:
        os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(folder)}
        import wandb

        self.wandb, self.server = wandb, server

    def log(self, runs: int, steps: int, waits: Waits) -> None:
        settings = self.wandb.Settings(console="off")
        for at in range(runs):
            run = self.wandb.init(project="bench", name=f"r{at}", config={"lr": at}, settings=settings)
            for step in range(steps):
                note(waits, lambda run=run, step=step: run.log(METRICS, step=step))
            run.finish()

    def count(self, runs: int) -> None:
        return None

    def list(self, runs: int) -> None:
        return None


TRACKERS: dict[str, Any] = {
    "evsys": Evsys,
    "trackio": Trackio,
    "trackio-server": TrackioServer,
    "mlflow": Mlflow,
    "wandb": Wandb,
}
PACKAGES = {"evsys": "evsys_sdk", "trackio-server": "trackio"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tracker", choices=TRACKERS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument(
        "--listed", type=int, default=0, help="runs of the listing; 0 leaves it out, and size and import"
    )
    parser.add_argument("--server", type=int, help="process of the server, for its processor time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        tracker = TRACKERS[options.tracker](Path(folder), options.server)
        found = measure(tracker, options.runs, options.steps)
        if options.listed:
            package = PACKAGES.get(options.tracker, options.tracker)
            listed = tracker.list(options.listed)
            found |= {"version": version(package.replace("_", "-")), "size_mb": installed_bytes(package) / 1e6}
            found |= {"list_ms": None if listed is None else listed * 1e3, "import_cpu_s": import_seconds(package)}
        if hasattr(tracker, "close"):
            tracker.close()
        os.chdir("/")  # the folder goes now
    print(json.dumps(found))


def measure(tracker: Any, runs: int, steps: int) -> dict[str, Any]:
    """Log everything, and make sure that it is there."""
    points = runs * steps * len(METRICS)
    waits: Waits = []
    spent, began = cpu_seconds(tracker.server), time.perf_counter()
    tracker.log(runs, steps, waits)
    took = time.perf_counter() - began
    spent = cpu_seconds(tracker.server) - spent
    while (count := tracker.count(runs)) not in (None, points):
        took = time.perf_counter() - began
        assert took < 600, f"{count} of {points} points arrived"
    waits.sort()
    return {
        "p50_us": waits[len(waits) // 2] * 1e6,
        "p99_us": waits[int(len(waits) * 0.99)] * 1e6,
        "points_per_s": points / took,
        "points_per_cpu_s": points / spent,
        "is_read_back": count is not None,
    }


def note(waits: Waits, call: Callable[[], object]) -> None:
    began = time.perf_counter()
    call()
    waits.append(time.perf_counter() - began)


def least(call: Callable[[], object], repeats: int = 5) -> float:
    """The shortest of some repetitions: what others do on the machine only ever adds."""
    found: list[float] = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return min(found)


def ask(path: str) -> Any:
    """What the dashboard at EVSYS_API_URL answers."""
    from urllib.request import Request, urlopen

    headers = {"Authorization": f"Bearer {os.environ['EVSYS_API_KEY']}"}
    with urlopen(Request(f"{os.environ['EVSYS_API_URL']}/api/dashboard/api{path}", headers=headers)) as answer:
        return json.load(answer)


def cpu_seconds(server: int | None) -> float:
    """Processor time of this process, of children that have ended, and of the server."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    used = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    if server is None:
        return used
    fields = Path(f"/proc/{server}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return used + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def import_seconds(package: str) -> float:
    """Processor seconds of the import, beside an empty interpreter; the least of three."""
    code = "from evsys_sdk import DashboardClient" if package == "evsys_sdk" else f"import {package}"

    def spend(code: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(spend(code) for _ in range(3)) - min(spend("pass") for _ in range(3))


def installed_bytes(package: str) -> int:
    """What a package and everything that it requires take on disk, without bytecode."""
    from packaging.requirements import Requirement

    extra = "dashboard" if package == "evsys_sdk" else ""
    seen, waiting, size = set[str](), [package.replace("_", "-")], 0
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:  # not for this machine
            continue
        wanted = (Requirement(line) for line in found.requires or ())
        waiting += [one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": extra})]
        extra = ""
        paths = [Path(str(file.locate())) for file in found.files or ()]
        if name == "evsys-sdk":  # installed as a link to its folder
            import evsys_sdk

            paths += Path(evsys_sdk.__path__[0]).rglob("*")
        size += sum(path.stat().st_size for path in paths if path.is_file() and path.suffix != ".pyc")
    return size


if __name__ == "__main__":
    main()
