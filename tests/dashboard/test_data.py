"""Datasets and benchmarks on a dashboard: versions that never change, pulled once by id or name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytestmark = pytest.mark.dashboard

from evsys_sdk import Workspace, WorkspaceError  # noqa: E402
from evsys_sdk.cli.main import main  # noqa: E402

from .conftest import report_to  # noqa: E402


@pytest.fixture
def project(dashboard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / ".evsys").mkdir()
    report_to(monkeypatch, dashboard.url, tmp_path, key=dashboard.key, project=dashboard.id)
    return dashboard


def rows_file(folder: Path, count: int = 5, prefix: str = "q") -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"query": f"{prefix}{at}"}) + "\n" for at in range(count)), "utf-8")
    return path


def upload(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["dataset", "upload", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def elsewhere(tmp_path: Path) -> Workspace:
    (tmp_path / "other" / ".evsys").mkdir(parents=True, exist_ok=True)
    return Workspace(tmp_path / "other")


def test_rows_are_pulled_once_by_name_or_id_and_then_without_the_server(
    project: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    uploaded = upload(capsys, str(rows_file(tmp_path)), "--name", "routing")
    assert (uploaded["uploaded"], uploaded["version"], uploaded["rows"]) == (True, 1, 5)
    assert upload(capsys, "routing")["uploaded"] is False
    pulled = elsewhere(tmp_path).pull_dataset(name="routing")
    assert (pulled.id, pulled.manifest.lineage.origin) == (uploaded["id"], "dashboard")
    assert [row["query"] for row in pulled.rows()] == ["q0", "q1", "q2", "q3", "q4"]
    monkeypatch.setenv("EVSYS_API_URL", "http://127.0.0.1:9")
    assert elsewhere(tmp_path).pull_dataset(id=uploaded["id"]).id == uploaded["id"]
    assert elsewhere(tmp_path).pull_dataset(name="routing").id == uploaded["id"]


def test_a_name_means_the_latest_version_and_older_ones_stay(
    project: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = upload(capsys, str(rows_file(tmp_path)), "--name", "routing")
    second = upload(capsys, str(rows_file(tmp_path, prefix="p")), "--name", "routing")
    assert (first["version"], second["version"]) == (1, 2)
    there = elsewhere(tmp_path)
    assert there.pull_dataset(name="routing").id == second["id"]
    assert there.pull_dataset(name="routing@v1").id == first["id"]
    listed = project.http.read("/datasets")["items"]
    assert [entry["version"] for entry in listed] == [2, 1]
    page = project.http.read("/datasets", limit=1)
    assert project.http.read("/datasets", cursor=page["next"])["items"] == listed[1:]


def test_what_the_dashboard_does_not_have_is_unknown_as_before(project: Any, tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match="'nothing' is unknown"):
        elsewhere(tmp_path).pull_dataset(name="nothing")
    with pytest.raises(WorkspaceError, match="neither in the workspace nor in its source"):
        elsewhere(tmp_path).pull_dataset(id="nothing")


def test_an_experiment_trains_and_is_scored_on_what_only_the_dashboard_has(
    project: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from evsys_sdk import Experiment, ExperimentConfig

    chats = [
        {"messages": [{"role": "user", "content": f"q{at}"}, {"role": "assistant", "content": f"a{at % 3}"}]}
        for at in range(9)
    ]
    verifiers = [{"kind": "in_process", "fn_name": "exact_match", "expected": f"a{at}"} for at in range(3)]
    tasks = [{"task_id": f"t{at}", "instruction": f"q{at}", "verifier": verifiers[at]} for at in range(3)]
    for name, rows in (("chats", chats), ("tasks", tasks)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    dataset = upload(capsys, "chats.jsonl", "--name", "chats")
    assert main(["benchmark", "upload", "tasks.jsonl", "--name", "tasks", "--json"]) == 0
    benchmark = json.loads(capsys.readouterr().out)
    (tmp_path / "fresh" / ".evsys").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "fresh")
    algorithm = {"kind": "sft", "params": {"max_steps": 2}}
    run = {"name": "sft", "data": {"dataset_id": dataset["id"]}, "model": {"name": "tiny"}, "algorithm": algorithm}
    metadata = {"hypothesis": "x", "benchmark": [{"name": "tasks", "id": benchmark["id"], "metrics": ["pass@1"]}]}
    values = {"name": "remote", "output_dir": "outputs", "metadata": metadata}
    result = Experiment(ExperimentConfig.model_validate({**values, "run": {**run, "backend": {"kind": "mock"}}})).run()
    assert result.status == "completed", result.arms[0].result.error
    used = json.loads(Path("outputs/remote/sft/datasets.json").read_text("utf-8"))[0]
    assert (used["id"], used["source_sha256"]) == (dataset["id"], dataset["sha256"])
    assert Path(f".evsys/datasets/{dataset['id']}.jsonl").is_file()
    assert Path(f".evsys/benchmarks/{benchmark['id']}.jsonl").is_file()


def announce(project: Any, body: bytes, **changes: Any) -> Any:
    about = {"name": "d", "split": "train", "sha256": hashlib.sha256(body).hexdigest(), **changes}
    return project.http.post("/sdk/datasets/", json=about)


def test_pieces_come_in_order_once_and_are_checked_against_the_hash(dashboard: Any) -> None:
    body = b'{"a": 1}\n{"a": 2}\n'
    begun = announce(dashboard, body).json()
    base = f"/sdk/datasets/{begun['id']}"
    http = dashboard.http
    assert http.put(f"{base}/pieces/1", content=b'{"a": 2}\n').status_code == 422
    assert http.put(f"{base}/pieces/0", content=b"").status_code == 422
    assert http.put(f"{base}/pieces/0", content=b'{"a": 1').status_code == 422
    assert http.put(f"{base}/pieces/0", content=b"[1]\n").status_code == 422
    assert http.put(f"{base}/pieces/0", content=b'{"a": 1}\n').json() == {"next_piece": 1}
    assert http.put(f"{base}/pieces/0", content=b'{"a": 1}\n').json() == {"next_piece": 1}
    assert http.get(base).status_code == 404, "nobody reads half of it"
    assert http.post(f"{base}/finish").status_code == 422
    assert announce(dashboard, body).json()["next_piece"] == 0, "what is spoiled is sent again"
    for number, line in enumerate(body.splitlines(keepends=True)):
        http.put(f"{base}/pieces/{number}", content=line)
    assert http.post(f"{base}/finish").json()["rows"] == 2
    assert http.get(f"{base}/pieces/1").content == b'{"a": 2}\n'
    assert announce(dashboard, body).json()["complete"] is True
    assert announce(dashboard, b"{}\n", version=1).status_code == 422, "a version never changes"


def test_an_upload_that_was_interrupted_and_overtaken_gets_the_next_version(dashboard: Any) -> None:
    first, other = b'{"a": 1}\n', b'{"a": 2}\n'
    assert announce(dashboard, first).json()["version"] == 1
    assert announce(dashboard, first).json()["version"] == 1, "it goes on where it stopped"
    base = f"/sdk/datasets/{announce(dashboard, other).json()['id']}"
    dashboard.http.put(f"{base}/pieces/0", content=other)
    assert dashboard.http.post(f"{base}/finish").json()["version"] == 1
    again = announce(dashboard, first)
    assert again.status_code == 200, again.text
    assert (again.json()["version"], again.json()["complete"]) == (2, False)


@pytest.mark.parametrize(
    "content",
    [
        b'{"query": "q0"}\n\n{"query": "q1"}\n \n',
        b'{"query": "q0"}\n{"query": "q1"}',
        b'{"query": "q0"}\r\n{"query": "q1"}\r\n\r\n',
    ],
)
@pytest.mark.parametrize("piece_bytes", [4 << 20, 1])
def test_rows_that_the_workspace_takes_are_uploaded_and_pulled_as_they_are(
    project: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    piece_bytes: int,
) -> None:
    monkeypatch.setattr("evsys_sdk.dashboard.client.remote_data._PIECE_BYTES", piece_bytes)
    (tmp_path / "rows.jsonl").write_bytes(content)
    uploaded = upload(capsys, "rows.jsonl", "--name", "routing")
    assert (uploaded["rows"], uploaded["bytes"]) == (2, len(content))
    shown = project.http.read(f"/datasets/{uploaded['id']}/rows")
    assert [row["query"] for row in shown["rows"]] == ["q0", "q1"]
    last = project.http.read(f"/datasets/{uploaded['id']}/rows", limit=1)["next"]
    assert [row["query"] for row in project.http.read(f"/datasets/{uploaded['id']}/rows", cursor=last)["rows"]] == [
        "q1"
    ]
    pulled = elsewhere(tmp_path).pull_dataset(name="routing")
    assert pulled.path.read_bytes() == content


def test_pieces_that_part_a_line_are_sent_again(dashboard: Any) -> None:
    pieces = [b'{"a": 1}', b'{"a": 2}\n']
    base = f"/sdk/datasets/{announce(dashboard, b''.join(pieces)).json()['id']}"
    for number, piece in enumerate(pieces):
        dashboard.http.put(f"{base}/pieces/{number}", content=piece)
    assert dashboard.http.post(f"{base}/finish").status_code == 422


@pytest.mark.parametrize("name", ["", "../x", "a/b", "x" * 90, "a b", "nul\x00"])
def test_a_name_that_is_no_name_is_refused(dashboard: Any, name: str) -> None:
    answer = announce(dashboard, b"{}\n", name=name)
    assert answer.status_code == 422
    assert set(answer.json()) == {"error", "message"}
