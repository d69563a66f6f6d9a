"""Campaigns: terms that stay, leases, what is let in, and where one stands; worked out from the record."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.config import load_yaml
from evsys_sdk.errors import EvsysError
from evsys_sdk.history.campaigns.campaign import (
    Admission,
    Campaign,
    Terms,
    campaign_of,
    close_campaign,
    load_campaign,
    open_campaign,
    propose,
    take,
)
from evsys_sdk.history.campaigns.progress import judge_progress
from evsys_sdk.loop.campaigns.admission import CampaignRefusal, admit
from evsys_sdk.record.approvals import request_approval
from evsys_sdk.record.events import Kind
from evsys_sdk.record.project_files.journals import campaign_dir, change_campaign, list_campaigns
from evsys_sdk.record.view.model import ExperimentView
from evsys_sdk.record.view.question import Question

from ..warm import run_evsys

NOW = 10_000.0


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / ".evsys").mkdir()
    return tmp_path


def experiment(name: str, score: float | None, verdict: str = "supported", **more: Any) -> ExperimentView:
    spend = {"tokens_trained": 100.0, "tokens_sampled": 20.0, "usd": 0.5, "wall_s": 360.0}
    experiment_view = ExperimentView(
        name, name, f"runs/{name}", "completed", started=NOW - 900, metric="pass@1", spend=spend
    )
    question = Question("pass@1", direction=more.get("mode", "max"), model="tiny", backend="mock")
    return replace(experiment_view, **{"question": question, "best_score": score, "verdict": verdict, **more})


def campaign(**terms: Any) -> Campaign:
    terms.setdefault("experiments", 9)
    return Campaign("c", Terms("better?", **terms), 0.0)


def test_only_experiments_with_the_same_question_are_compared() -> None:
    easy = [experiment(f"easy{at}", 0.9) for at in range(2)]
    other = [
        experiment("hard", 0.2, question=replace(easy[0].question, tasks="50 tasks abcdef")),
        experiment("real", 0.3, question=replace(easy[0].question, backend="local")),
        experiment(
            "tokens", 37.0, question=replace(easy[0].question, metric="tokens_per_task"), metric="tokens_per_task"
        ),
    ]
    progress = judge_progress(campaign(goal=0.95, patience=2), [*easy, *other], NOW)
    assert progress.state == "open"
    assert progress.best is easy[0]
    assert progress.question == easy[0].question
    unanswered = experiment("half", 0.99, question=replace(easy[0].question, metric="test/pass@1"))
    assert judge_progress(campaign(goal=0.95), [unanswered], NOW).best is None


def test_terms_are_agreed_once(workspace: Path) -> None:
    opened = open_campaign("better", Terms("Is more better?", experiments=4, tokens=1000, goal=0.9))
    assert load_campaign("better") == opened
    assert list_campaigns() == ["better"]
    with pytest.raises(EvsysError, match="exists already, and its terms stay"):
        open_campaign("better", Terms("Is more better?", experiments=400))
    assert load_campaign("better").terms.experiments == 4


@pytest.mark.parametrize(
    ("name", "terms", "said"),
    [
        ("Not This", Terms("?", tokens=1), "Try 'not-this'"),
        ("../up", Terms("?", tokens=1), "Try 'up'"),
        ("ok", Terms(" ", tokens=1), "needs a question"),
        ("ok", Terms("?"), "needs a limit"),
    ],
)
def test_what_is_no_campaign_is_refused(workspace: Path, name: str, terms: Terms, said: str) -> None:
    with pytest.raises(EvsysError, match=said):
        open_campaign(name, terms)
    assert list_campaigns() == []


def test_a_campaign_that_is_not_there_is_named_with_the_closest(workspace: Path) -> None:
    with pytest.raises(EvsysError, match="evsys campaign new"):
        load_campaign("better")
    open_campaign("better", Terms("?", tokens=1))
    with pytest.raises(EvsysError, match="Did you mean 'better'"):
        load_campaign("beter")
    with pytest.raises(EvsysError, match="there is no campaign"):
        propose("../../runs/first", "x")
    assert list_campaigns() == ["better"]


def test_a_journal_that_was_changed_is_not_trusted(workspace: Path) -> None:
    open_campaign("better", Terms("?", tokens=1000))
    propose("better", "more steps")
    journal = next(campaign_dir("better").glob("*.jsonl"))
    journal.write_text(journal.read_text("utf-8").replace("1000", "9000000"), encoding="utf-8")
    with pytest.raises(EvsysError, match="was changed"):
        load_campaign("better")


def test_a_candidate_is_tried_by_one_agent_at_a_time(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_campaign("better", Terms("?", tokens=1))
    assert propose("better", "more steps", by="ada").number == 1
    assert propose("better", "more data").number == 2
    assert propose("better", "more steps").number == 1, "the same idea twice is one candidate"
    assert take("better", 1, by="ada").taken_by == "ada"
    with pytest.raises(EvsysError, match=r"taken by 'ada' for another \d+ minutes"):
        take("better", 1, by="bob")
    assert take("better", 2, by="bob").taken_by == "bob"
    take("better", 1, by="ada", minutes=90)
    with pytest.raises(EvsysError, match="has no candidate 7"):
        take("better", 7, by="bob")
    later = time.time() + 3 * 3600
    monkeypatch.setattr(time, "time", lambda: later)
    assert take("better", 1, by="bob").taken_by == "bob", "a lease ends by itself"


def test_of_many_agents_at_once_one_gets_the_candidate(workspace: Path) -> None:
    open_campaign("better", Terms("?", tokens=1))
    propose("better", "more steps")

    def attempt(name: str) -> str:
        try:
            return take("better", 1, by=name).taken_by
        except EvsysError:
            return ""

    with ThreadPoolExecutor(8) as pool:
        got = [name for name in pool.map(attempt, [f"agent{number}" for number in range(8)]) if name]
    assert len(got) == 1
    assert load_campaign("better").candidates[0].taken_by == got[0]


def test_a_closed_campaign_stays_closed(workspace: Path) -> None:
    open_campaign("better", Terms("?", tokens=1))
    close_campaign("better", "answered")
    for act in (
        lambda: propose("better", "x"),
        lambda: close_campaign("better", ""),
    ):
        with pytest.raises(EvsysError, match="is closed"):
            act()
    assert judge_progress(load_campaign("better"), [], NOW).state == "closed"


def test_it_is_met_by_a_supported_experiment_only() -> None:
    reached = experiment("a", 0.95, "promising_unconfirmed")
    assert judge_progress(campaign(goal=0.9), [reached], NOW).state == "open"
    assert judge_progress(campaign(goal=0.9), [replace(reached, verdict="supported")], NOW).state == "met"
    flagged = replace(reached, verdict="supported", flags=["scores"])
    assert judge_progress(campaign(goal=0.9), [flagged], NOW).state == "open"
    lower = experiment("lower", 0.2, mode="min")
    assert judge_progress(campaign(goal=0.3), [lower], NOW).state == "met"


def test_it_is_spent_when_a_limit_is_reached() -> None:
    two = [experiment("a", 0.1), experiment("b", 0.2)]
    assert judge_progress(campaign(experiments=2), two, NOW).state == "spent"
    assert judge_progress(campaign(tokens=240), two, NOW).state == "spent"
    assert judge_progress(campaign(usd=1.0), two, NOW).state == "spent"
    assert judge_progress(campaign(hours=0.2), two, NOW).state == "spent"
    progress = judge_progress(campaign(tokens=1000), two, NOW)
    assert (progress.state, progress.left["tokens"]) == ("open", 760.0)


def test_it_is_stalled_when_nothing_gets_better() -> None:
    scores = [0.2, 0.5, 0.5, 0.4, 0.5]
    experiments = [experiment(str(number), score) for number, score in enumerate(scores)]
    progress = judge_progress(campaign(), experiments, NOW)
    assert (progress.state, progress.best and progress.best.id) == ("stalled", "1")
    assert judge_progress(campaign(patience=4), experiments, NOW).state == "open"
    failed = [*experiments[:4], replace(experiments[4], best_score=None)]
    assert judge_progress(campaign(), failed, NOW).state == "open", "what has no score says nothing about the idea"


def test_what_runs_or_is_about_to_counts_with_all_it_may_take() -> None:
    admitted = Admission(1, "a", "hash", tokens=500.0, usd=2.0, time=NOW - 1000)
    running = replace(experiment("a", None), status="running")
    changed = replace(campaign(tokens=1000), admissions=[admitted])
    assert judge_progress(changed, [running], NOW).spent["tokens"] == 500.0
    assert judge_progress(changed, [replace(running, status="completed")], NOW).spent["tokens"] == 120.0
    assert judge_progress(changed, [], NOW).spent["tokens"] == 0.0, "it never came to be"
    fresh = replace(changed, admissions=[replace(admitted, time=NOW - 1)])
    progress = judge_progress(fresh, [], NOW)
    assert (progress.spent["tokens"], progress.spent["experiments"]) == (500.0, 1.0)


CONFIG = """
name: {name}
output_dir: outputs
metadata: {{ tags: ["campaign:better"] }}
run:
  name: sft
  data:
    source_kind: in_memory
    rows: [{{ messages: [{{ role: user, content: a }}, {{ role: assistant, content: b }}] }}]
  model: {{ name: tiny }}
  algorithm: {{ kind: sft, params: {{ max_steps: {steps}, batch_size: 1 }} }}
  backend: {{ kind: mock }}
