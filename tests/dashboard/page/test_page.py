"""The page in a real browser, under its own content security policy, on real experiments."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
pytestmark = pytest.mark.dashboard

from playwright.sync_api import expect  # noqa: E402

from evsys_sdk.dashboard.local import index  # noqa: E402
from evsys_sdk.history.index import HistoryIndex  # noqa: E402
from tests.history.recorded import write_experiment  # noqa: E402

from .conftest import Tab  # noqa: E402
from .project import HOSTILE  # noqa: E402

TABS = ["Arms", "Curves", "Items", "Rollouts", "Cost", "Lineage", "Record", "Notes"]


def address(page: Any) -> str:
    return page.evaluate("location.hash")


def test_the_list_shows_each_experiment_with_verdict_score_and_failures(tab: Tab) -> None:
    page = tab.open("/")
    rows = page.get_by_role("table", name="experiments").locator("[role=row]:not(.head)")
    expect(rows).to_have_count(6)
    sweep = rows.filter(has_text="Longer training routes better")
    expect(sweep).to_contain_text("supported")
    expect(sweep).to_contain_text("s__max_steps36")
    expect(sweep).to_contain_text(re.compile(r"0\.\d{3} \[0\.\d{3}, [01]\.\d{3}\]"))
    expect(rows.filter(has_text="learning rate of one")).to_contain_text("✕ 1 failed")
    expect(rows.filter(has_text="measured wrongly")).to_contain_text("invalid")
    expect(rows.filter(has_text="measured wrongly")).to_contain_text("do not trust")


def test_search_and_filters_narrow_the_list_and_stay_in_the_address(tab: Tab) -> None:
    page = tab.open("/")
    rows = page.get_by_role("table", name="experiments").locator("[role=row]:not(.head)")
    page.keyboard.press("/")
    page.keyboard.type("reward")
    expect(rows).to_have_count(1)
    assert "q=reward" in address(page)
    page.reload()
    expect(rows).to_have_count(1)
    expect(page.get_by_role("searchbox")).to_have_value("reward")
    page.get_by_role("searchbox").fill("")
    page.get_by_text("filter", exact=True).click()
    page.get_by_label("verdict", exact=True).select_option("supported")
    expect(rows).to_have_count(1)
    page.get_by_role("searchbox").fill("nothing has this in it")
    expect(page.get_by_text("Nothing matches")).to_be_visible()
    page.get_by_role("button", name="clear the filters").click()
    expect(rows).to_have_count(6)


def test_the_keyboard_moves_opens_compares_and_helps(tab: Tab, ids: dict[str, str]) -> None:
    page = tab.open("/?sort=name")
    first = page.get_by_role("table", name="experiments").locator("[role=row]:not(.head)").first
    expect(first).to_contain_text("A second tool costs the first.")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("A second tool costs the first.")
    page.go_back()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next, previous row")
    page.keyboard.press("Escape")
    page = tab.open("/?sort=name")
    expect(first).to_contain_text("A second tool costs the first.")
    for key in "jcjcjcC":
        page.keyboard.press(key)
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare")
    assert ids["continual"] in address(page)
    expect(page.get_by_role("group", name="runs", exact=True).locator("tbody tr")).to_have_count(3)


@pytest.mark.parametrize("name", ["sweep", "too-hot", "rl", "continual", "search", "invalid"])
def test_every_section_of_every_experiment_opens(tab: Tab, ids: dict[str, str], name: str) -> None:
    page = tab.open(f"/e/{ids[name]}")
    for section in TABS:
        page.get_by_role("navigation", name="sections").get_by_role("link", name=section).click()
        tab.settle()
        expect(page.locator(".problem")).to_have_count(0)


def test_the_claim_stands_next_to_its_interval(tab: Tab, ids: dict[str, str]) -> None:
    page = tab.open(f"/e/{ids['sweep']}")
    expect(page.get_by_role("heading", level=1)).to_have_text("Longer training routes better.")
    expect(page.locator(".forest svg")).to_have_attribute(
        "aria-label", re.compile(r"max_steps 36: \+0\.\d+ \[0\.\d+, 0\.\d+\]")
    )
    facts = page.locator("dl.facts")
    expect(facts).to_contain_text("max_steps 4 / 20 / 36")
    expect(facts).to_contain_text("48 tasks")
    expect(facts).to_contain_text("+0.050 on pass@1, registered")


def test_the_arms_table_pins_the_baseline_and_takes_columns(tab: Tab, ids: dict[str, str]) -> None:
    page = tab.open(f"/e/{ids['sweep']}")
    rows = page.locator(".arms tbody tr")
    expect(rows.first).to_contain_text("baseline")
    expect(rows.first.locator("circle")).to_have_count(3)
    page.get_by_role("button", name="max_steps", exact=True).click()
    expect(rows.first).to_contain_text("s__max_steps4")
    page.get_by_label("add a column").select_option("final_loss")
    expect(page.locator(".arms thead")).to_contain_text("final_loss")
    assert "columns=final_loss" in address(page)


def test_curves_have_a_band_a_second_axis_and_a_legend(tab: Tab, ids: dict[str, str]) -> None:
    page = tab.open(f"/e/{ids['sweep']}?tab=curves")
    expect(page.get_by_role("img", name=re.compile("^loss over steps"))).to_be_visible()
    expect(page.get_by_text("bands reach from the lowest to the highest seed")).to_be_visible()
    page.get_by_label("x axis").select_option("tokens")
    expect(page.get_by_role("img", name=re.compile("^loss over tokens"))).to_be_visible()
    page.get_by_label("metric").select_option("grad_norm")
    expect(page.get_by_role("img", name=re.compile("^grad_norm over tokens"))).to_be_visible()
    page.get_by_role("button", name=re.compile("^max_steps 36")).click()
    assert "hide=s__max_steps36" in address(page)
    large = page.locator(".u-over").last  # below the small charts
    large.scroll_into_view_if_needed()
    box = large.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=4)
    page.mouse.up()
    expect(page.get_by_role("button", name="whole range")).to_be_visible()
    assert "from=" in address(page)


def test_numbers_behind_a_plot_can_be_saved(tab: Tab, ids: dict[str, str]) -> None:
    page = tab.open(f"/e/{ids['sweep']}")
    page.get_by_label(re.compile("^3 runs.*: numbers")).click()
    with page.expect_download() as saved:
        page.get_by_role("button", name=re.compile("3 runs.*save the numbers as CSV")).click()
    text = Path(saved.value.path()).read_text("utf-8")
    assert text.splitlines()[0].startswith("run,algorithm.params.max_steps,score,low,high")
    assert len(text.splitlines()) == 4


def test_flipped_tasks_come_first_with_both_answers(tab: Tab, ids: dict[str, str]) -> None:
    page = tab.open(f"/e/{ids['sweep']}?tab=items")
    expect(page.get_by_text(re.compile(r"48 tasks: \d+ gained, 0 lost"))).to_be_visible()
    first = page.get_by_role("table", name="tasks").get_by_role("row").first
    expect(first).to_contain_text("gained")
    answers = page.get_by_role("region", name="answers").locator("article")
    expect(answers).to_have_count(2)
    expect(answers.last).to_contain_text("<answer>")
    page.keyboard.press("j")
    assert "task=" in address(page)


def test_rollouts_are_narrowed_by_reward_words_and_step(tab: Tab, ids: dict[str, str]) -> None:
    page = tab.open(f"/e/{ids['rl']}?tab=rollouts")
    expect(page.get_by_text("24 rollouts", exact=True)).to_be_visible()
    page.get_by_role("button", name=re.compile("6 rollouts with a reward from 0.9")).click()
    expect(page.get_by_text("6 rollouts", exact=True)).to_be_visible()
    page.get_by_role("button", name="clear").click()
    page.get_by_label("step").select_option("2")
    expect(page.get_by_text("12 rollouts", exact=True)).to_be_visible()
    page.get_by_role("searchbox").fill("answer 3 to task 1")
    expect(page.get_by_text("1 rollout", exact=True)).to_be_visible()
    expect(page.locator("mark").first).to_have_text("answer 3 to task 1")


def test_samples_stand_side_by_side_and_tokens_show_their_probability(tab: Tab, ids: dict[str, str]) -> None:
    page = tab.open(f"/e/{ids['rl']}?tab=rollouts&step=1")
    reader = page.get_by_role("region", name="transcript")
    expect(reader).to_contain_text('search({"q": "task 0"})')
    page.get_by_role("button", name="side by side").click()
    expect(reader.locator("article")).to_have_count(2)
    expect(reader.locator(".added").first).to_be_visible()
    reader.get_by_role("button", name="colour by logprob").first.click()
    expect(reader.locator(".token")).to_have_count(4)
    expect(reader.locator(".token.masked")).to_have_count(1)


def test_what_a_model_wrote_is_text_and_nothing_else(tab: Tab, ids: dict[str, str]) -> None:
    page = tab.open(f"/e/{ids['rl']}?tab=rollouts&step=2&task=wish-0")
    expect(page.get_by_role("region", name="transcript").get_by_text(HOSTILE).first).to_be_visible()
    assert "hacked" not in page.title()
    assert page.locator("main img").count() == 0


def test_a_failed_arm_says_why_and_what_to_do(tab: Tab, ids: dict[str, str]) -> None:
    page = tab.open(f"/e/{ids['too-hot']}/a/lr__learning_rate1")
    expect(page.get_by_text("the loss exploded")).to_be_visible()
    for section in ("Rollouts", "Checkpoints", "Examples", "Config"):
        page.get_by_role("navigation", name="sections").get_by_role("link", name=section).click()
        tab.settle()
    expect(page.get_by_role("group", name="config of this run")).to_contain_text("learning_rate: 1")


def test_an_arm_shows_what_it_was_trained_on_and_its_checkpoints(tab: Tab, ids: dict[str, str]) -> None:
    page = tab.open(f"/e/{ids['sweep']}/a/s__max_steps20__seed42?tab=examples")
    expect(page.get_by_role("group", name="rendered examples").locator(".added").first).to_contain_text("<answer>")
    page = tab.open(f"/e/{ids['sweep']}/a/s__max_steps20__seed42?tab=checkpoints")
    expect(page.get_by_role("group", name="checkpoints")).to_contain_text("step000020-final")
    page = tab.open(f"/e/{ids['sweep']}/a/s__max_steps20__seed42?tab=story")
    expect(page.get_by_role("group", name="conclusion of this run")).to_contain_text("completed after 20 of 20 steps")


def test_a_continual_run_shows_what_is_left_of_each_stage(tab: Tab, ids: dict[str, str]) -> None:
    page = tab.open(f"/e/{ids['continual']}?tab=retention")
    cells = page.locator(".matrix tbody td")
    expect(cells).to_have_count(4)
    assert [bool(text) for text in cells.all_inner_texts()] == [True, False, True, True]


def test_a_sweep_is_plotted_over_its_setting(tab: Tab, ids: dict[str, str]) -> None:
    page = tab.open(f"/e/{ids['sweep']}")
    plot = page.get_by_role("img", name=re.compile("3 runs as lines through max_steps, test.routing.pass@1"))
    expect(plot).to_be_visible()


def test_cost_lineage_and_record(tab: Tab, ids: dict[str, str]) -> None:
    page = tab.open(f"/e/{ids['sweep']}?tab=cost")
    expect(page.get_by_role("img", name=re.compile("over tokens per seed. max_steps 4"))).to_be_visible()
    page = tab.open(f"/e/{ids['sweep']}?tab=lineage")
    expect(page.locator(".lineage")).to_contain_text("tiny-router")
    expect(page.locator(".lineage path")).not_to_have_count(0)
    page = tab.open(f"/e/{ids['sweep']}?tab=record")
    expect(page.get_by_role("table", name="journal")).to_contain_text("experiment started")
    expect(page.get_by_role("group", name="conclusion").locator("table").first).to_be_visible()
    expect(page.get_by_role("group", name="config", exact=True)).to_contain_text("n_repeats: 3")


def test_a_note_is_kept_in_the_record(tab: Tab, ids: dict[str, str], project: tuple[Path, Any]) -> None:
    page = tab.open(f"/e/{ids['search']}?tab=notes")
    page.get_by_label("new note").fill("Look at batch size 8 again.")
    page.get_by_role("button", name="add the note").click()
    expect(page.get_by_role("article")).to_contain_text("Look at batch size 8 again.")
    lines = (project[0] / "outputs/search/journal.jsonl").read_text("utf-8").splitlines()
    assert json.loads(lines[-1])["text"] == "Look at batch size 8 again."


def test_two_experiments_compared(tab: Tab, ids: dict[str, str]) -> None:
    page = tab.open(f"/compare?a={ids['sweep']}&b={ids['too-hot']}")
    table = page.get_by_role("group", name="metrics")
    expect(table).to_contain_text(re.compile(r"test/routing/pass@1"))
    expect(table).to_contain_text(re.compile(r"\W0\.\d+ \[\W?0\.\d+, \W?0\.\d+\]"))
    expect(page.get_by_role("group", name="differences of the configs")).to_contain_text("n_repeats")
    expect(page.get_by_role("region", name="answers").locator("article").first).to_be_visible()


def test_the_campaign_counts_attempts_at_each_claim(tab: Tab) -> None:
    page = tab.open("/campaign")
    expect(page.get_by_role("group", name=re.compile("^test.routing.pass@1 over tokens spent so far"))).to_be_visible()
    page.get_by_label("x axis").select_option("time")
    expect(page.get_by_role("group", name=re.compile("^test.routing.pass@1 over time"))).to_be_visible()
    expect(page.get_by_role("group", name="claims").locator("tbody tr")).to_have_count(6)


def test_datasets_are_shown_with_their_pictures(tab: Tab) -> None:
    page = tab.open("/data")
    page.get_by_role("link", name="colours").click()
    expect(page.get_by_role("article")).to_have_count(3)
    picture = page.get_by_role("article").first.get_by_role("img")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") == 8


def test_light_and_dark_can_be_chosen_and_are_remembered(tab: Tab) -> None:
    page = tab.open("/")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_an_address_that_names_nothing_reports_it(tab: Tab) -> None:
    page = tab.open("/nowhere")
    expect(page.get_by_text("There is no such page")).to_be_visible()


def test_an_experiment_that_is_not_there_reports_it(tab: Tab) -> None:
    page = tab.open("/e/unknown-1234")
    expect(page.get_by_role("alert")).to_contain_text("there is no experiment 'unknown-1234' here")
    assert len(tab.complaints) == 1  # the browser itself reports every 404
    tab.complaints.clear()


def test_what_each_look_at_a_claim_found_stands_next_to_the_conclusion(
    tmp_path: Path, open_tab: Callable[..., Tab]
) -> None:
    look = {"time": 1.0, "kind": "looked", "of": 3, "error": 0.0047, "chance": 0.972}
    looks = [
        look | {"id": "l1", "look": 1, "seeds": 4, "verdict": "inconclusive", "ends": False, "why": "not decided"},
        look | {"id": "l2", "look": 2, "seeds": 7, "verdict": "supported", "ends": True, "why": "`changed` is better"},
    ]
    write_experiment(tmp_path / "outputs", "careful", verdict="supported", events=looks)
    page = open_tab(tmp_path).open("/e/careful-0a1b2c3d")
    rows = page.get_by_role("group", name="interim analyses").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text(re.compile(r"1 of 3\s*4\s*0\.470 %\s*97\.2 %\s*continues"))
    expect(rows.nth(1)).to_contain_text("changed is better")
    expect(rows.nth(1).locator(".mark")).to_have_text("supported")


def test_rows_and_progress_are_shown_while_a_large_project_is_read(
    tmp_path: Path, open_tab: Callable[..., Tab], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        write_experiment(tmp_path / "outputs", name)
    HistoryIndex([tmp_path / "outputs"]).close()  # what an earlier look has left
    write_experiment(tmp_path / "outputs", "third")
    monkeypatch.setattr(index, "_MANY", 1)
    may_read = threading.Event()

    class Held(HistoryIndex):
        def __init__(self, roots: Any, *, refresh: bool = True) -> None:
            assert not refresh or may_read.wait(60)
            super().__init__(roots, refresh=refresh)

    monkeypatch.setattr(index, "HistoryIndex", Held)
    page = open_tab(tmp_path).open("/")
    rows = page.locator(".experiments .line:not(.head)")
    expect(rows).to_have_count(2)
    expect(page.get_by_text("reading the record: 2 of 3 experiments")).to_be_visible()
    may_read.set()
    expect(rows).to_have_count(3, timeout=20_000)
    expect(page.get_by_text("reading the record")).to_have_count(0)
