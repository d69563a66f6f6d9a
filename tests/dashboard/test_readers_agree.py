"""Every reader of a record reports the same: command line, API, page, context, campaign and gate; disk and server."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import DashboardClient, ExperimentConfig, ExperimentRun
from evsys_sdk.cli.main import main
from evsys_sdk.dashboard.client.upload import report_experiment
from evsys_sdk.dashboard.export import collect_answers
from evsys_sdk.dashboard.local.records import LocalRecords
from evsys_sdk.dashboard.views.answers import describe_experiment
from evsys_sdk.dashboard.views.source import ExperimentQuery
from evsys_sdk.deploy.judged import judge_source
from evsys_sdk.deploy.source import find_source
from evsys_sdk.experiment import Experiment
from evsys_sdk.history.campaigns.campaign import Campaign, Terms
from evsys_sdk.history.campaigns.progress import judge_progress
from evsys_sdk.history.context.questions import list_questions
from evsys_sdk.history.index import HistoryIndex
from evsys_sdk.history.query import Filters
from evsys_sdk.record.reader import ExperimentRecord
from evsys_sdk.record.view.build import view
from tests.audit.project import make_project
from tests.history.recorded import write_experiment

from .conftest import report_to

GOLDEN = Path(__file__).parents[1] / "record" / "golden" / "v1" / "record"
FACTS = (
    *("status", "verdict", "metric", "mode", "best_run", "best_score", "flags", "question"),
    *("n_arms", "n_done", "n_failures", "spend", "varied"),
)
WRITTEN: dict[str, dict[str, Any]] = {
    "killed": {"status": None, "verdict": None},
    "interrupted": {"status": "interrupted", "verdict": None},
    "failed": {"failed": {"changed__seed42": "it broke"}},
    "supported": {"verdict": "supported"},
}
SFT = {"kind": "sft", "params": {"max_steps": 2, "batch_size": 2}}
TRAINED: dict[str, dict[str, Any]] = {
    "mock": SFT,
    "combo": {"kind": "combo", "params": {"phases": [SFT, SFT]}},
    "foreign-script": {"kind": "script", "params": {"file": "loop.py"}},
}
LOOP = """
import evsys_sdk
with evsys_sdk.record("loop", model="tiny", backend="mock") as experiment:
    for run in experiment.runs():
        for step in run.steps(2):
            step.log(loss=1.0)
