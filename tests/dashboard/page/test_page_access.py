"""The page for everybody: contrast and names in both colour schemes, narrow screens, long lists."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
pytest.importorskip("axe_playwright_python")
pytestmark = pytest.mark.dashboard

from axe_playwright_python.sync_playwright import Axe  # noqa: E402
from playwright.sync_api import expect  # noqa: E402

from evsys_sdk.record.events import Kind  # noqa: E402
from tests.history.recorded import BEGAN, write_experiment  # noqa: E402

from .conftest import Tab  # noqa: E402

EVERYWHERE = [
    "/",
    "/?q=nothing+has+this",
    "/campaign",
    "/compare?a={sweep}&b={too-hot}",
    "/data",
    "/e/{sweep}",
    "/e/{sweep}?tab=curves",
    "/e/{sweep}?tab=items",
    "/e/{rl}?tab=rollouts",
    "/e/{continual}?tab=retention",
    "/e/{sweep}?tab=cost",
    "/e/{sweep}?tab=lineage",
    "/e/{sweep}?tab=record",
    "/e/{search}?tab=notes",
    "/e/{too-hot}",
    "/e/{sweep}/a/s__max_steps20__seed42",
    "/e/{sweep}/a/s__max_steps20__seed42?tab=examples",
    "/e/{sweep}/a/s__max_steps20__seed42?tab=checkpoints",
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(
    open_tab: Callable[..., Tab], project: tuple[Path, dict[str, str]], scheme: str
) -> None:
    tab = open_tab(project[0], color_scheme=scheme, reduced_motion="reduce")
    violations_by_page: dict[str, list[str]] = {}
    for place in EVERYWHERE:
        page = tab.open(place.format(**project[1]))
        violations = Axe().run(page).response["violations"]
        descriptions = [f"{violation['id']}: {violation['nodes'][0]['html'][:160]}" for violation in violations]
        if descriptions:
            violations_by_page[place] = descriptions
    assert violations_by_page == {}


def test_nothing_is_wider_than_a_telephone(open_tab: Callable[..., Tab], project: tuple[Path, dict[str, str]]) -> None:
    tab = open_tab(project[0], viewport={"width": 360, "height": 740})
    wide: dict[str, int] = {}
    for place in EVERYWHERE:
        page = tab.open(place.format(**project[1]))
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 360:
            wide[place] = width
    assert wide == {}


@pytest.mark.parametrize("width", [360, 1280])
def test_what_an_audit_flags_is_marked_in_the_list_on_every_screen(
    open_tab: Callable[..., Tab], tmp_path: Path, width: int
) -> None:
    audited = {"id": "a1", "time": BEGAN, "kind": Kind.AUDITED, "flags": ["contamination"]}
    long_name = "a-change-with-a-name-that-is-much-wider-than-any-telephone"
    write_experiment(tmp_path / "outputs", long_name, events=[audited], tags=["routing", "tiny", "nightly"])
    page = open_tab(tmp_path, viewport={"width": width, "height": 740}).open("/")
    mark = page.get_by_text("flagged", exact=True)
    expect(mark).to_be_visible()
    box = mark.bounding_box()
    text_at = "([x, y]) => document.elementFromPoint(x, y).textContent"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for x in (box["x"] + 2, box["x"] + box["width"] - 2):  # not covered and not cut off
        assert page.evaluate(text_at, [x, box["y"] + box["height"] / 2]) == "flagged"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many experiments, one of them with many runs and many rollouts."""
    root = tmp_path_factory.mktemp("large")
    outputs = root / "outputs"
    for at in range(700):
        write_experiment(outputs, f"e{at:04}", started=BEGAN + at, seeds=(42,), runs={"only": at / 700})
    runs = {f"run{at:04}": at / 1000 for at in range(1000)}
    folder = write_experiment(outputs, "wide", started=BEGAN + 9999, seeds=(42,), runs=runs)
    place = folder / "run0999__seed42" / "logs" / "training"
    if not place.parent.parent.is_dir():
        place = folder / "run0999" / "logs" / "training"
    place.mkdir(parents=True)
    line: dict[str, Any] = {"status": "ok", "text": "an answer", "step": 1}
    with (place / "rollouts.jsonl").open("w", encoding="utf-8") as out:
        for at in range(20_000):
            out.write(json.dumps(line | {"task_id": f"t{at:05}", "sample": 0, "reward": (at % 11) / 10}) + "\n")
    return root


def rows_of(page: Any, name: str) -> Any:
    return page.get_by_role("table", name=name).locator("[role=row]:not(.head)")


def test_only_what_is_on_the_screen_exists(open_tab: Callable[..., Tab], large: Path) -> None:
    tab = open_tab(large)
    page = tab.open("/?sort=name")
    expect(rows_of(page, "experiments").first).to_contain_text("e0000")
    assert page.get_by_role("table", name="experiments").get_attribute("aria-rowcount") == "701"
    assert rows_of(page, "experiments").count() < 80
    page.locator(".virtual").evaluate("box => box.scrollTo(0, box.scrollHeight)")
    expect(rows_of(page, "experiments").last).to_contain_text("wide")
    assert rows_of(page, "experiments").count() < 80


def test_a_thousand_runs_and_twenty_thousand_rollouts_are_shown(open_tab: Callable[..., Tab], large: Path) -> None:
    tab = open_tab(large)
    page = tab.open("/?q=wide")
    page.get_by_role("link", name="The change of wide helps.").click()
    expect(page.get_by_text("1000 runs, val/bench/pass@1")).to_be_visible()
    assert page.locator(".arms tbody tr").count() < 80
    page.locator(".arms").evaluate("box => box.scrollTo(0, box.scrollHeight)")
    expect(page.locator(".arms tbody tr").last).to_be_visible()
    page.get_by_role("navigation", name="sections").get_by_role("link", name="Rollouts").click()
    expect(page.get_by_text("20,000 rollouts")).to_be_visible()
    page.locator(".virtual").evaluate("box => box.scrollTo(0, 40000)")
    expect(rows_of(page, "rollouts").filter(has_text="t00920")).to_be_visible()
    assert rows_of(page, "rollouts").count() < 80
