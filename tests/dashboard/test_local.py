"""`evsys dashboard` shows what is recorded in a project, also what was there before, and follows what is running."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytestmark = pytest.mark.dashboard

from evsys_sdk import (  # noqa: E402
    DashboardClient,
    Experiment,
    ExperimentRun,
)
from evsys_sdk.dashboard.local import index  # noqa: E402
from evsys_sdk.dashboard.local.records import LocalRecords  # noqa: E402
from evsys_sdk.dashboard.local.scripts import ProjectRecords  # noqa: E402
from evsys_sdk.dashboard.server.app import local_app  # noqa: E402
from evsys_sdk.dashboard.server.auth import LocalGate  # noqa: E402
from evsys_sdk.dashboard.shapes.experiment import NewNote  # noqa: E402
from evsys_sdk.dashboard.views.answers import describe_experiment  # noqa: E402
from evsys_sdk.dashboard.views.curves import CurveQuery, draw_curves  # noqa: E402
from evsys_sdk.dashboard.views.source import ExperimentQuery  # noqa: E402
from evsys_sdk.history.index import HistoryIndex  # noqa: E402
from evsys_sdk.history.notes import add_note  # noqa: E402
from evsys_sdk.history.query import Filters  # noqa: E402
from tests.history.recorded import BEGAN, DAY, write_experiment  # noqa: E402

from .serving import Api, running_app  # noqa: E402
from .test_evsys_logger import config  # noqa: E402


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    return tmp_path / "outputs"


@pytest.fixture
def api(outputs: Path, tmp_path: Path) -> Iterator[Api]:
    outputs.mkdir()
    gate = LocalGate()
    source = LocalRecords([outputs], tmp_path)
    with (
        running_app(lambda hosts: local_app(source, gate, hosts, name="here")) as server,
        Api(server.url, gate.token) as http,
    ):
        yield http


def test_experiments_recorded_before_it_was_started_are_listed(api: Api, outputs: Path) -> None:
    write_experiment(outputs, "old", started=BEGAN, verdict="supported")
    write_experiment(outputs, "new", started=BEGAN + DAY, verdict=None, status=None)
    page = api.read("/experiments")
    assert [(item["name"], item["status"], item["verdict"]) for item in page["items"]] == [
        ("new", "running", ""),
        ("old", "completed", "supported"),
    ]
    assert api.read("/experiments", verdict="supported")["total"] == 1
    overview = api.read("/overview")
    assert (overview["by_verdict"], overview["tags"]) == ({"supported": 1, "none": 1}, ["routing"])


def test_pages_of_the_list_continue_although_something_new_came_in(api: Api, outputs: Path) -> None:
    for at in range(5):
        write_experiment(outputs, f"e{at}", started=BEGAN + at * DAY)
    page = api.read("/experiments", limit=2)
    write_experiment(outputs, "newest", started=BEGAN + 99 * DAY)
    rest = api.read("/experiments", limit=10, cursor=page["next"])
    assert [one["name"] for one in page["items"] + rest["items"]] == ["e4", "e3", "e2", "e1", "e0"]


def test_the_page_of_an_experiment_has_its_runs_scores_and_curves(api: Api, outputs: Path) -> None:
    write_experiment(outputs, "routing", verdict="supported")
    id = api.read("/experiments")["items"][0]["id"]
    detail = api.read(f"/experiments/{id}")
    assert {run["run"]: run["n_seeds"] for run in detail["experiment"]["runs"]} == {"base": 2, "changed": 2}
    assert detail["claim"]["text"] == "The change of routing helps."
    assert "evsys run" in detail["commands"]["reproduce"]
    curves = api.read(f"/experiments/{id}/curves")
    assert (curves["metric"], len(curves["series"]), curves["series"][0]["n"]) == ("loss", 4, 10)
    assert api.read(f"/experiments/{id}/spend")["total"]["usd"] == pytest.approx(1.0)
    assert api.read(f"/experiments/{id}/journal")["items"][0]["kind"] == "experiment_started"
    assert api.read(f"/experiments/{id}/lineage")["nodes"][0]["kind"] == "experiment"


def test_a_real_run_is_shown_with_its_rollouts_and_a_note_is_written_into_its_journal(api: Api, outputs: Path) -> None:
    Experiment(config(callbacks=[{"kind": "local_logger"}])).run()
    [first] = api.read("/experiments")["items"]
    rollouts = api.read(f"/experiments/{first['id']}/rollouts", limit=5)
    assert (rollouts["total"], rollouts["sets"]) == (12, ["eval"])
    whole = api.read(f"/experiments/{first['id']}/rollouts/{rollouts['items'][0]['id']}")
    assert whole["rollout"] == rollouts["items"][0]
    body = api.post(f"/experiments/{first['id']}/notes", json={"text": "look", "author": "ann"}).json()
    events = [json.loads(line) for line in (outputs / "reported" / "journal.jsonl").read_text("utf-8").splitlines()]
    assert (events[-1]["kind"], events[-1]["id"]) == ("note", body["id"])
    assert api.read(f"/experiments/{first['id']}/notes") == [body]
    assert api.read("/experiments")["items"][0]["version"] > first["version"]


def test_a_running_experiment_is_followed_and_can_be_stopped(
    api: Api, outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os
    import subprocess
    import sys

    (tmp_path / "c.json").write_text(config(steps=100_000, callbacks=[]).model_dump_json(exclude_none=True), "utf-8")
    program = "import json,sys\nfrom evsys_sdk import Experiment\nfrom evsys_sdk.config import ExperimentConfig\n"
    program += "Experiment(ExperimentConfig.model_validate(json.load(open('c.json')))).run()\n"
    process = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env=os.environ.copy())
    try:
        with api.stream("GET", "/events") as answer:
            names = (line.partition(": ")[2] for line in answer.iter_lines() if line.startswith("event: "))
            assert next(names) == "hello"
            while True:
                assert next(names) == "change"
                [first] = api.read("/experiments")["items"]
                if first["live"] and first["live"]["step"]:
                    break
        assert first["status"] == "running"
        assert first["live"]["arms_running"] == 1
        assert first["live"]["metric"] == "loss"
        assert first["live"]["recent"]
        response = api.post(f"/experiments/{first['id']}/requests", json={"kind": "stop", "reason": "enough"})
        assert response.json()["answer"] == "it finishes its steps and stops"
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    assert api.read("/experiments")["items"][0]["status"] == "interrupted"
    assert api.read(f"/experiments/{first['id']}/requests")[0]["reason"] == "enough"


def test_ids_that_are_paths_lead_nowhere(api: Api, outputs: Path) -> None:
    write_experiment(outputs, "routing")
    for id in ("routing", "../outputs/routing", "%2e%2e", str(outputs / "routing")):
        assert api.get(f"/experiments/{id.replace('/', '%2F')}").status_code == 404
    known = api.read("/experiments")["items"][0]["id"]
    from evsys_sdk.dashboard.views.source import write_cursor

    for rollout in (write_cursor("base__seed42", "../../c.json", 0), write_cursor("x", "/etc/passwd", 0), "zz", "0"):
        assert api.get(f"/experiments/{known}/rollouts/{rollout}").status_code in (400, 404)


def test_damaged_records_are_shown_as_far_as_they_can_be_read(api: Api, outputs: Path) -> None:
    folder = write_experiment(outputs, "routing")
    (folder / "base__seed42" / "logs" / "metrics.jsonl").write_bytes(
        b'{"step": 1, "loss": 1.0}\n\xff\xfe\n{"step": "x"}\n{"st'
    )
    (folder / "base__seed42" / "benchmarks.json").write_text("[1, {", "utf-8")
    (folder / "conclusion.json").write_text("{", "utf-8")
    write_experiment(outputs, "broken")
    (outputs / "broken" / "config.json").write_text("no", "utf-8")
    listed = {item["name"]: item for item in api.read("/experiments")["items"]}
    assert listed["broken"]["status"] == "damaged"
    for entry in listed.values():
        for part in ("", "/curves", "/items", "/rollouts", "/spend", "/lineage", "/journal"):
            assert api.get(f"/experiments/{entry['id']}{part}").status_code == 200, part


def test_what_a_script_reported_offline_is_shown_among_the_experiments_of_the_project(
    outputs: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    write_experiment(outputs, "recorded")
    mirror = tmp_path / ".evsys" / "dashboard"
    source = ProjectRecords(LocalRecords([outputs], tmp_path), mirror)
    request.addfinalizer(source.close)
    assert [item.name for item in source.list_experiments(ExperimentQuery()).items] == ["recorded"]
    with DashboardClient(offline=True, log_dir=mirror.parent) as client:
        for rate in (0.1, 0.2):
            with ExperimentRun(client, experiment_name="script", run_config={"lr": rate}) as run:
                run.log_step(1, loss=rate)
                run.log_step(2, loss=rate / 2)
    listed = source.list_experiments(ExperimentQuery(sort="name"))
    assert ([item.name for item in listed.items], listed.total) == (["recorded", "script"], 2)
    assert source.overview().by_status == {"completed": 2}
    detail = describe_experiment(source, run.experiment_id)
    assert [arm.run for arm in detail.experiment.arms] == [run.run for run in detail.experiment.runs]
    drawn = draw_curves(source, run.experiment_id, CurveQuery(metric="loss"))
    assert [series.y for series in drawn.series] == [[0.1, 0.05], [0.2, 0.1]]
    assert [change.id for change in source.changes(0)].count(run.experiment_id) == 1
    source.add_note(run.experiment_id, NewNote(text="look again"))
    assert [note.text for note in describe_experiment(source, run.experiment_id).experiment.notes] == ["look again"]
    experiments = source.list_experiments(ExperimentQuery(Filters(search="lr=0.2")))
    assert [item.name for item in experiments.items] == ["script"]


def test_tags_are_edited_and_what_is_archived_is_listed_only_when_requested(api: Api, outputs: Path) -> None:
    write_experiment(outputs, "routing", metadata={"tags": ["first"]})
    id = "routing-0a1b2c3d"
    answer = api.put(f"/experiments/{id}/tags", json={"tags": ["second", "archived"]})
    assert answer.status_code == 200
    assert api.read("/experiments")["items"] == []
    [found] = api.read("/experiments", tag="archived")["items"]
    assert found["tags"] == ["second", "archived"]
    assert api.put(f"/experiments/{id}/tags", json={"tags": ["a|b"]}).status_code == 422
    api.put(f"/experiments/{id}/tags", json={"tags": []})
    assert [item["tags"] for item in api.read("/experiments")["items"]] == [[]]


def test_datasets_of_the_project_can_be_looked_at(api: Api, tmp_path: Path) -> None:
    from evsys_sdk import Workspace

    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"query": f"q{at}"}) + "\n" for at in range(5)), "utf-8")
    added = Workspace(tmp_path).add("dataset", tmp_path / "rows.jsonl", "mine")
    [entry] = api.read("/datasets")["items"]
    assert (entry["id"], entry["rows"]) == (added.rows.id, 5)
    page = api.read(f"/datasets/{entry['id']}/rows", limit=3)
    rest = api.read(f"/datasets/{entry['id']}/rows", cursor=page["next"])
    assert [row["query"] for row in page["rows"] + rest["rows"]] == ["q0", "q1", "q2", "q3", "q4"]
    assert api.get("/datasets/..%2Fx/rows").status_code == 404


def test_many_readers_at_once_see_the_same(api: Api, outputs: Path) -> None:
    for at in range(10):
        write_experiment(outputs, f"e{at}", started=BEGAN + at)
    expected = api.read("/experiments")
    pages: list[Any] = []

    def read() -> None:
        pages.append(api.read("/experiments"))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pages == [expected] * 8


def test_what_each_look_at_a_claim_found_is_reported_once(api: Api, outputs: Path) -> None:
    looks = [
        {"id": "l1", "time": BEGAN, "kind": "looked", "look": 1, "of": 3, "seeds": 2, "verdict": "inconclusive"}
        | {"ends": False, "why": "not decided", "error": 0.001, "chance": 0.8},
        {"id": "l2", "time": BEGAN, "kind": "looked", "look": 2, "of": 3, "seeds": 4, "verdict": "inconclusive"}
        | {"ends": False, "why": "not decided", "error": 0.02, "chance": None},
    ]
    folder = write_experiment(outputs, "careful", verdict="supported", events=[*looks, {**looks[1], "id": "l2 again"}])
    conclusion = json.loads((folder / "conclusion.json").read_text("utf-8"))
    last = {"looks": [2, 4, 6], "look": 3, "seeds": 6, "outcome": "all seeds were needed", "error": 0.045}
    (folder / "conclusion.json").write_text(json.dumps(conclusion | {"sequential": last}), "utf-8")
    write_experiment(outputs, "plain")
    interim = api.read("/experiments/careful-0a1b2c3d")["interim"]
    assert [(analysis["look"], analysis["of"], analysis["seeds"], analysis["ends"]) for analysis in interim] == [
        (1, 3, 2, False),
        (2, 3, 4, False),
        (3, 3, 6, True),
    ]
    assert [analysis["error"] for analysis in interim] == [0.001, 0.02, 0.045]
    assert [analysis["chance"] for analysis in interim] == [0.8, None, None]
    assert (interim[2]["verdict"], interim[2]["why"]) == ("supported", "all seeds were needed")
    assert api.read("/experiments/plain-0a1b2c3d")["interim"] == []


def test_a_large_project_is_shown_while_it_is_read_and_whole_afterwards(
    api: Api, outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(4):
        write_experiment(outputs, f"e{at}", started=BEGAN + at)
    monkeypatch.setattr(index, "_MANY", 3)
    may_read, has_read = threading.Event(), threading.Event()

    class Held(HistoryIndex):
        def __init__(self, roots: Any, *, refresh: bool = True) -> None:
            assert not refresh or may_read.wait(60)
            super().__init__(roots, refresh=refresh)
            if refresh:
                has_read.set()

    monkeypatch.setattr(index, "HistoryIndex", Held)
    overview = api.read("/overview")
    assert (overview["total"], overview["reading"]) == (0, {"done": 0, "of": 4})
    assert api.read("/experiments")["total"] == 0
    may_read.set()
    assert has_read.wait(60)
    while api.read("/overview")["reading"]:
        pass
    assert [item["name"] for item in api.read("/experiments")["items"]] == ["e3", "e2", "e1", "e0"]
    write_experiment(outputs, "later", started=BEGAN + 9)
    while api.read("/experiments")["total"] == 4:  # a look is taken now and then, by questions that do not wait for it
        pass
    assert api.read("/experiments", limit=2, offset=1)["items"][1]["name"] == "e2"


def test_a_search_reads_the_whole_text_of_rollouts_and_what_is_added_to_them(api: Api, outputs: Path) -> None:
    folder = write_experiment(outputs, "one", seeds=(42,), runs={"only": 0.5})
    file = folder / "only" / "logs" / "training" / "rollouts.jsonl"
    file.parent.mkdir(parents=True)
    rows = [{"step": 1, "task_id": f"t{at}", "reward": at / 2, "text": "x" * 400 + f" Needle{at}"} for at in range(3)]
    rows[2]["text"] += " \ud800"  # half of a surrogate pair, which no database takes
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[:2]), "utf-8")
    where = "/experiments/one-0a1b2c3d/rollouts"
    assert [item["task"] for item in api.read(where, q="needle1")["items"]] == ["t1"]
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(rows[2]) + "\n")
    page = api.read(where, q="NEEDLE", min_reward=0.5)
    assert ([item["task"] for item in page["items"]], page["total"]) == (["t1", "t2"], 2)
    assert api.read(f"{where}/{page['items'][1]['id']}")["text"].startswith("xxx")
    file.write_text(json.dumps(rows[0]) + "\n", "utf-8")  # written anew
    assert [item["task"] for item in api.read(where)["items"]] == ["t0"]


def test_a_finished_experiment_is_read_again_when_it_has_changed(api: Api, outputs: Path) -> None:
    folder = write_experiment(outputs, "routing")
    assert api.read("/experiments/routing-0a1b2c3d")["experiment"]["notes"] == []
    add_note(folder, "look at the seeds")
    assert [note["text"] for note in api.read("/experiments/routing-0a1b2c3d")["experiment"]["notes"]] == [
        "look at the seeds"
    ]


def test_progress_of_a_run_is_read_from_the_end_of_its_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from evsys_sdk.dashboard.local import rows
    from evsys_sdk.experiment.jobs import live_status
    from evsys_sdk.record.layout import RunFiles

    metrics = RunFiles(tmp_path / "arm").logs.metrics
    metrics.parent.mkdir(parents=True)
    lines = [json.dumps({"step": at, "loss": float(at)}) for at in range(100)]
    metrics.write_text("\n".join(["damaged", *lines, '{"step": 100, "lo']), "utf-8")
    arms = [live_status.ArmStatus("arm", "running", step=99, total_steps=200)]
    monkeypatch.setattr(live_status, "experiment_status", lambda _: SimpleNamespace(arms=arms))
    arm: Any = SimpleNamespace(folder=tmp_path)
    live = rows._live(arm)
    assert (live.step, live.metric, live.recent) == (99, "loss", [float(at) for at in range(60, 100)])