"""
CASES = [*(f"golden-{path.name}" for path in sorted(GOLDEN.iterdir())), *WRITTEN, *TRAINED]


def make_record(case: str, root: Path) -> Path:
    """The folder of a record; one that has ended was owned by a process of this machine."""
    if case in TRAINED:
        make_project(root.parent, tasks=5)
        (root.parent / "loop.py").write_text(LOOP, "utf-8")
        run = {"name": case, "data": {"path": "data/train.jsonl"}, "model": {"name": "tiny"}}
        benchmark = {"name": "tools", "path": "data/test.jsonl", "max_tokens": 4, "models": ["base"]}
        config = {
            "name": case,
            "output_dir": str(root),
            "launcher": {"kind": "local", "params": {"arms_in": "threads"}},
            "metadata": {"hypothesis": "it learns", "benchmark": benchmark},
            "run": {**run, "algorithm": TRAINED[case], "backend": {"kind": "mock"}},
        }
        return Experiment(ExperimentConfig.model_validate(config)).run().path
    if case in WRITTEN:
        folder = write_experiment(root, case, **WRITTEN[case])
    else:
        name = case.removeprefix("golden-")
        folder = Path(shutil.copytree(GOLDEN / name, root / name))
    (folder / ".lock").write_text(json.dumps({"pid": 1, "host": socket.gethostname()}), "utf-8")
    return folder


def facts(one: dict[str, Any]) -> dict[str, Any]:
    """What a view holds; the line of a list has no arms and runs."""
    by_name = {name: one[name] for name in FACTS}
    if one["arms"]:
        by_name["arms"] = {arm["arm"]: (arm["status"], arm["score"], arm["spend"]) for arm in one["arms"]}
        by_name["runs"] = [(run["run"], run["score"], run["n_seeds"], run["tasks"]) for run in one["runs"]]
    return by_name


@pytest.fixture
def read(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def run(*command: str) -> Any:
        capsys.readouterr()
        main([*command, "--json"])
        return json.loads(capsys.readouterr().out)

    return run


@pytest.mark.parametrize("case", CASES)
def test_every_reader_reports_the_same(case: str, tmp_path: Path, read: Callable[..., Any]) -> None:
    root = tmp_path / "outputs"
    folder = make_record(case, root)
    known = view(ExperimentRecord(folder))
    expected = facts(json.loads(json.dumps(known.to_dict())))
    history, records = read("history", "--root", str(root)), LocalRecords([root], tmp_path)
    [line] = json.loads(records.list_experiments(ExperimentQuery()).model_dump_json())["items"]
    page = collect_answers(records, line["id"])["answers"][f"/experiments/{line['id']}"]
    readers = {
        "show": read("show", str(folder)),
        "history": history["experiments"][0],
        "API, list": line,
        "API": json.loads(describe_experiment(records, line["id"]).model_dump_json())["experiment"],
        "page": json.loads(json.dumps(page))["experiment"],
    }
    for reader, shown in readers.items():
        actual = facts(shown)
        assert (reader, actual) == (reader, {name: expected[name] for name in actual})
    assert records.overview().trials == history["trials"]
    with HistoryIndex([root]) as index:
        questions = list_questions(index, Filters())
    own = {(run.model, run.backend, known.metric, known.mode, run.tasks) for run in known.runs}
    distinct = {
        (question.model, question.backend, question.metric, question.mode, question.tasks) for question in questions
    }
    assert distinct <= own
    assert bool(distinct) == any(run.score is not None for run in known.runs)
    progress = judge_progress(Campaign("c", Terms("?"), 0.0), [known], 0.0)
    assert (progress.best is not None) == (known.answer is not None)
    if progress.best is not None:
        assert (progress.question, progress.to_dict()["best"]["score"]) == (known.question, known.best_score)
    if case in ("mock", "combo"):  # the gate needs weights
        scored = judge_source(find_source(str(folder))).scores[known.metric]
        assert scored.value == known.best_score
        assert scored.question.tasks[:6] in known.question.tasks
        for fact in ("metric", "split", "direction", "model", "backend"):
            assert getattr(scored.question, fact) == getattr(known.question, fact)


@pytest.mark.dashboard
@pytest.mark.parametrize("case", CASES)
def test_a_server_reports_the_same_after_an_upload(
    case: str, dashboard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[..., Any]
) -> None:
    folder = make_record(case, tmp_path / "outputs")
    report_to(monkeypatch, dashboard.url, tmp_path, key=dashboard.key, project=dashboard.id)
    expected = facts(read("show", str(folder)))
    with DashboardClient() as client:
        id = report_experiment(client, folder)
        assert client.flush(timeout_s=60)
    [line] = dashboard.http.read("/experiments")["items"]
    for reader, shown in (("list", line), ("detail", dashboard.http.read(f"/experiments/{id}")["experiment"])):
        actual = facts(shown)
        assert (reader, actual) == (reader, {name: expected[name] for name in actual})
    trials = read("history", "--root", str(folder.parent))["trials"]
    assert dashboard.http.read("/overview")["trials"] == trials


@pytest.mark.dashboard
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
    assert main(["sync"]) == 0  # leaving a run waits for half a second at most, however slow the server is
    experiment = dashboard.http.read(f"/experiments/{ids[0]}")["experiment"]
    assert (experiment["status"], experiment["metric"], experiment["best_run"], experiment["best_score"]) == (
        "completed",
        "test/held_out/accuracy",
        runs[0],
        0.9,
    )
    assert ids[0] == ids[1]  # one name is one experiment, and what its runs differ in are columns of it
    assert [(arm["status"], arm["score"]) for arm in experiment["arms"]] == [("completed", 0.9), ("completed", 0.8)]
    assert (experiment["varied"], [run["varied"] for run in experiment["runs"]]) == (
        ["learning_rate"],
        [{"learning_rate": 0.1}, {"learning_rate": 0.2}],
    )
    assert dashboard.http.read("/experiments", q="learning_rate=0.2")["total"] == 1
    [line] = [line for line in dashboard.http.read("/experiments")["items"] if line["id"] == ids[0]]
    assert facts(experiment) | facts(line) == facts(experiment)
    compared = dashboard.http.read("/compare", of=[f"{ids[0]}:{run}" for run in runs])
    assert compared["config"] == [{"path": "run.learning_rate", "values": [0.1, 0.2]}]
