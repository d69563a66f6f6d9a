"""A campaign that works through families by itself: whole, overruled, killed, and with a deadline at any moment."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.experiment.preflight import check_config
from evsys_sdk.history.campaigns.campaign import Terms, load_campaign, open_campaign
from evsys_sdk.history.views.verify import verify_export
from evsys_sdk.loop.campaigns.drive import Driver
from evsys_sdk.loop.campaigns.portfolio import Portfolio
from evsys_sdk.record.approvals import decide_approval, list_awaited
from evsys_sdk.record.project_files.journals import campaign_dir

from ..warm import run_evsys, start_evsys

WORDS = ("red", "green", "blue", "black", "white", "brown")


def write_project(folder: Path, *, steps: int = 40, **families: Any) -> None:
    """Say a colour back: two families, and 12 tasks to choose by and 12 to confirm by."""
    (folder / ".evsys").mkdir()
    rows = [{"q": f"{kind} {word}", "a": word} for word in WORDS for kind in ("say", "repeat", "tell me", "now say")]
    for name, kinds in (("val", ("please say", "do say")), ("test", ("again say", "and say"))):
        tasks = [{"q": f"{kind} {word}", "a": word} for word in WORDS for kind in kinds]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    chat = {"kind": "jsonl_to_chat", "params": {"user_template": "{q}", "assistant_template": "{a}"}}
    task = {"kind": "chat_to_harbor_task", "params": {"fn_name": "exact_match"}}
    entry = {"transforms": [chat, task], "max_tokens": 8}
    sft = {"kind": "sft", "params": {"max_steps": steps, "batch_size": 8, "save_every": 5}}
    base: dict[str, Any] = {
        "name": "base",
        "metadata": {
            "success_metric": "pass@1",
            "benchmark": [
                {"name": "val", "path": "val.jsonl", "split": "val", "run_every": 5, **entry},
                {"name": "test", "path": "test.jsonl", "split": "test", **entry},
            ],
        },
        "run": {
            "name": "sft",
            "data": {"path": "train.jsonl", "transforms": [chat]},
            "model": {"name": "tiny"},
            "algorithm": sft,
            "backend": {"kind": "mock"},
        },
    }
    slow = {"algorithm": {"kind": "sft", "params": {"max_steps": steps, "save_every": 5, "learning_rate": 1e-5}}}
    portfolio: dict[str, Any] = {"base": "base.yaml", "families": {"sft": {}, "slow": slow, **families}}
    for name, content in (("base", base), ("portfolio", portfolio)):
        (folder / f"{name}.yaml").write_text(json.dumps(content), encoding="utf-8")


def told(name: str) -> list[tuple[str, str]]:
    return [(decision.text("action"), decision.text("family")) for decision in load_campaign(name).decisions]


@pytest.mark.slow
def test_a_campaign_probes_trains_confirms_and_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_project(tmp_path, broken={"data": {"path": "nowhere.jsonl"}})
    terms = ["--question", "?", "--tokens", "60000", "--portfolio", "portfolio.yaml"]
    assert main(["campaign", "new", "night", *terms]) == 0
    assert main(["campaign", "run", "night", "--json", "--steps", "1"]) == 0
    assert main(["campaign", "next", "night", "--json"]) == 0
    assert main(["campaign", "next", "night", "--family", "sft", "--because", "it looks good", "--by", "ada"]) == 0
    assert main(["campaign", "run", "night", "--json"]) == 0
    decisions = told("night")
    assert decisions[:5] == [("start", ""), ("probe", "sft"), ("train", "sft"), ("probe", "slow"), ("probe", "broken")]
    assert decisions[5] == ("blocked", "broken")
    assert decisions[-1] == ("confirm", "sft")
    overruled = load_campaign("night").decisions[2]
    assert [overruled.text(key) for key in ("reason", "by", "instead")] == ["it looks good", "ada", "probe slow"]
    assert all(decision.text("reason") for decision in load_campaign("night").decisions)
    assert load_campaign("night").closed.startswith("sft: supported.")
    assert not verify_export(tmp_path / "outputs" / "night-export").problems
    config = json.loads((tmp_path / "outputs/night-confirmation/config.json").read_text("utf-8"))
    assert (config["n_repeats"], config["base_seed"]) == (3, 42 + 10_007)
    explored = json.loads((tmp_path / "outputs/night-sft/config.json").read_text("utf-8"))
    assert [one["split"] for one in explored["metadata"]["benchmark"]] == ["val"], "exploring never sees the test set"
    assert main(["campaign", "run", "night"]) == 1
    assert "is closed" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_campaign_continues_from_its_journal(tmp_path: Path) -> None:
    write_project(tmp_path)
    # A killed probe may spend its budget without a score, and then the family is probed again: give it enough for both.
    parsed = json.loads((tmp_path / "portfolio.yaml").read_text("utf-8"))
    (tmp_path / "portfolio.yaml").write_text(json.dumps({**parsed, "probe_share": 0.15}), encoding="utf-8")
    open_campaign("night", Terms("?", tokens=40_000, portfolio="portfolio.yaml"))
    for kills in (2, 4):  # decisions in the journal when it is killed
        with open(os.devnull, "wb") as null:
            command = start_evsys(tmp_path, "campaign", "run", "night", out=null.fileno(), err=null.fileno())
        until = time.monotonic() + 120
        while len(load_campaign("night").decisions) < kills and not command.ended and time.monotonic() < until:
            time.sleep(0.05)
        command.kill()
        command.wait()
    done = run_evsys(tmp_path, "campaign", "run", "night")
    assert done.returncode == 0, done.stderr
    decisions = told("night")
    assert decisions[:3] == [("start", ""), ("probe", "sft"), ("probe", "slow")], "nothing is decided twice"
    assert [decision for decision in decisions if decision[0] == "confirm"] == [decisions[-1]]
    assert len(list((tmp_path / "outputs").glob("night-confirmation*"))) == 1
    assert (tmp_path / "outputs" / "night-export").is_dir()


def test_what_cannot_work_is_refused_before_anything_is_spent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(tmp_path)
    portfolio = json.loads((tmp_path / "portfolio.yaml").read_text("utf-8"))

    def refuse(said: str, *options: str, **change: Any) -> None:
        (tmp_path / "portfolio.yaml").write_text(json.dumps({**portfolio, **change}), encoding="utf-8")
        name = f"c{len(list((tmp_path / '.evsys').glob('campaigns/*')))}"
        new = ["campaign", "new", name, "--question", "?", "--portfolio", "portfolio.yaml"]
        code = main([*new, *(options or ("--hours", "1"))])
        assert (code or main(["campaign", "run", name])) == 1
        assert said in capsys.readouterr().err
        assert not (tmp_path / "outputs").exists()

    refuse("cannot fit one scoring", "--hours", "1e-9")
    refuse("how much may be spent", "--experiments", "3")
    refuse("cannot name a family", families={"Not this": {}})
    refuse("families.x: ", families={"x": {"algorithm": {"kinds": "sft"}}})
    refuse("nowhere.yaml", families={"x": "nowhere.yaml"})
    base = json.loads((tmp_path / "base.yaml").read_text("utf-8"))
    del base["metadata"]["benchmark"][0]["run_every"]
    (tmp_path / "base.yaml").write_text(json.dumps(base), encoding="utf-8")
    refuse("Set run_every in a val benchmark, or give --until", "--tokens", "1000")
    base["metadata"]["benchmark"].pop()
    (tmp_path / "base.yaml").write_text(json.dumps(base), encoding="utf-8")
    refuse("a campaign needs tasks of the split test")
    open_campaign("plain", Terms("?", tokens=1))
    assert main(["campaign", "run", "plain"]) == 1
    assert "has no portfolio" in capsys.readouterr().err


@pytest.mark.usefixtures("examples")
def test_the_families_of_the_example_are_experiments_that_can_run() -> None:
    portfolio = Portfolio.load("night", "examples/25_night/portfolio.yaml")
    assert list(portfolio.runs) == ["sft", "sft_gentle", "few_rows", "rl"]
    for family in portfolio.runs:
        for config in (portfolio.explore(family), portfolio.confirm(family, 20)):
            assert check_config(config).problems == []
    confirmed = portfolio.confirm("sft", 20)
    assert confirmed.all_runs()[0].algorithm.params["max_steps"] == 20
    assert [entry.models for entry in confirmed.metadata.benchmark] == [[], ["base"]]


def test_a_campaign_without_a_family_that_can_be_trained_does_not_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(tmp_path)
    (tmp_path / "train.jsonl").unlink()
    open_campaign("night", Terms("?", tokens=60_000, portfolio="portfolio.yaml"))
    assert main(["campaign", "run", "night"]) == 1
    assert "runs[0].data.path" in (error := capsys.readouterr().err)
    assert error.count("there is no such file") == 1
    assert load_campaign("night").decisions == []


def test_a_family_that_waits_for_approval_holds_up_no_other(tmp_path: Path) -> None:
    write_project(tmp_path)
    open_campaign("night", Terms("?", tokens=40_000, approve_tokens=10, portfolio="portfolio.yaml"))
    driver = Driver("night")
    [first, second] = driver.steps(2)
    assert "needs human approval" in first.outcome
    assert [family.blocked != "" for family in driver.read_inputs().families] == [True, True]
    awaited = list_awaited(campaign_dir("night"))
    assert [step.about.split()[0] for step in awaited] == ["night-sft", "night-slow"]
    decide_approval(campaign_dir("night"), approve=True, subject=awaited[1].subject, author="ada")
    assert driver.next().action == "probe"
    assert second.family == "slow"
