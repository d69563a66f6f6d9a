"""The list of what needs a person."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.history.attention import find_attention, find_project_attention, in_order
from evsys_sdk.history.campaigns.campaign import Terms, close_campaign, open_campaign
from evsys_sdk.record.events import Kind
from evsys_sdk.record.lock import folder_lock
from evsys_sdk.record.project_files.journals import campaign_dir, change_campaign
from evsys_sdk.record.view.model import ExperimentView, Failure


def seen(
    name: str, status: str, number: int = 1, *, flags: tuple[str, ...] = (), invalidated: str = ""
) -> ExperimentView:
    failures = [Failure("arm", "out of memory\nin step 3")] if status == "failed" else []
    path = f"/outputs/{name}.{number}"
    return ExperimentView(
        f"{name}-{number}", name, path, status, ended=9.0, flags=[*flags], invalidated=invalidated, failures=failures
    )


def _select_one(*_: Any, **__: Any) -> list[ExperimentView]:
    return [seen("a", "waiting")]


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (seen("a", "waiting"), ("waiting", "waits for approval", "evsys approve /outputs/a.1")),
        (seen("a", "failed"), ("failed", "failed: arm: out of memory", "evsys show /outputs/a.1")),
        (seen("a", "killed"), ("killed", "was killed", "evsys show /outputs/a.1")),
        (seen("a", "budget"), ("budget", "stopped by its budget", "evsys show /outputs/a.1")),
        (seen("a", "completed", flags=("seeds",)), ("flagged", "flagged: seeds", "evsys audit /outputs/a.1")),
        (seen("a", "completed"), None),
        (seen("a", "running"), None),
        (seen("a", "failed", invalidated="wrong data"), None),
    ],
)
def test_what_needs_a_person_is_named_with_a_command(view: ExperimentView, said: tuple[str, str, str] | None) -> None:
    assert [(one.kind, one.what, one.command) for one in find_attention([view])] == ([said] if said else [])


def test_the_latest_attempt_counts_and_what_waits_comes_first() -> None:
    views = [seen("a", "completed", 2), seen("b", "killed"), seen("a", "failed", 1), seen("c", "waiting")]
    found = find_attention(views)
    assert [one.experiment for one in found] == ["c-1", "b-1"]
    assert len({one.id for one in found}) == 2
    assert [one.id for one in find_attention(views)] == [one.id for one in found]


def told(views: list[ExperimentView]) -> list[tuple[str, str]]:
    return [(one.kind, one.what) for one in in_order(find_project_attention(views))]


def decide_step(action: str, family: str, *, by: str = "policy", **more: Any) -> None:
    with change_campaign("night") as (_, journal):
        journal.append(Kind.CAMPAIGN_DECIDED, action=action, family=family, reason="its file is missing", by=by, **more)


def test_a_campaign_reports_each_of_its_states(tmp_path: Path) -> None:
    (tmp_path / ".evsys").mkdir()
    now = time.time()
    open_campaign("night", Terms("?", tokens=1000, hours=1.0))
    assert told([]) == []
    decide_step("start", "", by="", deadline=now + 3600)
    assert told([]) == []
    decide_step("start", "", by="", deadline=now)
    assert [kind for kind, _ in told([])] == ["deadline"]
    decide_step("start", "", by="", deadline=now + 3600)
    decide_step("blocked", "rl")
    failed = ("failed", "failed: rl: its file is missing")
    assert told([]) == [failed]
    mine: dict[str, Any] = {"tags": ["campaign:night"], "started": now, "spend": {"tokens_trained": 950.0}}
    running = ExperimentView("e-1", "e", "/outputs/e", "running", **mine)
    assert told([running]) == [failed, ("nearly_spent", "budget nearly spent: 950 of 1,000 tokens")]
    decide_step("train", "sft")
    with folder_lock(campaign_dir("night"), what="a test"):
        assert "killed" not in dict(told([running]))
    assert dict(told([running]))["killed"] == "was killed in the step 'train sft'"
    ended = ExperimentView("e-1", "e", "/outputs/e", "completed", ended=time.time() + 1, **mine)
    assert "killed" not in dict(told([ended]))
    over = ExperimentView("e-2", "e2", "/outputs/e2", "completed", **mine)
    assert ("ended", "spent: nothing is left of its tokens") in told([ended, over])
    close_campaign("night", "sft: supported.")
    assert told([ended, over]) == [("ended", "ended: sft: supported.")]


def test_status_begins_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("evsys_sdk.history.history.History.select", _select_one)
    assert main(["status"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "Needs you:",
        "  a-1: waits for approval. Start with: evsys approve /outputs/a.1",
    ]