"""


def write(folder: Path, name: str, steps: int = 2) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(CONFIG.format(name=name, steps=steps), encoding="utf-8")
    return path


def test_an_experiment_is_let_in_while_something_is_left(workspace: Path) -> None:
    first, large = (load_yaml(write(workspace, name, steps)) for name, steps in (("one", 2), ("large", 20_000)))
    assert campaign_of(first) == "better"
    with pytest.raises(EvsysError, match="there is no campaign 'better'"):
        admit(first)
    open_campaign("better", Terms("?", experiments=2, tokens=20_000, approve_tokens=10))
    with pytest.raises(CampaignRefusal, match="tokens left, and this may take"):
        admit(large)
    with pytest.raises(
        CampaignRefusal, match=r"evsys approve campaign:better [0-9a-f]{16} --by NAME"
    ) as needs_approval:
        admit(first)
    plan = str(needs_approval.value).split()[-3]
    assert main(["approve", "campaign:better", plan, "--by", "ada"]) == 0
    assert admit(first) == 1
    assert admit(first) == 2
    with pytest.raises(CampaignRefusal, match="nothing is left of its experiments"):
        admit(first)


@pytest.mark.slow
@pytest.mark.e2e
def test_the_command_line_keeps_to_the_terms(workspace: Path) -> None:
    assert (
        run_evsys(
            workspace, "campaign", "new", "better", "--question", "Is more better?", "--experiments", "1"
        ).returncode
        == 0
    )
    config = str(write(workspace, "one"))
    assert run_evsys(workspace, "run", config, "--dry", "--quiet").returncode == 0, "a rehearsal is free"
    assert run_evsys(workspace, "run", config, "--quiet").returncode == 0
    refused = run_evsys(workspace, "run", config, "--quiet")
    assert refused.returncode == 3
    assert "the campaign 'better' is spent" in refused.stderr
    shown = json.loads(run_evsys(workspace, "campaign", "show", "better", "--json").stdout)
    assert (shown["state"], len(shown["experiments"]), shown["left"]) == ("spent", 1, {"experiments": 0.0})
    assert "better" in run_evsys(workspace, "campaign", "list").stdout
    assert "experiments: 1 of 1, 0 left" in run_evsys(workspace, "campaign", "show", "better").stdout


def test_one_command_lists_and_approves_whatever_waits(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_campaign("better", Terms("?", experiments=2, tokens=20_000, approve_tokens=10))
    for plan in ("abc", "def"):
        request_approval(campaign_dir("better"), plan, about="a long one may take 9,000 tokens")
    request_approval(workspace / ".evsys" / "loop" / "shop", "deploy of round 3")
    assert main(["approve", "--json"]) == 0
    waiting = json.loads(capsys.readouterr().out)
    assert [item["command"] for item in waiting] == [
        "evsys approve campaign:better abc",
        "evsys approve campaign:better def",
        "evsys approve loop:shop 'deploy of round 3'",
    ]
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["needs_you"] == waiting
    assert main(["approve", "campaign:better"]) == 1
    assert "several approvals are awaited: 'abc', 'def'. Name one" in capsys.readouterr().err
    assert main(["approve", "campaign:beter", "abc"]) == 1
    assert "There are: better" in capsys.readouterr().err
    assert main(["approve", "campaign:better", "abc", "--by", "ada"]) == 0
    assert main(["approve", "campaign:better", "--reject", "--reason", "too long"]) == 0
    assert main(["approve", "loop:shop"]) == 0
    approvals = load_campaign("better").approvals
    assert [(approval.subject, approval.state, approval.by, approval.reason) for approval in approvals.values()] == [
        ("abc", "approved", "ada", ""),
        ("def", "rejected", "", "too long"),
    ]
    capsys.readouterr()
    assert main(["approve"]) == 0
    assert "Nothing waits" in capsys.readouterr().out


def test_approvals_of_earlier_journals_still_count(workspace: Path) -> None:
    open_campaign("better", Terms("?", tokens=1))
    with change_campaign("better") as (_, journal):
        journal.append(Kind.CAMPAIGN_APPROVED, plan="abc", by="ada")
    assert load_campaign("better").approvals["abc"].by == "ada"
