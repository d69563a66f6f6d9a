"""Every reader of a record says the same: the command line, the API of a disk, and that of a server after an upload."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the server's packages: run make test-dashboard")

from evsys_sdk import DashboardClient, ExperimentRun
from evsys_sdk.cli.main import main
from evsys_sdk.dashboard.client.upload import report_experiment
from evsys_sdk.dashboard.local.records import LocalRecords
from evsys_sdk.dashboard.views.answers import describe_experiment
from evsys_sdk.dashboard.views.source import ExperimentQuery
from tests.history.recorded import write_experiment

from .conftest import report_to

pytestmark = pytest.mark.dashboard
GOLDEN = Path(__file__).parents[1] / "record" / "golden" / "v1" / "record"
FACTS = ("status", "verdict", "metric", "mode", "best_run", "best_score", "flags", "n_arms", "n_done", "n_failures")
COMBO = {"kind": "combo", "params": {"phases": [{"kind": "sft"}, {"kind": "rl"}]}}
MADE: dict[str, dict[str, Any]] = {
    "killed": {"status": None, "verdict": None},
    "interrupted": {"status": "interrupted", "verdict": None},
    "combo": {"algorithm": "combo", "params": COMBO["params"]},
    "failed": {"failed": {"changed__seed42": "it broke"}},
}


def facts(view: dict[str, Any]) -> dict[str, Any]:
    return {name: view[name] for name in FACTS}


@pytest.mark.parametrize("case", [*(f"golden-{path.name}" for path in sorted(GOLDEN.iterdir())), *MADE])
def test_every_reader_says_the_same(
    case: str, dashboard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = tmp_path / "outputs"
    name = case.removeprefix("golden-")
    if case in MADE:
        folder = write_experiment(outputs, name, **MADE[case])
    else:
        folder = Path(shutil.copytree(GOLDEN / name, outputs / name))
    (folder / ".lock").write_text(json.dumps({"pid": 1, "host": socket.gethostname()}), "utf-8")
    report_to(monkeypatch, dashboard.url, tmp_path, key=dashboard.key, project=dashboard.id)

    def read(*command: str) -> Any:
        capsys.readouterr()
        main([*command, "--json"])
        return json.loads(capsys.readouterr().out)

    shown = read("show", str(folder))
    history = read("history", "--root", str(outputs))
    [listed] = history["experiments"]
    records = LocalRecords([outputs], tmp_path)
    [line] = json.loads(records.list_experiments(ExperimentQuery()).model_dump_json())["items"]
    local = json.loads(describe_experiment(records, line["id"]).model_dump_json())["experiment"]
    with DashboardClient() as client:
        id = report_experiment(client, folder)
        assert client.flush(timeout_s=60)
    [sent] = dashboard.http.read("/experiments")["items"]
    remote = dashboard.http.read(f"/experiments/{id}")["experiment"]
    trials = history["trials"]
    assert [records.overview().trials, dashboard.http.read("/overview")["trials"]] == [trials, trials]
    for view in (listed, line, local, sent, remote):
        assert facts(view) == facts(shown)
    arms = {arm["arm"]: arm["status"] for arm in shown["arms"]}
    for view in (local, remote):
        assert {arm["arm"]: arm["status"] for arm in view["arms"]} == arms
        assert [(run["run"], run["score"], run["n_seeds"]) for run in view["runs"]] == [
            (run["run"], run["score"], run["n_seeds"]) for run in shown["runs"]
        ]


def test_what_a_script_logs_is_scored_and_its_run_configs_are_compared(
    dashboard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report_to(monkeypatch, dashboard.url, tmp_path, key=dashboard.key, project=dashboard.id)
    ids: list[str] = []
    runs: list[str] = []
    with DashboardClient() as client:
        for rate in (0.1, 0.2):
            with ExperimentRun(client, experiment_name="script", run_config={"learning_rate": rate}) as run:
                run.log_step(1, loss=1.0)
                run.log_eval(metrics={"accuracy": 1 - rate}, name="held_out")
            ids.append(run.experiment_id)
            runs.append(run._run_name)
    one = dashboard.http.read(f"/experiments/{ids[0]}")["experiment"]
    assert (one["status"], one["metric"], one["best_run"], one["best_score"]) == (
        "completed",
        "test/held_out/accuracy",
        runs[0],
        0.9,
    )
    assert ids[0] == ids[1]  # one name is one experiment, and what its runs differ in are columns of it
    assert [(arm["status"], arm["score"]) for arm in one["arms"]] == [("completed", 0.9), ("completed", 0.8)]
    assert (one["varied"], [run["varied"] for run in one["runs"]]) == (
        ["learning_rate"],
        [{"learning_rate": 0.1}, {"learning_rate": 0.2}],
    )
    assert dashboard.http.read("/experiments", q="learning_rate=0.2")["total"] == 1
    assert [facts(line) for line in dashboard.http.read("/experiments")["items"] if line["id"] == ids[0]] == [
        facts(one)
    ]
    compared = dashboard.http.read("/compare", of=[f"{ids[0]}:{run}" for run in runs])
    assert compared["config"] == [{"path": "run.learning_rate", "values": [0.1, 0.2]}]
