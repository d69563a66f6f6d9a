"""The list of what needs a person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.history.attention import find_attention
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
