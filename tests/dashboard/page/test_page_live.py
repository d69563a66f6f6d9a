"""The page while something happens: signing in, following a run, stopping it, losing the server."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
pytestmark = pytest.mark.dashboard

from playwright.sync_api import expect  # noqa: E402

from .conftest import Site, Tab  # noqa: E402
from .project import experiment_id, write_live_config  # noqa: E402


def test_without_the_token_the_error_names_how_to_get_it(
    browser: Any, serve: Callable[[Path], Site], project: tuple[Path, Any]
) -> None:
    site = serve(project[0])
    page = browser.new_page()
    page.goto(site.url)
    expect(page.get_by_role("alert")).to_contain_text("Open the address that this command prints")
    expect(page.locator("code")).to_have_text("evsys dashboard")
    page.get_by_label("token or API key").fill("not the token")
    page.get_by_role("button", name="sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("token or API key").fill(site.token)
    page.get_by_role("button", name="sign in").click()
    expect(page.get_by_role("heading", name="Experiments")).to_be_visible()
    page.close()


def test_the_token_does_not_stay_in_the_address(tab: Tab) -> None:
    assert "token" not in tab.page.url


def test_an_empty_project_says_what_to_type(open_tab: Callable[..., Tab], tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    tab = open_tab(tmp_path)
    expect(tab.page.get_by_text("No experiments yet")).to_be_visible()
    expect(tab.page.locator("code")).to_have_text("evsys init-project . && evsys new-experiment first")
    tab.open("/campaign")
    expect(tab.page.get_by_text("No experiments yet")).to_be_visible()


@pytest.fixture
def start_run() -> Iterator[Callable[[Path], subprocess.Popen[bytes]]]:
    """Starts `evsys run` as a separate process; what still runs at the end is stopped."""
    started: list[subprocess.Popen[bytes]] = []

    def start(config: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "evsys_sdk", "run", str(config)]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen(command, cwd=config.parent, **quiet))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_a_running_experiment_is_followed_in_place_and_can_be_stopped(
    open_tab: Callable[..., Tab], start_run: Callable[[Path], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    (tmp_path / "outputs").mkdir()
    tab = open_tab(tmp_path)
    page = tab.page
    running = start_run(write_live_config(tmp_path, 100_000))
    # It shows up in the list by itself, and moves on there.
    row = page.get_by_role("table", name="experiments").locator("[role=row]").filter(has_text="It can be watched.")
    expect(row).to_contain_text("running", timeout=60_000)
    id = experiment_id(tmp_path / "outputs" / "live")
    page = tab.open(f"/e/{id}/a/slow?metric=grad_norm&log=1")
    plot = page.get_by_role("img", name=re.compile("^grad_norm over steps"))
    expect(plot).to_be_visible(timeout=30_000)
    attribute = plot.get_attribute("aria-label")
    page.evaluate("window.kept = document.querySelector('.u-over')")
    expect(plot).not_to_have_attribute("aria-label", attribute or "", timeout=30_000)
    # New points came in; what was chosen is as it was, and the plot is the same one.
    expect(page.get_by_label("metric")).to_have_value("grad_norm")
    expect(page.get_by_role("button", name="log")).to_have_attribute("aria-pressed", "true")
    assert page.evaluate("window.kept === document.querySelector('.u-over')")
    page = tab.open(f"/e/{id}")
    page.get_by_role("button", name="stop").click()
    page.get_by_label("reason").fill("seen enough")
    page.get_by_role("dialog").get_by_role("button", name="stop").click()
    assert running.wait(60) == 130
    expect(page.get_by_text("interrupted").first).to_be_visible(timeout=30_000)
    assert "seen enough" in (tmp_path / "outputs/live/journal.jsonl").read_text("utf-8")
