"""An exported experiment is opened as a file and needs nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.dashboard.export import export_experiment
from evsys_sdk.errors import DataError

from .project import HOSTILE


def test_an_export_is_a_page_that_opens_without_a_server(
    browser: Any, project: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    files = export_experiment(project[0] / "outputs" / "sweep", tmp_path / "sweep")
    assert {"index.html", "data.js", "icon.svg"} <= set(files)
    complaints: list[str] = []
    requests: list[str] = []
    page = browser.new_page()
    page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto((tmp_path / "sweep" / "index.html").as_uri())
    expect(page.get_by_role("heading", level=1)).to_have_text("Longer training routes better.")
    for section in ("Curves", "Items", "Rollouts", "Cost", "Lineage", "Record", "Notes", "Arms"):
        page.get_by_role("navigation", name="sections").get_by_role("link", name=section).click()
        expect(page.locator(".bones")).to_have_count(0)
        expect(page.locator(".problem")).to_have_count(0)
    page.get_by_role("link", name="s__max_steps20", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("s__max_steps20__seed42")
    expect(page.get_by_role("img", name=re.compile("^loss over steps"))).to_be_visible()
    page.get_by_label("metric").select_option("grad_norm")
    expect(page.get_by_role("img", name=re.compile("^grad_norm over steps"))).to_be_visible()
    page.goto((tmp_path / "sweep" / "index.html").as_uri() + "#/e/" + project[1]["sweep"] + "?tab=items")
    page.get_by_label("second run").select_option("s__max_steps20")
    expect(page.get_by_role("table", name="tasks")).to_be_visible()
    page.goto((tmp_path / "sweep" / "index.html").as_uri() + "#/e/" + project[1]["sweep"] + "?tab=rollouts")
    page.get_by_label("outcome").select_option("passed")
    expect(page.get_by_role("table", name="rollouts")).to_be_visible()
    assert complaints == []
    assert [url for url in requests if not url.startswith("file:")] == []
    page.close()


def test_what_a_model_wrote_cannot_leave_the_data(project: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    export_experiment(project[0] / "outputs" / "rl", tmp_path / "rl")
    script = (tmp_path / "rl" / "data.js").read_text("utf-8")
    assert "<" not in script
    assert HOSTILE.replace('"', '\\"').replace("<", "\\u003c") in script


def test_a_folder_that_has_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x", "utf-8")
    with pytest.raises(DataError, match="it exists already"):
        export_experiment(tmp_path, tmp_path)


def test_without_the_page_an_export_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evsys_sdk.dashboard.export.PAGE", tmp_path / "nothing")
    with pytest.raises(DataError, match="make page"):
        export_experiment(tmp_path, tmp_path / "out")
