"""What clients send can be read again, on both databases."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.history.campaigns.campaign import Terms, load_campaign, open_campaign
from evsys_sdk.record.events import Kind
from evsys_sdk.record.project_files.journals import change_campaign

from .conftest import report_to

pytest.importorskip("fastapi")
pytestmark = pytest.mark.dashboard


def experiment(id: str = "e1", **fields: Any) -> dict[str, Any]:
    return {"kind": "experiment", "id": id, "set": {"name": id, **fields}}


def run(id: str = "r1", of: str = "e1", **fields: Any) -> dict[str, Any]:
    return {"kind": "run", "id": id, "experiment": of, "set": {"name": id, **fields}}


def step(number: int, of: str = "r1", **metrics: Any) -> dict[str, Any]:
    return {"kind": "step", "run": of, "at": 1.0, "line": {"step": number, **metrics}}


def test_an_experiment_is_listed_with_its_description(dashboard: Any) -> None:
    dashboard.send(
        experiment(
            hypothesis="Longer helps", tags=["routing"], best_score=0.5, spend={"usd": 1.5}, models=["Tiny/One"]
        ),
        run("a", seed=1, status="completed"),
        run("b", seed=2, status="failed", error="it broke"),
    )
    [item] = dashboard.http.read("/experiments")["items"]
    assert (item["id"], item["hypothesis"], item["tags"], item["best_score"]) == (
        "e1",
        "Longer helps",
        ["routing"],
        0.5,
    )
    assert (item["n_arms"], item["n_done"], item["n_failures"], item["spend"]) == (2, 1, 1, {"usd": 1.5})
    overview = dashboard.http.read("/overview")
    assert (overview["total"], overview["by_status"], overview["models"]) == (1, {"running": 1}, ["Tiny/One"])


def test_a_field_that_is_sent_again_replaces_only_itself(dashboard: Any) -> None:
    dashboard.send(experiment(description="first", best_score=1.0))
    dashboard.send({"kind": "experiment", "id": "e1", "set": {"status": "completed", "best_score": None}})
    detail = dashboard.http.read("/experiments/e1")
    assert detail["experiment"]["description"] == "first"
    assert (detail["experiment"]["status"], detail["experiment"]["best_score"]) == ("completed", None)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({"q": "longer ROUTING"}, ["b"]),
        ({"q": "50%"}, ["c"]),
        ({"q": "5_%"}, []),
        ({"status": "completed"}, ["a"]),
        ({"status": ["completed", "failed"]}, ["a", "b"]),
        ({"verdict": "none"}, ["b", "c"]),
        ({"verdict": "supported"}, ["a"]),
        ({"tag": "x"}, ["a", "b"]),
        ({"tag": ["x", "y"]}, ["b"]),
        ({"model": "qwen"}, ["a"]),
        ({"algorithm": "sft"}, ["b"]),
        ({"parent": "a"}, ["b"]),
    ],
)
def test_filters_leave_what_meets_all_of_them(dashboard: Any, query: dict[str, Any], wanted: list[str]) -> None:
    dashboard.send(
        experiment("a", status="completed", verdict="supported", tags=["x"], models=["Qwen/Q3"], started=3.0),
        experiment(
            "b",
            status="failed",
            hypothesis="Longer routing",
            tags=["x", "y"],
            algorithms=["sft"],
            started=2.0,
            parent_id="a",
        ),
        experiment("c", description="at 50% of the price", algorithms=["sftx"], started=1.0),
    )
    page = dashboard.http.read("/experiments", **query)
    assert [item["id"] for item in page["items"]] == wanted
    assert page["total"] == len(wanted)


@pytest.mark.parametrize("dashboard", ["sqlite"], indirect=True)  # in PostgreSQL the database's locale decides
def test_capital_letters_beyond_ascii_are_found_by_small_ones_and_the_other_way_round(dashboard: Any) -> None:
    rows = [{"task_id": "t", "prediction": "Die ÄPFEL"}]
    dashboard.send(
        experiment(tags=["ÜBUNG"], models=["Größe/ÄÖ"], algorithms=["Łańcuch"]),
        run(),
        {"kind": "rollouts", "run": "r1", "split": "test", "name": "b", "step": 3, "rows": rows},
    )
    for query in ({"tag": "übung"}, {"tag": "Übung"}, {"model": "größe/äö"}, {"algorithm": "łAŃcuch"}):
        assert dashboard.http.read("/experiments", **query)["total"] == 1, query
    assert dashboard.http.read("/experiments/e1/rollouts", q="äpfel")["total"] == 1


@pytest.mark.parametrize("sort", ["newest", "oldest", "score", "spend", "name"])
def test_pages_show_every_experiment_once_in_order(dashboard: Any, sort: str) -> None:
    numbers = [5, 3, 3, 9, 1, 7, 3]
    dashboard.send(
        *(
            experiment(
                f"e{at}",
                started=float(number),
                best_score=None if number == 9 else number / 10,
                spend={"usd": float(number)},
            )
            for at, number in enumerate(numbers)
        )
    )
    whole = [item["id"] for item in dashboard.http.read("/experiments", sort=sort)["items"]]
    paged: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = dashboard.http.read("/experiments", sort=sort, limit=2, cursor=cursor)
        paged += [item["id"] for item in page["items"]]
        cursor = page["next"]
    assert paged == whole
    assert sorted(whole) == sorted(f"e{at}" for at in range(len(numbers)))
    first = {"newest": "e3", "oldest": "e4", "score": "e5", "spend": "e3", "name": "e0"}
    assert whole[0] == first[sort]


def test_a_new_experiment_does_not_move_the_pages_after_it(dashboard: Any) -> None:
    dashboard.send(*(experiment(f"e{at}", started=float(at)) for at in range(4)))
    page = dashboard.http.read("/experiments", limit=2)
    dashboard.send(experiment("new", started=99.0))
    following = dashboard.http.read("/experiments", limit=2, cursor=page["next"])
    assert [item["id"] for item in following["items"]] == ["e1", "e0"]


def test_curves_keep_every_spike_however_few_points_are_requested(dashboard: Any) -> None:
    values = [math.sin(at / 50) for at in range(3000)]
    values[1234], values[2345] = 99.0, -99.0
    dashboard.send(experiment(), run(), *(step(at, loss=value, tokens=10.0) for at, value in enumerate(values)))
    [whole] = dashboard.http.read("/experiments/e1/curves", points=50)["series"]
    assert (whole["n"], len(whole["x"])) == (3000, 50)
    assert (max(whole["high"]), min(whole["low"])) == (99.0, -99.0)
    assert all(low <= mean <= high for low, mean, high in zip(whole["low"], whole["y"], whole["high"], strict=True))
    [part] = dashboard.http.read("/experiments/e1/curves", start=1230, end=1239)["series"]
    assert part["y"] == values[1230:1240]
    assert part["low"] == part["high"] == part["y"]
    [tokens] = dashboard.http.read("/experiments/e1/curves", x="tokens", points=2000, end=30)["series"]
    assert tokens["x"] == [10.0, 20.0, 30.0]


def test_a_nan_is_a_gap_and_the_last_finite_value_still_counts(dashboard: Any) -> None:
    line = {"step": 2, "loss": None, "_nonfinite": {"loss": "NaN"}}
    dashboard.send(experiment(), run(), step(1, loss=0.5), {"kind": "step", "run": "r1", "line": line})
    [series] = dashboard.http.read("/experiments/e1/curves")["series"]
    assert series["y"] == [0.5, None]
    [arm] = dashboard.http.read("/experiments/e1")["experiment"]["arms"]
    assert arm["step"] == 2
    assert "loss" not in arm["metrics"]


def test_a_repeated_step_is_replaced_and_a_rewound_run_forgets_what_came_after(dashboard: Any) -> None:
    stream = "s-rewind"
    first = [experiment(), run(), *(step(at, loss=float(at)) for at in range(1, 11))]
    dashboard.send(
        *first, {"kind": "score", "id": "s", "run": "r1", "line": {"step": 9, "metrics": {"p": 1.0}}}, stream=stream
    )
    dashboard.send({"kind": "rewind", "run": "r1", "next_step": 6}, step(5, loss=50.0), step(6, loss=60.0))
    curves = dashboard.http.read("/experiments/e1/curves", metric="loss")
    assert curves["series"][0]["x"] == [1, 2, 3, 4, 5, 6]
    assert curves["series"][0]["y"][-2:] == [50.0, 60.0]
    assert curves["metrics"] == ["loss"]
    [arm] = dashboard.http.read("/experiments/e1")["experiment"]["arms"]
    assert (arm["step"], arm["metrics"]) == (6, {"loss": 60.0})
    dashboard.send({"kind": "rewind", "run": "r1", "next_step": 0})
    [arm] = dashboard.http.read("/experiments/e1")["experiment"]["arms"]
    assert (arm["step"], arm["metrics"]) == (None, {})


def test_steps_that_arrive_together_are_stored_as_if_they_came_one_by_one(dashboard: Any) -> None:
    """Many alike, whole numbers, a repeated step, one out of order, other names, a gap, and some that are refused."""
    good = [{"step": number, "loss": 1.0 / (number + 1), "tokens": number * 1000} for number in range(80)]
    good += [{"step": 79, "loss": 7.0, "tokens": 5}, {"step": 40, "loss": -3.0, "tokens": 1}]
    good += [{"step": 90, "loss": 0.5}, {"step": 91, "loss": None, "_nonfinite": {"loss": "NaN"}}]
    bad = [{"step": 92, "loss": "high"}, {"step": 93, "loss": True}, {"step": 1.5, "loss": 1.0}]
    last = {"step": 94, "loss": 0.125}

    def record(line: dict[str, Any], of: str) -> dict[str, Any]:
        return {"kind": "step", "run": of, "at": 1.0, "line": line}

    def describe(id: str) -> Any:
        [arm] = dashboard.http.read(f"/experiments/{id}")["experiment"]["arms"]
        [curve] = dashboard.http.read(f"/experiments/{id}/curves", metric="loss", points=2000)["series"]
        return arm["metrics"], arm["step"], curve["x"], curve["y"]

    answer = dashboard.send(experiment("e1"), run("r1", "e1"), *(record(line, "r1") for line in [*good, *bad, last]))
    assert [rejection["seq"] for rejection in answer["rejected"]] == [2 + len(good) + at for at in range(3)]
    dashboard.send(experiment("e2"), run("r2", "e2"))
    for line in [*good, last]:
        dashboard.send(record(line, "r2"))
    together = describe("e1")
    assert together == describe("e2")
    metrics, furthest, steps, losses = together
    assert (metrics, furthest) == ({"loss": 0.125, "tokens": 5.0}, 94)
    assert steps == [*range(80), 90, 91, 94]
    assert (losses[40], losses[79], losses[-2]) == (-3.0, 7.0, None)


def test_a_batch_that_is_sent_twice_or_overlaps_is_stored_once(dashboard: Any) -> None:
    records = [experiment(), run(), *(step(at, loss=1.0) for at in range(10))]
    assert dashboard.send(*records, stream="s")["next"] == 12
    assert dashboard.send(*records, stream="s")["next"] == 12
    assert dashboard.send(*records[5:], step(10, loss=1.0), stream="s", seq=5)["next"] == 13
    assert dashboard.http.read("/experiments/e1/curves")["series"][0]["n"] == 11
    assert [event["kind"] for event in dashboard.http.read("/experiments/e1/journal")["items"]] == []


def test_a_gap_is_reported_with_the_record_that_is_missing(dashboard: Any) -> None:
    dashboard.send(experiment(), stream="s")
    answer = dashboard.http.post("/sdk/streams/s/", params={"seq": 7}, content="{}")
    assert (answer.status_code, answer.json()["next"]) == (409, 1)


@pytest.mark.parametrize(
    "bad",
    [
        '{"kind": "nonsense"}',
        "not json",
        '{"kind": "step", "run": "r1", "line": {"step": "one"}}',
        '{"kind": "step", "run": "r1", "line": {"step": 1, "loss": "low"}}',
        '{"kind": "step", "run": "r1", "line": {"step": 99999999999999999999}}',
        '{"kind": "step", "run": "r1", "line": {"step": 1, "loss": 1' + "0" * 400 + "}}",
        '{"kind": "experiment", "id": "e1", "set": {"nmae": "x"}}',
        '{"kind": "experiment", "id": "../x", "set": {}}',
        '{"kind": "experiment", "id": "e1", "set": {"n_runs": 99999999999999999}}',
        '{"kind": "run", "id": "r1", "experiment": "other", "set": {}}',
        '{"kind": "run", "id": "' + "r" * 300 + '", "experiment": "e1", "set": {}}',
        '{"kind": "score", "id": "s", "run": "r1", "line": {"split": 5, "metrics": {}}}',
        '{"kind": "event", "experiment": "e1", "event": {"kind": "note"}}',
        '{"kind": "answer", "request": "q", "state": "maybe"}',
        '{"kind": "step", "run": "r1", "line": ' + "[" * 5000 + "]" * 5000 + "}",
    ],
)
def test_a_record_that_cannot_be_stored_is_quarantined_alone(dashboard: Any, bad: str) -> None:
    import json

    good = [experiment(), run(), step(1, loss=1.0)]
    body = "\n".join([*map(json.dumps, good), bad, json.dumps(step(2, loss=2.0))])
    answer = dashboard.http.post("/sdk/streams/s/", params={"seq": 0}, content=body)
    assert answer.status_code == 200
    report = answer.json()
    assert report["next"] == 5
    assert [rejection["seq"] for rejection in report["rejected"]] == [3]
    assert dashboard.http.read("/experiments/e1/curves")["series"][0]["y"] == [1.0, 2.0]


def test_what_is_quarantined_is_reported_once_where_the_database_refuses_another(
    dashboard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy.exc import IntegrityError

    from evsys_sdk.dashboard.server.storage import store

    def refuse(*_: Any) -> None:
        raise IntegrityError("INSERT", {}, ValueError("no room"))

    monkeypatch.setattr(store, "put_benchmark", refuse)
    bad = {"kind": "experiment", "id": "e2", "set": {"nmae": "x"}}
    unstorable = {"kind": "benchmark", "id": "b", "name": "b", "metadata": {}}
    report = dashboard.send(experiment(), bad, unstorable, experiment("e3"))
    assert [rejection["seq"] for rejection in report["rejected"]] == [1, 2]
    assert dashboard.http.read("/experiments")["total"] == 2


def test_what_arrives_before_its_run_waits_for_it(dashboard: Any) -> None:
    early = [step(1, of="later", loss=1.0), step(2, of="later", loss="low"), step(3, of="later", loss=3.0)]
    assert [rejection["seq"] for rejection in dashboard.send(*early, stream="child")["rejected"]] == [1]
    assert dashboard.http.read("/experiments")["items"] == []
    report = dashboard.send(experiment(), run(), run("later", name="r"), step(4, of="later", loss=4.0), stream="parent")
    assert report["rejected"] == []
    [series] = dashboard.http.read("/experiments/e1/curves")["series"]
    assert (series["arm"], series["y"]) == ("r", [1.0, 3.0, 4.0])


def test_text_that_a_database_cannot_hold_is_made_holdable(dashboard: Any) -> None:
    dashboard.send(experiment(hypothesis="a\x00b \U0001f600 \u202e"), run(), stream="s")
    assert dashboard.http.read("/experiments/e1")["experiment"]["hypothesis"] == "a\ufffdb \U0001f600 \u202e"


def test_scores_become_items_curves_and_differences(dashboard: Any) -> None:
    tasks = [f"t{at}" for at in range(8)]

    def score(of: str, values: list[float]) -> dict[str, Any]:
        metric = {"value": sum(values) / 8, "per_task": values, "n_tasks": 8}
        line = {
            "split": "test",
            "name": "bench",
            "step": 5,
            "tasks": tasks,
            "metrics": {"pass@1": metric},
            "sha256": "x",
        }
        return {"kind": "score", "id": f"s-{of}", "run": of, "line": line}

    dashboard.send(
        experiment(metric="test/bench/pass@1", best_run="new"),
        *(run(f"{name}{seed}", run=name, seed=seed) for name in ("old", "new") for seed in (1, 2)),
        score("old1", [1, 0, 0, 0, 0, 0, 0, 1]),
        score("old2", [1, 0, 0, 0, 0, 0, 0, 1]),
        score("new1", [1, 1, 1, 0, 0, 0, 0, 0]),
        score("new2", [1, 1, 1, 0, 0, 0, 0, 0]),
    )
    items = dashboard.http.read("/experiments/e1/items", a="old", b="new", limit=3)
    assert (items["gained"], items["lost"], items["same"]) == (2, 1, 5)
    assert [(item["task"], item["change"]) for item in items["items"]] == [
        ("t7", "lost"),
        ("t1", "gained"),
        ("t2", "gained"),
    ]
    assert items["difference"]["difference"] == pytest.approx(0.125)
    rest = dashboard.http.read("/experiments/e1/items", a="old", b="new", cursor=items["next"])
    assert len(rest["items"]) == 5
    assert dashboard.http.read("/experiments/e1/curves", metric="test/bench/pass@1")["series"][0]["y"] == [0.25]
    runs = {one["run"]: one for one in dashboard.http.read("/experiments/e1")["experiment"]["runs"]}
    assert runs["new"]["seed_scores"] == [0.375, 0.375]
    assert runs["new"]["is_best"]


def test_two_experiments_are_compared_by_their_best_runs(dashboard: Any) -> None:
    for id, value in (("a", 0.0), ("b", 1.0)):
        line = {"split": "test", "name": "n", "step": 1, "tasks": ["t1", "t2"]}
        line["metrics"] = {"p": {"value": value, "per_task": [value, value]}}
        dashboard.send(
            experiment(id, metric="test/n/p", best_run=f"run-{id}", config={"lr": value, "same": 1}),
            run(f"run-{id}", of=id),
            {"kind": "score", "id": id, "run": f"run-{id}", "line": line},
        )
    comparison = dashboard.http.read("/compare", a="a", b="b")
    assert comparison["config"] == [{"path": "lr", "values": [0.0, 1.0]}]
    first, second = comparison["runs"]
    assert (first["run"], first["differences"], first["items"]) == ("run-a", [], None)
    assert second["differences"][0]["difference"] == 1.0
    assert second["differences"][0]["population"] == "2 common tasks, 1 and 1 seeds, this pair alone"
    assert (second["items"]["gained"], second["items"]["lost"]) == (2, 0)
    several = dashboard.http.read("/compare", of=["a", "b:run-b", "b"])
    assert [one["run"] for one in several["runs"]] == ["run-a", "run-b", "run-b"]
    assert dashboard.http.get("/compare", params={"of": ["a", "b:other"]}).status_code == 404
    assert dashboard.http.get("/compare", params={"of": ["a"]}).status_code == 400


def test_rollouts_are_paged_filtered_and_read_whole(dashboard: Any) -> None:
    rows = [
        {
            "task_id": f"t{at % 5}",
            "sample": at // 5,
            "reward": None if at == 7 else float(at % 2),
            "prediction": f"answer {at} 100%",
            "messages": [{"role": "user", "content": "hi"}],
            "info": {"why": at},
        }
        for at in range(20)
    ]
    dashboard.send(
        experiment(), run(), {"kind": "rollouts", "run": "r1", "split": "test", "name": "b", "step": 3, "rows": rows}
    )
    page = dashboard.http.read("/experiments/e1/rollouts", limit=7)
    assert (page["total"], page["sets"], page["steps"], page["arms"]) == (20, ["test/b"], [3], ["r1"])
    assert sum(page["rewards"]) == 19
    assert page["rewards"][0] == 10
    assert page["rewards"][-1] == 9
    ids = [item["id"] for item in page["items"]]
    while page["next"]:
        page = dashboard.http.read("/experiments/e1/rollouts", limit=7, cursor=page["next"])
        ids += [item["id"] for item in page["items"]]
    assert len(set(ids)) == len(ids) == 20

    def count(**query: Any) -> int:
        return dashboard.http.read("/experiments/e1/rollouts", **query)["total"]

    assert (count(outcome="passed"), count(outcome="failed"), count(outcome="error")) == (9, 10, 1)
    assert (count(task="t1"), count(q="answer 19"), count(q="100%"), count(q="1_0%"), count(min_reward=0.5)) == (
        4,
        1,
        20,
        0,
        9,
    )
    group = dashboard.http.read("/experiments/e1/rollouts", task="t1")["items"]
    whole = dashboard.http.read(f"/experiments/e1/rollouts/{group[1]['id']}")
    assert (whole["previous"], whole["following"]) == (group[0]["id"], group[2]["id"])
    assert whole["messages"] == [{"role": "user", "content": "hi"}]
    assert whole["info"] == {"why": 6}
    again = {
        "kind": "rollouts",
        "run": "r1",
        "split": "test",
        "name": "b",
        "step": 3,
        "rows": [rows[0] | {"reward": 5}],
    }
    dashboard.send(again)
    assert (count(), count(min_reward=5)) == (20, 1)


def test_events_notes_and_marks_count_once_by_their_id(dashboard: Any) -> None:
    events = [
        {"id": "1", "time": 5.0, "kind": "experiment_started", "hypothesis_sha256": "x"},
        {"id": "2", "time": 6.0, "kind": "note", "text": "look at the seeds", "author": "me"},
        {"id": "3", "time": 7.0, "kind": "invalidated", "reason": "wrong data"},
    ]
    records = [{"kind": "event", "experiment": "e1", "event": event} for event in events]
    dashboard.send(experiment(), *records, stream="one")
    dashboard.send(*records, stream="two")
    detail = dashboard.http.read("/experiments/e1")
    assert [note["text"] for note in detail["experiment"]["notes"]] == ["look at the seeds"]
    assert (detail["experiment"]["invalidated"], detail["experiment"]["n_notes"]) == ("wrong data", 1)
    assert detail["claim"]["registered_at"] == 5.0
    assert [item["id"] for item in dashboard.http.read("/experiments", q="seeds")["items"]] == ["e1"]
    page = dashboard.http.read("/experiments/e1/journal", limit=2)
    rest = dashboard.http.read("/experiments/e1/journal", cursor=page["next"])
    assert [one["id"] for one in page["items"] + rest["items"]] == ["1", "2", "3"]


def test_notes_and_tags_of_the_page_are_part_of_the_record_and_outlast_later_reports(dashboard: Any) -> None:
    dashboard.send(experiment(hypothesis="longer helps", tags=["first"]))
    body = dashboard.http.post("/experiments/e1/notes", json={"text": "Look at the Seeds", "author": "ann"}).json()
    assert dashboard.http.put("/experiments/e1/tags", json={"tags": ["archived"]}).status_code == 200
    assert dashboard.http.read("/experiments")["total"] == 0
    dashboard.send(experiment(status="completed", sentence="it does", tags=["first"]))
    assert dashboard.http.read("/experiments/e1/notes") == [body]
    for words in ("seeds", "longer", "it does"):
        [item] = dashboard.http.read("/experiments", q=words, tag="archived")["items"]
        assert item["tags"] == ["archived"]
    assert dashboard.http.post("/experiments/e1/notes", json={"text": ""}).status_code == 422
    assert dashboard.http.post("/experiments/none/notes", json={"text": "x"}).status_code == 404


def test_a_stop_request_reaches_the_sender_and_its_answer_comes_back(dashboard: Any) -> None:
    dashboard.send(experiment(), run(), stream="s")
    body = dashboard.http.post("/experiments/e1/requests", json={"kind": "stop", "reason": "enough"}).json()
    assert body["state"] == "open"
    requests = dashboard.send(stream="s", seq=2)["requests"]
    assert [(request["id"], request["kind"], request["reason"]) for request in requests] == [
        (body["id"], "stop", "enough")
    ]
    assert [one["id"] for one in dashboard.http.read("/sdk/experiments/e1/requests/")] == [body["id"]]
    answer = {"kind": "answer", "request": body["id"], "state": "taken", "answer": "after this step"}
    assert dashboard.send(answer, stream="s", seq=2)["requests"] == []
    [stop_request] = dashboard.http.read("/experiments/e1/requests")
    assert (stop_request["state"], stop_request["answer"]) == ("taken", "after this step")


def test_spend_is_summed_over_time(dashboard: Any) -> None:
    lines = [{"at": 1.0, "tokens_trained": 10, "usd": 0.5}, {"at": 2.0, "what": "eval", "usd": 0.25}]
    lines.append({"at": 3.0, "what": "experiment", "wall_s": 9.0})  # of the whole, and no work of its own
    dashboard.send(
        experiment(spend={"usd": 0.75}),
        *({"kind": "spend", "experiment": "e1", "number": at, "line": line} for at, line in enumerate(lines)),
        {"kind": "spend", "experiment": "e1", "number": 1, "line": lines[1]},
    )
    spend = dashboard.http.read("/experiments/e1/spend")
    assert (spend["total"], spend["usd"], spend["tokens"]) == ({"usd": 0.75}, [0.5, 0.75, 0.75], [10.0] * 3)


def test_lines_of_a_ledger_keep_their_order_however_they_arrive(new_database: Callable[[str], str]) -> None:
    from sqlalchemy import event

    from .serving import ServerThread

    lines = [{"at": 1.0, "tokens_trained": at} for at in range(5)]
    server = ServerThread(new_database("sqlite"))
    try:
        # What is not ordered comes in another order than by luck.
        turn = "PRAGMA reverse_unordered_selects = ON"
        event.listen(server.engine, "connect", lambda connection, _: connection.execute(turn))
        server.engine.dispose()
        with contextlib.closing(server.new_project()) as project:
            for at in (3, 1, 4, 0, 2):
                project.send({"kind": "spend", "experiment": "e1", "number": at, "line": lines[at]})
            tokens = project.http.read("/experiments/e1/spend")["tokens"]
    finally:
        server.stop()
    assert tokens == [0.0, 1.0, 3.0, 6.0, 10.0]


def test_lineage_names_parents_children_data_and_what_was_made(dashboard: Any) -> None:
    dashboard.send(
        experiment("parent"),
        experiment("e1", parent_id="parent", models=["tiny"]),
        experiment("child", parent_id="e1"),
        run(
            datasets=[{"source": "train.jsonl", "sha256": "d"}],
            benchmarks=[{"name": "b", "split": "val", "sha256": "b"}],
            checkpoints=[{"step": 5, "path": "somewhere", "final": True}],
        ),
    )
    lineage = dashboard.http.read("/experiments/e1/lineage")
    names = {node["id"]: (node["kind"], node["name"]) for node in lineage["nodes"]}
    assert set(names.values()) == {
        ("experiment", "parent"),
        ("experiment", "e1"),
        ("experiment", "child"),
        ("dataset", "train.jsonl"),
        ("benchmark", "val/b"),
        ("model", "tiny"),
        ("checkpoint", "r1"),
    }
    assert {"source": "experiment:parent", "target": "experiment:e1", "kind": "led to"} in lineage["edges"]


def test_two_runs_of_one_name_stay_apart(dashboard: Any) -> None:
    dashboard.send(
        experiment(), run("x", name="run"), run("y", name="run"), step(1, of="x", loss=1.0), step(1, of="y", loss=2.0)
    )
    series = dashboard.http.read("/experiments/e1/curves")["series"]
    assert [(one["arm"], one["y"]) for one in series] == [("run", [1.0]), ("run#2", [2.0])]


@pytest.mark.parametrize("noun", ["runs", "generations"])
def test_the_routes_of_the_reference_do_the_same_as_a_stream(dashboard: Any, noun: str) -> None:
    http = dashboard.http
    id = http.post("/sdk/experiments/", json={"fields": {"name": "by hand"}}).json()["id"]
    run_id = http.post(f"/sdk/{noun}/", json={"experiment_id": id, "fields": {"name": "r", "seed": 3}}).json()["id"]
    assert http.post(f"/sdk/{noun}/{run_id}/step/", json={"step": 1, "metrics": {"loss": 0.5}}).status_code == 200
    assert http.post(f"/sdk/{noun}/{run_id}/eval/", json={"metrics": {"p": 0.7}, "step": 1}).status_code == 200
    assert (
        http.post(f"/sdk/{noun}/{run_id}/predictions/", json={"rows": [{"task_id": "t", "reward": 1}]}).status_code
        == 200
    )
    assert http.patch(f"/sdk/{noun}/{run_id}/", json={"fields": {"status": "completed"}}).status_code == 200
    assert http.patch(f"/sdk/experiments/{id}/", json={"fields": {"status": "completed"}}).status_code == 200
    detail = http.read(f"/experiments/{id}")
    [arm] = detail["experiment"]["arms"]
    assert (arm["status"], arm["metrics"], arm["seed"]) == ("completed", {"loss": 0.5, "test/p": 0.7}, 3)
    assert detail["experiment"]["status"] == "completed"
    assert http.read(f"/experiments/{id}/rollouts")["total"] == 1
    assert http.post(f"/sdk/{noun}/unknown/step/", json={"step": 1, "metrics": {}}).status_code == 422
    assert http.patch("/sdk/experiments/x/", json={"fields": {"nmae": 1}}).status_code == 422


def test_changes_are_reported_as_they_happen_and_none_is_missed_by_who_comes_back(dashboard: Any) -> None:
    dashboard.send(experiment("before"))
    changes: list[tuple[str, str]] = []
    ready, received = threading.Event(), threading.Event()

    def listen(last: str | None) -> None:
        headers = {"last-event-id": last} if last else {}
        with dashboard.client(dashboard.key) as http, http.stream("GET", "/events", headers=headers) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            name = version = ""
            for line in answer.iter_lines():
                field, _, value = line.partition(": ")
                name, version = (value, version) if field == "event" else (name, value if field == "id" else version)
                if field == "data":
                    changes.append((name, version))
                    (ready if name == "hello" else received).set()
                    if name == "change":
                        return

    for last in (None, "0"):
        for one in (ready, received, changes):
            one.clear()
        listener = threading.Thread(target=listen, args=(last,))
        listener.start()
        assert ready.wait(60)
        if last is None:
            dashboard.send(experiment("during"))
        assert received.wait(60)
        listener.join(60)
        assert [name for name, _ in changes] == ["hello", "change"]


def test_a_change_during_an_update_of_a_page_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from evsys_sdk.dashboard.server import live
    from evsys_sdk.dashboard.views.source import Change

    monkeypatch.setattr(live, "KEEP_ALIVE_S", 3600.0)
    signal = live.Signal()

    class Source:
        looks = 0

        def changes(self, since: int) -> list[Change]:
            self.looks += 1
            if self.looks == 1:  # it is committed when this look has found nothing, and before the next wait
                signal.ring()
                return []
            return [Change("experiment", "e1", since + 1)]

    async def hear() -> list[bytes]:
        signal.bind(asyncio.get_running_loop())
        source: Any = Source()
        stream: Any = live.stream_changes(source, signal, 0, polled=False)
        async with asyncio.timeout(10), contextlib.aclosing(stream):
            return [await anext(stream), await anext(stream)]

    assert b"event: change" in asyncio.run(hear())[1]


def test_what_a_client_really_sends_is_what_the_page_shows(
    dashboard: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evsys_sdk import DashboardClient

    from .conftest import report_to

    report_to(monkeypatch, dashboard.url, tmp_path, key=dashboard.key, project=dashboard.id)
    with DashboardClient() as client:
        id = client.create_experiment("real", hypothesis="it works")
        run_id = client.create_run(id, name="r0", seed=1)
        for number in range(1, 501):
            client.log_step_metric(run_id, number, loss=1 / number)
        client.log_eval_run(run_id, metrics={"pass@1": 0.5}, name="bench", step=500)
        client.log_predictions(run_id, [{"task_id": "t", "reward": 1.0, "prediction": "x"}], name="bench", step=500)
        client.add_note(id, "done")
        client.anchor("deadbeef", experiment_id=id)
        client.record_benchmark("bench", benchmark_id="bench-1", tasks=3)
        client.update_experiment(id, status="completed", conclusion="yes")
        assert client.flush(60)
    detail = dashboard.http.read(f"/experiments/{id}")
    assert detail["conclusion_text"] == "yes"
    assert detail["experiment"]["notes"][0]["text"] == "done"
    assert dashboard.http.read(f"/experiments/{id}/curves")["series"][0]["n"] == 500
    assert dashboard.http.read(f"/experiments/{id}/rollouts")["sets"] == ["test/bench"]
    assert [item["id"] for item in dashboard.http.read("/benchmarks")["items"]] == ["bench-1"]


def test_experiments_that_no_one_reports_about_any_more_are_not_called_running(dashboard: Any) -> None:
    from sqlalchemy import update

    from evsys_sdk.dashboard.server.storage import schema

    dashboard.send(experiment(), stream="s")
    with dashboard.engine.execution_options(writes=True).begin() as connection:
        mine = schema.experiment.c.project_id == dashboard.id
        connection.execute(update(schema.experiment).where(mine).values(heard=1.0))
    assert dashboard.http.read("/experiments/e1")["experiment"]["status"] == "killed"
    dashboard.send(run(), stream="s", seq=1)
    assert dashboard.http.read("/experiments/e1")["experiment"]["status"] == "running"


def test_a_page_that_does_not_exist_is_a_problem_in_words(dashboard: Any) -> None:
    answers: list[httpx.Response] = [
        dashboard.http.get("/experiments/none"),
        dashboard.http.get("/nothing"),
        dashboard.http.get("/experiments", params={"cursor": "zzz"}),
        dashboard.http.get("/experiments", params={"sort": "luck"}),
        dashboard.http.get("/experiments", params={"limit": 0}),
        dashboard.http.put("/experiments"),
    ]
    assert [answer.status_code for answer in answers] == [404, 404, 400, 400, 422, 405]
    assert all(set(answer.json()) == {"error", "message"} for answer in answers)


def test_small_answers_are_not_held_back_until_the_one_before_is_acknowledged() -> None:
    from evsys_sdk.dashboard.server.run import listen

    with listen("127.0.0.1", 0) as sock:  # asyncio sets TCP_NODELAY where the socket says that it is of TCP
        assert sock.proto == socket.IPPROTO_TCP


def test_a_loop_is_shown_as_it_stood_last(dashboard: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from evsys_sdk import DashboardClient

    from .conftest import report_to

    report_to(monkeypatch, dashboard.url, tmp_path, key=dashboard.key, project=dashboard.id)
    plain = {"live": None, "stopped": False, "usd": 0.5, "limits": {"usd": 2.0}, "problem": ""}
    page = plain | {"system": "support", "state": "nothing was begun yet"}
    page |= {name: [] for name in ("rounds", "deployments", "rollbacks", "steps")}
    with DashboardClient() as client:
        client.log_loop("support", page)
        client.log_loop("support", page | {"state": "round 1: gate is next, with key sk-proj-Zx81kQ03bVt7LmN2pRs9Wd4Y"})
        assert client.flush(60)
    # What another machine noted before that, and sends later, is not how it stands.
    dashboard.send({"kind": "loop", "system": "support", "at": 5.0, "page": page | {"state": "old"}})
    bad = dashboard.send({"kind": "loop", "system": "other", "at": 5.0, "page": {"system": "other", "rounds": 1}})
    assert "cannot be shown" in bad["rejected"][0]["reason"]
    [shown] = dashboard.http.read("/loops")["items"]
    assert shown["state"].startswith("round 1: gate is next")
    assert "Zx81kQ03bVt7" not in shown["state"]
    assert shown == page | {"state": shown["state"]}


def test_a_campaign_is_shown_as_it_stood_last(dashboard: Any) -> None:
    page = {"name": "night", "terms": {"question": "?", "tokens": 9}, "state": "open", "left": {"tokens": 4.0}}
    page |= {"decisions": [{"time": 5.0, "action": "probe", "family": "sft", "reason": "first", "limit": 3}]}
    dashboard.send({"kind": "loop", "system": "campaign:night", "at": 5.0, "page": page})
    dashboard.send({"kind": "loop", "system": "campaign:night", "at": 4.0, "page": page | {"state": "old"}})
    bad = dashboard.send({"kind": "loop", "system": "campaign:x", "at": 5.0, "page": {"terms": 1}})
    assert "cannot be shown" in bad["rejected"][0]["reason"]
    [shown] = dashboard.http.read("/campaigns")["items"]
    assert (shown["name"], shown["state"], shown["decisions"][0]["family"]) == ("night", "open", "sft")
    assert dashboard.http.read("/loops")["items"] == []
    answer = dashboard.http.post("/campaigns/none/requests", json={"kind": "extend", "hours": 1})
    assert answer.status_code == 400
    assert "has no campaign 'none'" in answer.text


def test_requests_reach_the_process_that_reports_a_campaign(
    dashboard: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    report_to(monkeypatch, dashboard.url, tmp_path, key=dashboard.key, project=dashboard.id)
    (tmp_path / ".evsys").mkdir()
    begun = time.time()
    open_campaign("night", Terms("?", hours=1))
    with change_campaign("night") as (_, journal):
        start = {"action": "start", "unit": "wall_s", "budget": 3600.0, "deadline": begun + 3600}
        journal.append(Kind.CAMPAIGN_DECIDED, **start)
    assert main(["campaign", "propose", "night", "Train longer."]) == 0
    [shown] = dashboard.http.read("/campaigns")["items"]
    assert shown["candidates"][0]["text"] == "Train longer."
    assert dashboard.http.post("/campaigns/night/requests", json={"kind": "extend", "hours": 2}).status_code == 200
    assert dashboard.http.read("/campaigns")["items"][0]["why"].endswith("extend requested")
    assert main(["campaign", "propose", "night", "Train less."]) == 0
    assert load_campaign("night").deadline == pytest.approx(begun + 3 * 3600)
    [shown] = dashboard.http.read("/campaigns")["items"]
    assert shown["deadline"] == pytest.approx(begun + 3 * 3600)
    assert "requested" not in shown["why"]
    assert (
        dashboard.http.post("/campaigns/night/requests", json={"kind": "stop", "reason": "enough"}).status_code == 200
    )
    assert main(["campaign", "take", "night", "1", "--by", "ada"]) == 0
    assert load_campaign("night").closed == "enough"
    assert dashboard.http.read("/campaigns")["items"][0]["state"] == "closed"


def test_a_deleted_experiment_leaves_no_row(dashboard: Any) -> None:
    dashboard.send(experiment("e1"), run(), step(1, loss=0.5), experiment("e2"), run("r2", "e2"), step(1, "r2", loss=1))
    dashboard.http.post("/experiments/e1/notes", json={"text": "why?"})
    admin = dashboard.client(dashboard.new_key("admin"))
    assert dashboard.http.delete("/experiments/e1").status_code == 403
    assert admin.delete("/experiments/none").status_code == 404
    assert admin.delete("/experiments/e1").status_code == 204
    assert dashboard.http.get("/experiments/e1").status_code == 404
    assert [item["id"] for item in dashboard.http.read("/experiments")["items"]] == ["e2"]
    assert dashboard.http.read("/experiments/e2")["experiment"]["id"] == "e2"


def test_the_looks_at_a_claim_are_those_of_the_journal(dashboard: Any) -> None:
    look = {"id": "l1", "time": 5.0, "kind": "looked", "look": 1, "of": 2, "seeds": 3, "verdict": "supported"}
    look |= {"ends": True, "why": "decided", "error": 0.01, "chance": 0.99}
    dashboard.send(experiment(), {"kind": "event", "experiment": "e1", "event": look})
    expected = {name: look[name] for name in ("look", "of", "seeds", "verdict", "error", "chance", "ends", "why")}
    assert dashboard.http.read("/experiments/e1")["interim"] == [expected]


def test_an_experiment_without_a_name_is_refused(dashboard: Any) -> None:
    answer = dashboard.http.post("/sdk/experiments/", json={})
    assert 400 <= answer.status_code < 500
    assert "needs a name" in answer.text
