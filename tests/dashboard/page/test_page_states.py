"""The page in every state that somebody may find a project in, on a telephone and on a large screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path

import pytest

pytest.importorskip("playwright")
pytest.importorskip("axe_playwright_python")
pytestmark = pytest.mark.dashboard

from axe_playwright_python.sync_playwright import Axe  # noqa: E402
from playwright.sync_api import expect  # noqa: E402

from evsys_sdk.record.approvals import list_awaited  # noqa: E402
from evsys_sdk.record.project_files.journals import campaign_dir  # noqa: E402

from .conftest import Tab  # noqa: E402
from .states import make_states  # noqa: E402

STATES = {
    "waiting": ("waits for approval", "Nothing was spent yet. This would be run:"),
    "failed": ("failed", "1 failed"),
    "killed": ("killed", "Nothing was scored"),
    "interrupted": ("interrupted", "0.605"),
    "spent": ("out of budget", "0.605"),
    "near": ("running 0/4", "step 60"),
    "flagged": ("inconclusive", "Flagged by its last audit: contamination."),
    "good": ("supported", "val/bench/pass@1 against base"),
    "script": ("completed", "lr 0.1 / 0.2"),
}
PHONE = {"width": 390, "height": 844}
type States = tuple[Path, dict[str, str]]


@pytest.fixture
def states(tmp_path: Path) -> Iterator[States]:
    root = tmp_path / "project"
    with make_states(root) as ids, chdir(root):
        yield root, ids


def test_every_state_is_named_in_the_list_and_on_its_page(open_tab: Callable[..., Tab], states: States) -> None:
    tab = open_tab(states[0], viewport=PHONE)
    wide: list[str] = []
    for name, (word, description) in STATES.items():
        page = tab.open(f"/e/{states[1][name]}")
        expect(page.locator("header .verdict").first).to_contain_text(word)
        expect(page.locator("main")).to_contain_text(description)
        wide += [name] if page.evaluate("document.documentElement.scrollWidth") > 390 else []
    page = tab.open("/")
    for name, (word, _) in STATES.items():
        text = "script" if name == "script" else f"The change of {name} helps."
        row = page.get_by_role("table", name="experiments").locator("[role=row]").filter(has_text=text)
        row.scroll_into_view_if_needed()
        expect(row).to_contain_text(word)
    wide += ["list"] if page.evaluate("document.documentElement.scrollWidth") > 390 else []
    assert wide == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_any_state(open_tab: Callable[..., Tab], states: States, scheme: str) -> None:
    tab = open_tab(states[0], color_scheme=scheme, reduced_motion="reduce")
    violations_by_state: dict[str, list[str]] = {}
    for place in ("/", "/campaign", *(f"/e/{states[1][name]}" for name in ("waiting", "near", "script"))):
        violations = Axe().run(tab.open(place)).response["violations"]
        violations_by_state |= (
            {place: [f"{violation['id']}: {violation['nodes'][0]['html'][:160]}" for violation in violations]}
            if violations
            else {}
        )
    assert violations_by_state == {}


def test_what_needs_a_person_comes_first_and_is_decided_in_place(open_tab: Callable[..., Tab], states: States) -> None:
    page = open_tab(states[0], viewport=PHONE).open("/")
    expect(page).to_have_title("(2) Experiments · demo · evsys")
    needs = page.get_by_role("region", name="needs you")
    expect(needs.get_by_role("listitem")).to_have_count(3)
    needs.get_by_role("button", name="and 3 others").click()
    for word in ("waits for approval", "failed", "killed", "nearly spent", "flagged"):
        expect(needs).to_contain_text(word)
    plan = needs.get_by_role("listitem").filter(has_text="a plan of 80,000 tokens")
    plan.get_by_role("button", name="approve").click()
    page.get_by_label("reason").fill("within the budget")
    page.get_by_role("dialog").get_by_role("button", name="approve").click()
    expect(plan).to_have_count(0)
    expect(page).to_have_title("(1) Experiments · demo · evsys")
    assert list_awaited(campaign_dir("night")) == []


def test_a_campaign_has_its_question_budget_and_candidates_and_can_be_closed(
    open_tab: Callable[..., Tab], states: States
) -> None:
    page = open_tab(states[0], viewport=PHONE).open("/campaign")
    expect(page).to_have_title("(2) night, campaign · demo · evsys")
    expect(page.get_by_role("heading", level=1)).to_have_text("Does a longer warm-up route better?")
    expect(page.get_by_label("experiments spent")).to_have_attribute("value", "3")
    expect(page.locator("main")).to_contain_text("3 of 4")
    expect(page.get_by_text("warm up for 40 steps")).to_be_visible()
    expect(page.get_by_role("group", name="claims").locator("tbody tr")).to_have_count(3)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    decisions = page.get_by_role("group", name="decisions").locator("tbody tr")
    expect(decisions).to_have_count(2)
    expect(decisions.first).to_contain_text("every family gets a probe")
    page.locator("main > header").get_by_role("button", name="extend").click()
    page.get_by_label("hours").fill("2")
    page.get_by_role("dialog").get_by_role("button", name="extend").click()
    expect(decisions).to_have_count(3)
    expect(decisions.first).to_contain_text("2 hours more")
    page.locator("main > header").get_by_role("button", name="stop").click()
    page.get_by_label("reason").fill("the night is over")
    page.get_by_role("dialog").get_by_role("button", name="stop").click()
    expect(page.locator("main")).to_contain_text("the night is over")
    expect(page.locator("header .verdict")).to_have_text("closed")


def test_an_experiment_that_has_ended_can_be_deleted(open_tab: Callable[..., Tab], states: States) -> None:
    root, ids = states
    tab = open_tab(root)
    page = tab.open(f"/e/{ids['waiting']}")
    page.get_by_label("edit tags").click()
    expect(page.get_by_role("button", name="delete")).to_have_count(0)
    page = tab.open(f"/e/{ids['interrupted']}")
    page.get_by_label("edit tags").click()
    page.get_by_role("button", name="delete").click()
    page.get_by_role("dialog").get_by_role("button", name="delete").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Experiments")
    expect(page.get_by_role("table", name="experiments")).not_to_contain_text("The change of interrupted helps.")
    assert not (root / "outputs" / "interrupted").exists()
    assert [path.name.rpartition("-")[0] for path in (root / ".evsys" / "deleted").iterdir()] == [ids["interrupted"]]


def test_a_run_shows_small_charts_and_what_it_takes_of_its_machine(
    open_tab: Callable[..., Tab], states: States
) -> None:
    page = open_tab(states[0]).open(f"/e/{states[1]['near']}?tab=curves")
    charts = page.get_by_role("group", name="small charts")
    for metric in ("reward/mean", "kl", "length/mean", "entropy"):
        expect(charts.first.get_by_role("figure", name=metric, exact=True)).to_be_visible()
    expect(charts.last.get_by_role("figure")).to_have_count(2)
    charts.last.get_by_role("button", name="system/memory_gib").click()
    expect(page.get_by_label("metric")).to_have_value("system/memory_gib")
