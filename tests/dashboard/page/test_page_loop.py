"""The page of the closed loops, in a real browser, on a loop that really ran."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
pytestmark = pytest.mark.dashboard

from axe_playwright_python.sync_playwright import Axe  # noqa: E402
from playwright.sync_api import expect  # noqa: E402

from .conftest import Tab  # noqa: E402
from .project import make_looped  # noqa: E402


@pytest.fixture
def looped(tmp_path: Path) -> Path:
    make_looped(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_loop_is_shown_with_its_rounds_verdicts_and_what_it_waits_for(
    looped: Path, open_tab: Callable[..., Tab]
) -> None:
    tab = open_tab(looped)
    page = tab.open("/loops")
    loop = page.get_by_role("region", name="loop of support")
    expect(loop).to_contain_text("production.1 is live")
    expect(loop).to_contain_text("round 3: experiment waits to be approved")
    expect(loop).to_contain_text("waits for approval")
    rows = loop.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_contain_text("shipped")
    expect(rows.nth(0)).to_contain_text("production.1")
    expect(rows.nth(1)).to_contain_text("refused")
    expect(rows.nth(1)).to_contain_text("test/safety/pass@1 -1.000")
    expect(rows.nth(2)).to_contain_text("next: experiment")
    expect(rows.nth(2)).to_contain_text("of the questions are unlike")
    result: Any = Axe().run(page)
    assert result.response["violations"] == [], json.dumps(result.response["violations"], indent=1)[:3000]
    page.set_viewport_size({"width": 390, "height": 844})
    expect(rows.nth(1)).to_contain_text("refused")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert loop.locator("[aria-label=rounds]").evaluate("box => box.scrollWidth <= box.clientWidth")
    loop.get_by_role("button", name="approve").click()
    page.get_by_role("dialog").get_by_role("button", name="approve").click()
    expect(loop).to_contain_text("round 3: experiment is next", timeout=20_000)
    rows.nth(0).get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("What happened up to round 1")


def test_a_project_without_a_loop_says_how_to_begin_one(tab: Tab) -> None:
    page = tab.open("/loops")
    expect(page.get_by_text("No loop of this project has run yet")).to_be_visible()
    expect(page.get_by_role("navigation", name="pages").get_by_role("link", name="Loops")).to_have_attribute(
        "aria-current", "page"
    )
