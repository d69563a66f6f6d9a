"""What reporting to a dashboard costs a run, and what its server takes in and gives out.

python benchmarks/dashboard.py --runs 10 --steps 10000 --clients 4
python benchmarks/dashboard.py --database postgresql://user@host/name     # an empty database
python benchmarks/dashboard.py --peer trackio --peer mlflow --peer wandb     # NAME=PYTHON takes one's own environment

A peer's environment is made in .venvs/ the first time. Where others use the machine, compare points per processor
second, and ratios within one run. Aims: a call at most 20 us (median), 100,000 points a second end to end on SQLite,
1,000 runs listed in 50 ms, three times the points of trackio.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import machine
from tracker_peers import METRICS, ask, cpu_seconds, import_seconds

PEER_RUNS, PEER_STEPS, LISTED = 5, 2000, 1000
FEWER_STEPS = {"mlflow": 20}
"""MLflow commits each call, so its rate depends on no number of steps, and as many as the others' would take hours."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--database", default="")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME[=PYTHON]", help="a tracker to compare with"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often the peers take turns")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(machine())
    peers = {name: python or make_environment(name) for name, _, python in (one.partition("=") for one in options.peer)}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        address = options.database or str(Path(folder) / "d.sqlite3")
        with serving(address) as (url, server):
            os.environ["EVSYS_API_URL"] = url
            report_load()
            report_ingest(options.runs, options.steps, 1, server)
            report_ingest(options.runs, options.steps, options.clients, server)
            report_reads(options.steps)
            report_listing()
        report_call("offline", EVSYS_OFFLINE="1")
        report_call("server unreachable", EVSYS_OFFLINE="0", EVSYS_API_URL="http://127.0.0.1:9")
        print(f"import of the client: {import_seconds('evsys_sdk') * 1e3:.0f} ms CPU")
        if peers:
            report_load()
            report_peers(address, peers, options.rounds)


def report_load() -> None:
    print(f"load of the machine before this: {os.getloadavg()[0]:.1f}")


def make_environment(name: str) -> str:
    """The interpreter of an environment that has a tracker; it is made where there is none."""
    place = Path(__file__).resolve().parents[1] / ".venvs" / f"peer-{name}"
    python = place / "bin" / "python"
    if subprocess.run([python, "-c", f"import {name}"], capture_output=True).returncode if python.exists() else True:
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", name], check=True, stdout=sys.stderr)
    return str(python)


