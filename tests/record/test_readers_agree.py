"""Show, history, context, campaigns and gate report the same question, score and state of one record."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig
from evsys_sdk.cli.main import main
from evsys_sdk.deploy.judged import judge_source
from evsys_sdk.deploy.source import find_source
from evsys_sdk.experiment import Experiment
from evsys_sdk.history.context.questions import list_questions
from evsys_sdk.history.index import HistoryIndex
from evsys_sdk.history.query import Filters
from evsys_sdk.loop.campaigns.campaign import Campaign, Terms
from evsys_sdk.loop.campaigns.progress import judge_progress
from evsys_sdk.record.reader import ExperimentRecord
from evsys_sdk.record.view.build import view
from tests.audit.project import make_project
from tests.history.recorded import write_experiment

GOLDEN = Path(__file__).parent / "golden" / "v1" / "record"
FACTS = ("status", "verdict", "metric", "mode", "best_run", "best_score", "flags", "n_arms", "n_done", "question")
MADE: dict[str, dict[str, Any]] = {
    "killed": {"status": None, "verdict": None},
    "interrupted": {"status": "interrupted", "verdict": None},
    "failed": {"failed": {"changed__seed42": "it broke"}},
    "explicit_mock": {"verdict": "supported"},
}


def run_combo(root: Path) -> Path:
    """A real experiment of two phases, with weights."""
    make_project(root.parent, tasks=5)
    params = {"max_steps": 2, "batch_size": 2}
    algorithm = {"kind": "combo", "params": {"phases": [{"kind": "sft", "params": params}] * 2}}
    run = {"name": "combo", "data": {"path": "data/train.jsonl"}, "model": {"name": "tiny"}, "algorithm": algorithm}
    benchmark = {"name": "tools", "path": "data/test.jsonl", "max_tokens": 4, "models": ["base"]}
    config = {
        "name": "combo",
        "output_dir": str(root),
        "launcher": {"kind": "local", "params": {"arms_in": "threads"}},
        "metadata": {"hypothesis": "it learns", "benchmark": benchmark},
        "run": {**run, "backend": {"kind": "mock"}},
    }
    return Experiment(ExperimentConfig.model_validate(config)).run().path


@pytest.mark.parametrize("case", [*(f"golden-{path.name}" for path in sorted(GOLDEN.iterdir())), *MADE, "combo"])
def test_every_reader_reports_the_same(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, name = tmp_path / "outputs", case.removeprefix("golden-")
    if case == "combo":
        folder = run_combo(root)
    elif case in MADE:
        folder = write_experiment(root, name, **MADE[case])
    else:
        folder = Path(shutil.copytree(GOLDEN / name, root / name))
    if case != "combo":
        (folder / ".lock").write_text(json.dumps({"pid": 1, "host": socket.gethostname()}), "utf-8")

    def read(*command: str) -> Any:
        capsys.readouterr()
        main([*command, "--json"])
        return json.loads(capsys.readouterr().out)

    known = view(ExperimentRecord(folder))
    told = json.loads(known.to_json())
    [listed] = read("history", "--root", str(root))["experiments"]
    for shown in (read("show", str(folder)), listed):
        assert {fact: shown[fact] for fact in FACTS} == {fact: told[fact] for fact in FACTS}
    # Context: its questions name a model, backend, metric and tasks of this experiment's runs.
    with HistoryIndex([root]) as index:
        questions = list_questions(index, Filters())
    own = {(run.model, run.backend, known.metric, known.mode, run.tasks) for run in known.runs}
    asked = {(one.model, one.backend, one.metric, one.mode, one.tasks) for one in questions}
    assert asked <= own
    assert bool(asked) == any(run.score is not None for run in known.runs)
    # A campaign of this experiment alone.
    progress = judge_progress(Campaign("c", Terms("?"), 0.0), [known], 0.0)
    assert (progress.best is not None) == (known.answer is not None)
    if progress.best is not None:
        assert progress.question == known.question
        assert progress.to_dict()["best"]["score"] == told["best_score"]
    if case == "combo":  # the gate needs weights
        judged = judge_source(find_source(str(folder)))
        scored = judged.scores[known.metric]
        assert scored.value == known.best_score
        assert scored.question.tasks[:6] in known.question.tasks
        for fact in ("metric", "split", "direction", "model", "backend"):
            assert getattr(scored.question, fact) == getattr(known.question, fact)
