"""Servers and clients that are killed: every record that was acknowledged is there, and there once."""

from __future__ import annotations

import random
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytestmark = [pytest.mark.dashboard, pytest.mark.slow]

from evsys_sdk import DashboardClient  # noqa: E402
from evsys_sdk.dashboard.client.sender import send_mirror  # noqa: E402
from evsys_sdk.dashboard.server.auth import make_key, make_project  # noqa: E402

from .conftest import report_to  # noqa: E402
from .databases import opened  # noqa: E402
from .serving import Api, ServerProcess  # noqa: E402

CLIENTS, RUNS, STEPS, KILLS = 20, 100, 10, 10

CLIENT = """
import sys
from evsys_sdk import DashboardClient
number, runs, steps = map(int, sys.argv[1:])
client = DashboardClient(raise_refusals=False)
experiment = client.create_experiment(f"e{number}", experiment_id=f"e{number}")
for at in range(runs):
    run = client.create_run(experiment, name=f"r{at}", run_id=f"e{number}-r{at}")
    for step in range(steps):
        client.log_step_metric(run, step, loss=float(step), lr=0.1)
    client.update_run(run, status="completed")
client.close(1.0)
"""


def new_project(address: str) -> str:
    with opened(address, upgrade=True) as engine, engine.execution_options(writes=True).begin() as connection:
        make_project(connection, "load")
        return make_key(connection, "load", ["read", "write"])[1]


def count(http: Api, experiment: str) -> tuple[int, int]:
    """How many completed arms and how many points an experiment has."""
    detail = http.read(f"/experiments/{experiment}")
    done = sum(arm["status"] == "completed" for arm in detail["experiment"]["arms"])
    return done, sum(one["n"] for one in http.read(f"/experiments/{experiment}/curves", metric="loss")["series"])


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_server_that_is_killed_ten_times_under_load_has_every_record_once(
    new_database: Callable[[str], str], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = new_database(kind)
    key = new_project(address)
    server = ServerProcess(address)
    port = int(server.url.rpartition(":")[2])
    report_to(monkeypatch, server.url, tmp_path, key=key, project="load")
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(number), str(RUNS), str(STEPS)], cwd=tmp_path, stderr=subprocess.DEVNULL
        )
        for number in range(CLIENTS)
    ]
    fate = random.Random(7)
    pause = threading.Event()
    for _ in range(KILLS):
        pause.wait(fate.uniform(0.2, 1.0))
        server.stop(signal.SIGKILL)
        server = ServerProcess(address, port)
    for client in clients:
        assert client.wait(300) == 0
    from evsys_sdk.dashboard.client.connection import Connection

    connection = Connection.from_environment()
    problems = [
        sent for sent in send_mirror(connection, connection.mirror_dir, again=True) if sent.problem or sent.rejected
    ]
    assert problems == []
    with Api(server.url, key) as http:
        counts = [count(http, f"e{number}") for number in range(CLIENTS)]
    server.stop()
    assert counts == [(RUNS, RUNS * STEPS)] * CLIENTS


def test_records_that_a_killed_server_acknowledged_are_there(
    tmp_path: Path, new_database: Callable[[str], str]
) -> None:
    address = new_database("sqlite")
    key = new_project(address)
    acknowledged = 0
    for _ in range(5):
        server = ServerProcess(address)
        with Api(server.url, key) as http:
            known = http.post("/sdk/streams/s/", params={"seq": 0}).json()["next"]
            assert known >= acknowledged
            for batch in range(20):
                first = known + batch * 3
                events = [
                    {"kind": "event", "experiment": "e", "event": {"id": str(at), "kind": "x"}}
                    for at in range(first, first + 3)
                ]
                acknowledged = http.send_records("s", first, events)["next"]
            server.stop(signal.SIGKILL)
    server = ServerProcess(address)
    with Api(server.url, key) as http:
        ids = [item["id"] for item in http.read("/experiments/e/journal", limit=1000)["items"]]
    server.stop()
    assert ids == [str(at) for at in range(acknowledged)]


def test_a_server_that_is_asked_to_stop_finishes_what_it_took(
    tmp_path: Path, new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = new_database("sqlite")
    key = new_project(address)
    server = ServerProcess(address)
    report_to(monkeypatch, server.url, tmp_path, key=key, project="load")
    with DashboardClient() as client:
        run = client.create_run(client.create_experiment("e", experiment_id="e"))
        for step in range(2000):
            client.log_step_metric(run, step, loss=0.0)
        assert client.flush(60)
    assert server.stop(signal.SIGTERM) in (0, -signal.SIGTERM)
    with ServerProcess(address) as again, Api(again.url, key) as http:
        assert http.read("/experiments/e/curves")["series"][0]["n"] == 2000


def test_many_clients_write_into_one_run_at_once(
    tmp_path: Path, dashboard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    report_to(monkeypatch, dashboard.url, tmp_path, key=dashboard.key, project=dashboard.id)
    first = DashboardClient()
    run = first.create_run(first.create_experiment("e", experiment_id="e"))

    def write(number: int) -> None:
        with DashboardClient(log_dir=tmp_path / secrets.token_hex(4)) as client:
            for step in range(200):
                client.log_step_metric(run, number * 200 + step, {f"m{number % 3}": float(step)})
            assert client.flush(120)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first.close()
    ns = [
        dashboard.http.read("/experiments/e/curves", metric=f"m{at}", points=2000)["series"][0]["n"] for at in range(3)
    ]
    assert sum(ns) == 1600
