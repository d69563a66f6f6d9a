"""A dashboard witnesses journals: whoever writes one anew, or cuts its end off, is contradicted by it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("sqlalchemy")
pytestmark = pytest.mark.dashboard


from evsys_sdk import Experiment  # noqa: E402
from evsys_sdk.cli.main import main  # noqa: E402
from evsys_sdk.dashboard.client import sender  # noqa: E402
from evsys_sdk.dashboard.client.remote_record import read_anchors, read_requests  # noqa: E402
from evsys_sdk.dashboard.client.upload import experiment_id_of  # noqa: E402
from evsys_sdk.record.events import Journal, Kind, read_events, verify_chain  # noqa: E402

from .conftest import report_to  # noqa: E402
from .test_evsys_logger import config  # noqa: E402


@pytest.fixture
def watched(dashboard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sender, "PATIENCE_S", 60.0)  # these tests read what must have arrived
    report_to(monkeypatch, dashboard.url, tmp_path, key=dashboard.key, project=dashboard.id)
    return dashboard


def audit(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    main(["audit", "reported", "--json", *arguments])
    out, err = capsys.readouterr()
    [report] = json.loads(out)
    return {check["name"]: check for check in report["checks"]} | {"said": err}


def test_an_honest_record_agrees_with_its_witness(watched: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Experiment(config()).run().path
    [experiment] = watched.http.read("/experiments")["items"]
    [anchor] = watched.http.read(f"/experiments/{experiment['id']}/anchors")
    assert anchor["events"] == len(list(read_events(folder)))
    main(["note", "reported", "seen"])
    assert audit(capsys)["anchor"]["state"] == "ok"
    assert audit(capsys, "--anchor", "dashboard")["anchor"]["state"] == "ok"
    assert len(watched.http.read(f"/experiments/{experiment['id']}/anchors")) == 2


@pytest.mark.parametrize("name", ["größe+lr=1", "my first run", "is 50% enough? #2 & more"])
def test_an_experiment_whose_name_must_be_quoted_is_reported(watched: Any, name: str) -> None:
    result = Experiment(config(name=name)).run()
    assert result.status == "completed", result.arms[0].result.error
    folder = result.path
    assert [anchor["events"] for anchor in read_anchors(folder)] == [len(list(read_events(folder)))]
    id = experiment_id_of(folder)
    path = f"/experiments/{quote(id, safe='')}/requests"
    assert watched.http.post(path, json={"kind": "approve", "reason": "go", "author": "ann"}).status_code == 200
    assert [request["reason"] for request in read_requests(id)] == ["go"]
    assert watched.http.read(f"/experiments/{quote(id, safe='')}")["experiment"]["name"] == name


def test_a_journal_written_anew_is_contradicted(watched: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The chain of the forged journal is perfect; only the witness knows that it was another one."""
    folder = Experiment(config()).run().path
    events = list(read_events(folder))
    journal = next(folder.glob("journal.jsonl"))
    journal.unlink()
    with Journal.of(folder) as forged:
        for event in events:
            values = {key: value for key, value in event.to_dict().items() if key not in ("id", "time", "kind", "prev")}
            forged.append(event.kind, **values)
    assert not verify_chain(folder)
    assert audit(capsys)["anchor"]["state"] == "flagged"


def test_a_journal_without_its_end_is_contradicted(watched: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Experiment(config()).run().path
    journal = folder / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-2]))
    anchor = audit(capsys)["anchor"]
    assert anchor["state"] == "flagged"
    assert "when it was anchored" in anchor["evidence"][0]


def test_what_an_audit_flags_is_in_the_list_of_experiments(watched: Any) -> None:
    folder = Experiment(config()).run().path
    with Journal.of(folder) as journal:
        journal.append(Kind.AUDITED, flags=["scores", "claim"], invalid=None)
    assert main(["sync", str(folder)]) == 0
    [first] = watched.http.read("/experiments")["items"]
    assert first["flags"] == ["scores", "claim"]


def test_an_unreachable_witness_is_reported_and_ends_nothing(
    watched: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Experiment(config()).run()
    monkeypatch.setenv("EVSYS_API_URL", "http://127.0.0.1:9")
    report = audit(capsys)
    assert report["anchor"]["state"] == "unchecked"
    assert "what the dashboard witnessed is not compared" in report["said"]


def test_an_experiment_that_waits_hears_what_was_said_on_the_dashboard(watched: Any, tmp_path: Path) -> None:
    limited = config(budget={"usd": 1.0, "needs_approval": True})
    results: list[Any] = []
    running = threading.Thread(target=lambda: results.append(Experiment(limited).run()))
    running.start()
    until = time.monotonic() + 60
    while not (items := [item for item in watched.http.read("/experiments")["items"] if item["live"]]):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert items[0]["status"] == "waiting"
    answer = watched.http.post(
        f"/experiments/{items[0]['id']}/requests", json={"kind": "approve", "reason": "go", "author": "ann"}
    )
    assert answer.status_code == 200
    running.join(60)
    assert results[0].status == "completed"
    [word] = [event for event in read_events(results[0].path) if event.kind == Kind.APPROVED]
    assert (word.text("author"), word.text("reason")) == ("ann", "go")
