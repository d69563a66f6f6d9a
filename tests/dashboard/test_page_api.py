"""What only the page asks for: one arm whole, and lists read from any place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytestmark = pytest.mark.dashboard

from evsys_sdk.dashboard.local.records import LocalRecords  # noqa: E402
from evsys_sdk.dashboard.views.answers import describe_arm  # noqa: E402
from evsys_sdk.dashboard.views.source import ExperimentQuery, NotFound, RolloutQuery  # noqa: E402
from evsys_sdk.history.query import Filters  # noqa: E402
from tests.history.recorded import BEGAN, write_experiment  # noqa: E402


@pytest.fixture
def records(tmp_path: Path) -> LocalRecords:
    for at in range(5):
        write_experiment(tmp_path / "outputs", f"e{at}", started=BEGAN + at, seeds=(42,), runs={"only": 0.5})
    return LocalRecords([tmp_path / "outputs"], tmp_path)


def id_of(records: LocalRecords, name: str) -> str:
    return next(item.id for item in records.list_experiments(ExperimentQuery(Filters(search=name))).items)


def arm_folder(records: LocalRecords, name: str) -> Path:
    [arm] = records.experiment(id_of(records, name)).experiment.arms
    folder = records.roots[0] / name / arm.arm
    folder.mkdir(exist_ok=True)
    return folder


def test_a_list_can_be_read_from_any_place(records: LocalRecords) -> None:
    page = records.list_experiments(ExperimentQuery(sort="name", limit=2, offset=3))
    assert [item.name for item in page.items] == ["e3", "e4"]
    assert (page.total, page.next) == (5, None)
    assert records.list_experiments(ExperimentQuery(sort="name", offset=9)).items == []


def test_an_arm_is_shown_with_checkpoints_examples_and_story(records: LocalRecords) -> None:
    folder = arm_folder(records, "e1")
    line = {"name": "step2", "next_step": 2, "sampler": "there", "final": True, "metrics": {"loss": 1.5}, "state": "s"}
    (folder / "checkpoints.jsonl").write_text(json.dumps(line) + "\n", "utf-8")
    (folder / "rendered_examples.md").write_text("+ answer", "utf-8")
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / "conclusion.md").write_text("It went well.", "utf-8")
    arm = describe_arm(records, id_of(records, "e1"), folder.name)
    assert arm.checkpoints == [{"name": "step2", "step": 2, "path": "there", "final": True, "metrics": {"loss": 1.5}}]
    assert (arm.examples, arm.story) == ("+ answer", "It went well.")
    assert arm.config["algorithm"]["kind"] == "sft"


def test_an_arm_that_is_not_there_is_reported(records: LocalRecords) -> None:
    with pytest.raises(NotFound, match=r"there is no arm '\.\./e2' here"):
        describe_arm(records, id_of(records, "e1"), "../e2")


def test_rollouts_are_read_on_as_they_come_and_anew_when_they_were_rewound(records: LocalRecords) -> None:
    file = arm_folder(records, "e2") / "logs" / "training" / "rollouts.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    id = id_of(records, "e2")

    def write(first: int, last: int, mode: str = "a", reward: float = 0.0) -> None:
        with file.open(mode, encoding="utf-8") as out:
            for task in range(first, last):
                out.write(json.dumps({"task_id": f"t{task:02}", "sample": 0, "step": 1, "reward": reward}) + "\n")

    def listed(**query: int) -> list[tuple[str, float | None]]:
        return [(item.task, item.reward) for item in records.rollouts(id, RolloutQuery(**query)).items]

    write(0, 3)
    assert listed() == [("t00", 0.0), ("t01", 0.0), ("t02", 0.0)]
    write(3, 5)
    assert listed(offset=2) == [("t02", 0.0), ("t03", 0.0), ("t04", 0.0)]
    with file.open("a", encoding="utf-8") as out:
        out.write('{"task_id": "t05", "samp')
    assert len(listed()) == 5
    write(0, 7, "w", reward=1.0)  # longer than before, and other lines
    assert listed(limit=2) == [("t00", 1.0), ("t01", 1.0)]
    assert len(listed()) == 7


def test_the_server_answers_the_same_questions(dashboard: Any) -> None:
    checkpoints = [{"step": 3, "path": "there", "final": True}]
    fields = {"name": "only", "seed": 42, "checkpoints": checkpoints}
    rows = [{"task_id": f"t{at}", "sample": 0, "reward": 0.5} for at in range(6)]
    dashboard.send(
        *({"kind": "experiment", "id": f"e{at}", "set": {"name": f"e{at}"}} for at in range(4)),
        {"kind": "run", "id": "r1", "experiment": "e1", "set": fields},
        {"kind": "rollouts", "run": "r1", "split": "val", "name": "b", "step": 1, "rows": rows},
    )
    page = dashboard.http.read("/experiments", sort="name", limit=2, offset=1)
    assert [item["name"] for item in page["items"]] == ["e1", "e2"]
    page = dashboard.http.read("/experiments/e1/rollouts", limit=2, offset=4)
    assert [item["task"] for item in page["items"]] == ["t4", "t5"]
    arm = dashboard.http.read("/experiments/e1/arms/only")
    assert (arm["checkpoints"], arm["examples"], arm["arm"]["seed"]) == (checkpoints, "", 42)
    assert dashboard.http.get("/experiments/e1/arms/other").status_code == 404
