"""What reporting to a dashboard costs a run, and what its server takes in and gives out.

python benchmarks/dashboard.py --runs 10 --steps 10000 --clients 4
python benchmarks/dashboard.py --database postgresql://user@host/name     # an empty database
python benchmarks/dashboard.py --peer trackio=PYTHON --peer mlflow=PYTHON --peer wandb=PYTHON   # one environment each

Aims: a call at most 20 us (median), 100,000 points a second end to end on SQLite, 1,000 runs listed in 50 ms.
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

METRICS = {"loss": 0.5, "lr": 1e-4, "grad_norm": 1.25}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--database", default="")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON", help="a tracker to compare with")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        address = options.database or str(Path(folder) / "d.sqlite3")
        with serving(address) as (url, server):
            os.environ["EVSYS_API_URL"] = url
            report_ingest(options.runs, options.steps, 1, server)
            report_ingest(options.runs, options.steps, options.clients, server)
            report_reads(url, options.steps)
            report_listing(url)
        report_call("offline", EVSYS_OFFLINE="1")
        report_call("server unreachable", EVSYS_OFFLINE="0", EVSYS_API_URL="http://127.0.0.1:9")
        report_import()
        report_peers(address, options.peer)


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


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report_ingest(runs: int, steps: int, clients: int, server: int) -> None:
    """All points of all runs, until the server has acknowledged the last one."""
    used = cpu_seconds(server)
    with multiprocessing.get_context("spawn").Pool(clients) as pool:
        prepared = time.perf_counter()
        waits = [wait for found in pool.starmap(log_runs, split(runs, steps, clients)) for wait in found]
        took = time.perf_counter() - prepared
    points = runs * steps * len(METRICS)
    used = cpu_seconds(server) - used
    waits.sort()
    print(
        f"{clients} client processes: {points:,} points in {took:.2f} s = {points / took:,.0f} points/s "
        f"wall, {points / used:,.0f} points per CPU second of the server; "
        f"call p50 {waits[len(waits) // 2] * 1e6:.1f} us, p99 {waits[int(len(waits) * 0.99)] * 1e6:.0f} us, "
        f"longest {waits[-1] * 1e3:.1f} ms"
    )


def split(runs: int, steps: int, clients: int) -> list[tuple[int, int]]:
    return [(runs // clients + (at < runs % clients), steps) for at in range(clients)]


def log_runs(runs: int, steps: int) -> list[float]:
    from evsys_sdk import DashboardClient

    client = DashboardClient()
    waits: list[float] = []
    for at in range(runs):
        run = client.create_run(client.create_experiment("bench", experiment_id=f"bench-{os.getpid()}"), name=f"r{at}")
        for step in range(steps):
            began = time.perf_counter()
            client.log_step_metric(run, step, METRICS)
            waits.append(time.perf_counter() - began)
    assert client.close(600), "not everything arrived"
    return waits


def report_reads(url: str, steps: int) -> None:
    id = ask(url, "/experiments?limit=1")["items"][0]["id"]
    for points in (500, 2000):
        took = timed(lambda points=points: ask(url, f"/experiments/{id}/curves?metric=loss&points={points}"))
        series = len(ask(url, f"/experiments/{id}/curves?metric=loss&points={points}")["series"])
        print(f"curves, {series} series of {steps:,} steps as {points} buckets: {took * 1e3:.1f} ms")


def report_listing(url: str) -> None:
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
        print(f"list: {what}: {timed(lambda path=path: ask(url, path)) * 1e3:.1f} ms")


def ask(url: str, path: str) -> Any:
    from urllib.request import Request, urlopen

    headers = {"Authorization": f"Bearer {os.environ['EVSYS_API_KEY']}"}
    with urlopen(Request(f"{url}/api/dashboard/api{path}", headers=headers)) as answer:
        return json.load(answer)


def timed(call: Any, repeats: int = 9) -> float:
    call()
    found: list[float] = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


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


def report_import() -> None:
    print(f"import of the client: {import_cpu() * 1e3:.0f} ms CPU")


def import_cpu() -> float:
    """CPU seconds of importing the client, beside an empty interpreter."""
    import resource

    def cpu(code: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    import_client = statistics.median(cpu("from evsys_sdk import DashboardClient") for _ in range(9))
    nothing = statistics.median(cpu("pass") for _ in range(9))
    return import_client - nothing


def report_peers(address: str, peers: list[str]) -> None:
    """The same work with every tracker, one after the other: one client, and everything is read back at the end."""
    if not peers:
        return
    runs, steps = 5, 2000
    with serving(address) as (url, _):
        os.environ["EVSYS_API_URL"] = url
        began = time.perf_counter()
        waits = sorted(log_runs(runs, steps))
        took = time.perf_counter() - began
        listed = timed(lambda: ask(url, "/experiments?limit=1000&q=e"))
    ours = {
        "p50_us": waits[len(waits) // 2] * 1e6,
        "p99_us": waits[int(len(waits) * 0.99)] * 1e6,
        "points_per_s": runs * steps * len(METRICS) / took,
        "list_ms": listed * 1e3,
        "import_cpu_s": import_cpu(),
    }
    found = {"evsys": ours}
    for name, _, python in (peer.partition("=") for peer in peers):
        command = [python, str(Path(__file__).with_name("tracker_peers.py")), name]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
    print(f"{runs} runs of {steps:,} steps with {len(METRICS)} metrics, one client, until they can be read back:")
    print(f"{'':18} {'call p50':>10} {'p99':>10} {'points/s':>10} {'list 1,000':>11} {'import':>10} {'installed':>10}")
    for name, one in found.items():
        listed = f"{one['list_ms']:8.0f} ms" if one["list_ms"] is not None else "not there"
        size = f"{one['size_mb']:7.0f} MB" if "size_mb" in one else ""
        print(
            f"{name + ' ' + str(one.get('version', '')):18} {one['p50_us']:7.1f} us {one['p99_us']:7.0f} us "
            f"{one['points_per_s']:10,.0f} {listed:>11} {one['import_cpu_s']:7.2f} s {size:>10}"
        )
    for name, one in found.items():
        if name != "evsys":
            print(f"evsys takes in {ours['points_per_s'] / one['points_per_s']:.1f} times the points of {name}")


if __name__ == "__main__":
    main()