@contextlib.contextmanager
def serving(address: str) -> Iterator[tuple[str, int]]:
    """`evsys dashboard serve` on a free port: its address and its process."""
    command = [sys.executable, "-m", "evsys_sdk", "dashboard"]
    if address.startswith("postgresql"):
        subprocess.run([*command, "upgrade", "--database", address], check=True, stdout=subprocess.DEVNULL)
    made = subprocess.run(
        [*command, "key", "bench", "--json", "--database", address], check=True, capture_output=True, text=True
    )
    os.environ["EVSYS_PROJECT_ID"], os.environ["EVSYS_API_KEY"] = "bench", json.loads(made.stdout)["key"]
    process = subprocess.Popen(
        [*command, "serve", "--port", "0", "--json", "--database", address], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    try:
        yield json.loads(process.stdout.readline())["url"], process.pid
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def report_ingest(runs: int, steps: int, clients: int, server: int) -> None:
    """All points of all runs, until the server has acknowledged the last one."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(clients + 1)
    with context.Pool(clients, get_ready, (ready,)) as pool:
        ready.wait()
        used, began = server_seconds(server), time.perf_counter()
        answers = pool.starmap(log_runs, split(runs, steps, clients), chunksize=1)
        took = time.perf_counter() - began
    points = runs * steps * len(METRICS)
    used = server_seconds(server) - used
    waits = sorted(wait for found, _ in answers for wait in found)
    both = used + sum(spent for _, spent in answers)
    print(
        f"{clients} client processes: {points:,} points in {took:.2f} s = {points / took:,.0f} points/s wall; "
        f"per CPU second {points / used:,.0f} of the server, {points / both:,.0f} of server and clients together; "
        f"call p50 {waits[len(waits) // 2] * 1e6:.1f} us, p99 {waits[int(len(waits) * 0.99)] * 1e6:.0f} us, "
        f"longest {waits[-1] * 1e3:.1f} ms"
    )


def server_seconds(server: int) -> float:
    return cpu_seconds(server) - cpu_seconds(None)


def get_ready(ready: Any) -> None:
    """Import before the clock runs."""
    import evsys_sdk.dashboard.client.client  # noqa: F401

    ready.wait()


def split(runs: int, steps: int, clients: int) -> list[tuple[int, int]]:
    return [(runs // clients + (at < runs % clients), steps) for at in range(clients)]


def log_runs(runs: int, steps: int) -> tuple[list[float], float]:
    """How long each call took, and the processor time of all."""
    from evsys_sdk import DashboardClient

    spent = time.process_time()
    client = DashboardClient()
    waits: list[float] = []
    experiment = client.create_experiment("bench", experiment_id=f"bench-{os.getpid()}")
    for at in range(runs):
        run = client.create_run(experiment, name=f"r{at}")
        for step in range(steps):
            began = time.perf_counter()
            client.log_step_metric(run, step, METRICS)
            waits.append(time.perf_counter() - began)
    assert client.close(600), "not everything arrived"
    return waits, time.process_time() - spent


def report_reads(steps: int) -> None:
    id = ask("/experiments?limit=1")["items"][0]["id"]
    for points in (500, 2000):
        took = timed(lambda points=points: ask(f"/experiments/{id}/curves?metric=loss&points={points}"))
        series = len(ask(f"/experiments/{id}/curves?metric=loss&points={points}")["series"])
        print(f"curves, {series} series of {steps:,} steps as {points} buckets: {took}")


def report_listing() -> None:
    from evsys_sdk import DashboardClient

    client = DashboardClient(raise_refusals=False)
    for at in range(1000):
        fields: dict[str, Any] = {
            "name": f"e{at}",
            "status": "completed",
            "verdict": "inconclusive",
            "best_score": at / 1e3,
        }
        client.update_experiment(f"list-{at}", **fields, tags=["a", "b"], spend={"usd": 0.1}, config={"lr": at})
        run = client.create_run(f"list-{at}", name="r0", run_id=f"list-{at}-r0")
        for step in range(3):
            client.log_step_metric(run, step, METRICS)
    for at in range(1000):
        run = client.create_run("wide", name=f"r{at}", run_id=f"wide-{at}")
        client.log_step_metric(run, 1, METRICS)
    assert client.close(600)
    for path, what in (
        ("/experiments?limit=1000&q=e", "1,000 experiments with their best scores"),
        ("/experiments?limit=50", "the first page of 50"),
        ("/experiments/wide", "one experiment of 1,000 runs with their final metrics"),
        ("/overview", "overview of the project"),
    ):
        print(f"list: {what}: {timed(lambda path=path: ask(path))}")


def timed(call: Any, repeats: int = 9) -> str:
    call()
    found: list[float] = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        found.append((time.perf_counter() - began) * 1e3)
    return f"median {statistics.median(found):.1f} ms, least {min(found):.1f} ms"


def report_call(what: str, **environment: str) -> None:
    """What calls cost where nothing can be sent, and what opening and closing cost in all."""
    program = (
        "import time\nfrom evsys_sdk import DashboardClient\n"
        "began = time.perf_counter()\nclient = DashboardClient()\n"
        "run = client.create_run(client.create_experiment('e'))\nopened = time.perf_counter() - began\nwaits = []\n"
        "for step in range(20000):\n    t = time.perf_counter()\n"
        f"    client.log_step_metric(run, step, {METRICS!r})\n    waits.append(time.perf_counter() - t)\n"
        "began = time.perf_counter()\nclient.close()\nclosed = time.perf_counter() - began\nwaits.sort()\n"
        "print(f'call p50 {waits[10000] * 1e6:.1f} us, p99 {waits[19800] * 1e6:.0f} us; '\n"
        "      f'opening {opened * 1e3:.0f} ms, closing {closed * 1e3:.0f} ms')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env={**os.environ, **environment}
    )
    print(f"{what}: {done.stdout.strip()}")


def report_peers(address: str, peers: dict[str, str], rounds: int) -> None:
    """The same work with every tracker, in turns: one client, until its own reader finds everything."""
    if "trackio" in peers:
        peers = {"trackio": peers.pop("trackio"), "trackio-server": "", **peers}
        peers["trackio-server"] = peers["trackio"]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ("evsys", *peers)}
    with serving(f"{address}.peers" if "://" not in address else address) as (url, server):
        os.environ["EVSYS_API_URL"] = url
        for turn in range(rounds):
            for name, python in {"evsys": sys.executable, **peers}.items():
                command = [python, str(Path(__file__).with_name("tracker_peers.py")), name, "--runs", str(PEER_RUNS)]
                command += ["--steps", str(FEWER_STEPS.get(name, PEER_STEPS)), "--listed", "0" if turn else str(LISTED)]
                command += ["--server", str(server)] if name == "evsys" else []
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                found[name].append(json.loads(done.stdout.splitlines()[-1]))
    print_peers({name: summarize(turns) for name, turns in found.items()}, rounds)


def summarize(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """What only the first turn has, and the median of what all have."""
    rates = ("p50_us", "p99_us", "points_per_s", "points_per_cpu_s")
    return turns[0] | {name: statistics.median(turn[name] for turn in turns) for name in rates}


def print_peers(found: dict[str, dict[str, Any]], rounds: int) -> None:
    fewer = ", ".join(f"{steps} with {name}" for name, steps in FEWER_STEPS.items() if name in found)
    print(
        f"{PEER_RUNS} runs of {PEER_STEPS:,} steps{f' ({fewer})' if fewer else ''} with {len(METRICS)} metrics, one "
        f"client, until they can be read back; median of {rounds} turns:"
    )
    print(
        f"{'':22} {'call p50':>12} {'p99':>11} {'points/s':>10} {'per CPU s':>10} {'list 1,000':>11} "
        f"{'import':>8} {'installed':>10}"
    )
    for name, one in found.items():
        listed = f"{one['list_ms']:8.0f} ms" if one["list_ms"] is not None else "-"
        print(
            f"{name + ' ' + one['version']:22} {one['p50_us']:9.1f} us {one['p99_us']:8.0f} us "
            f"{one['points_per_s']:10,.0f} {one['points_per_cpu_s']:10,.0f} {listed:>11} "
            f"{one['import_cpu_s']:6.2f} s {one['size_mb']:7.0f} MB"
        )
    ours = found.pop("evsys")
    for name, one in found.items():
        wall, cpu = (ours[rate] / one[rate] for rate in ("points_per_s", "points_per_cpu_s"))
        print(f"evsys takes in {wall:.1f} times the points of {name} ({cpu:.1f} times per CPU second)")


if __name__ == "__main__":
    main()
