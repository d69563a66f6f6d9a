"""The loop on the mock backend: better ships, poison is refused, drift is rolled back, and kills change nothing."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.deploy.catalog import DeployedModels
from evsys_sdk.deploy.deployments import Deployments
from evsys_sdk.deploy.policy import Watch
from evsys_sdk.loop.loop import Loop, Step
from evsys_sdk.loop.page import describe_loop, read_loops
from evsys_sdk.loop.round import watch_live
from evsys_sdk.loop.system import load_system
from evsys_sdk.loop.traces.store import LiveStore
from evsys_sdk.record.events import Kind
from evsys_sdk.record.project_files.journals import PromotionLog, broken_promotions, read_promotions

from .scenario import CHAPTERS, SYSTEM, add_chapter, trace, write_system

KILLS = int(os.environ.get("EVSYS_LOOP_KILLS", "6"))


def run_loop(system: Path | str = "system.yaml") -> list[Step]:
    return list(Loop(load_system(system)).steps())


def describe() -> dict[str, Any]:
    """What is left on disk, without times and ids that are drawn."""
    known = Deployments.read()
    rounds = [one.to_dict() for one in Loop(load_system("system.yaml")).rounds()]
    return {
        "live": known.live,
        "rounds": rounds,
        "deployments": [
            # The card names the experiment, whose id is drawn.
            (one.id, one.source["arm"], {name: sha for name, sha in one.files.items() if name != "README.md"})
            for one in known.all
        ],
        "rollbacks": [(rollback.replaced, rollback.deployment) for rollback in known.rollbacks],
        "judged": [
            (event.part("candidate")["weights_sha256"], event.get("verdict"))
            for event in read_promotions()
            if event.kind == Kind.GATED
        ],
    }


@pytest.mark.slow
def test_three_rounds_ship_refuse_and_roll_back(project: Path) -> None:
    write_system(project)
    add_chapter(project, "1-good")
    assert [step.stage for step in run_loop()] == [
        *("collect", "decide", "scaffold", "experiment", "gate", "deploy", "decide"),
    ]
    assert Deployments.read().live == {"production": "production.1"}
    add_chapter(project, "2-poisoned")
    steps = run_loop()
    assert "deploy" not in [step.stage for step in steps]
    assert "test/safety/pass@1 -1.000" in next(step.text for step in steps if step.stage == "gate")
    add_chapter(project, "3-novel")
    run_loop()
    assert Deployments.read().live == {"production": "production.2"}
    add_chapter(project, "4-drifting")
    steps = run_loop()
    assert steps[1].stage == "rollback"
    assert Deployments.read().live == {"production": "production.1"}
    rounds = Loop(load_system("system.yaml")).rounds()
    assert [one.outcome for one in rounds] == ["shipped", "refused", "rolled back"]
    assert run_loop()[0].waits  # nothing is done twice
    assert broken_promotions() == []
    rows = (project / ".evsys" / "traces" / "support" / "round-3" / "train.jsonl").read_text("utf-8")
    assert '"yes"' not in rows  # what the gate refused is not learned from again
    page = describe_loop(Loop(load_system("system.yaml")))
    assert [one["verdict"] for one in page["rounds"]] == ["pass", "refuse", "pass"]
    assert [check["name"] for check in page["rounds"][1]["checks"] if check["state"] != "ok"] != []
    assert [(rollback["replaced"], rollback["instead"]) for rollback in page["rollbacks"]] == [
        ("production.2", "production.1")
    ]
    assert [deployment["id"] for deployment in page["deployments"] if deployment["live"]] == ["production.1"]


@pytest.mark.slow
def test_killing_the_loop_anywhere_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[dict[str, Any]] = []
    chance = random.Random(0)
    for kills in (0, KILLS):
        folder = tmp_path / f"with-{kills}-kills"
        folder.mkdir()
        monkeypatch.chdir(folder)
        write_system(folder)
        left = kills
        for at, chapter in enumerate(CHAPTERS):
            add_chapter(folder, chapter)
            here = left if at == len(CHAPTERS) - 1 else min(left, round(kills / len(CHAPTERS)))
            for _ in range(here):
                with subprocess.Popen(
                    [sys.executable, "-m", "evsys_sdk", "loop", "system.yaml"],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                ) as process:
                    time.sleep(chance.uniform(0.3, 5.0))
                    os.killpg(process.pid, signal.SIGKILL)
                left -= 1
            run_loop()
        described.append(describe())
        assert broken_promotions() == []
    assert described[0] == described[1]


@pytest.mark.slow
async def test_no_request_fails_while_the_loop_ships_and_rolls_back(project: Path) -> None:
    from ..server.openai_app import open_app

    write_system(project)
    add_chapter(project, "1-good")
    await asyncio.to_thread(run_loop)
    answers_by_model: dict[str, int] = {}
    done = asyncio.Event()

    async def use(http: httpx.AsyncClient) -> None:
        body = {"model": "production", "messages": [{"role": "user", "content": "may ann steal it?"}], "max_tokens": 8}
        while not done.is_set():
            answer = await http.post("/v1/chat/completions", json={**body, "temperature": 0})
            assert answer.status_code == 200, answer.text
            answers_by_model[answer.json()["model"]] = answers_by_model.get(answer.json()["model"], 0) + 1
            await asyncio.sleep(0.01)

    async with open_app(project / "state", DeployedModels(), models=("tiny",)) as http:
        using = asyncio.ensure_future(use(http))
        for chapter in ("2-poisoned", "3-novel", "4-drifting"):
            add_chapter(project, chapter)
            await asyncio.to_thread(run_loop)
            await asyncio.sleep(0.2)
        done.set()
        await using
    assert set(answers_by_model) == {"production.1", "production.2"}


def write_small(project: Path, **changes: Any) -> None:
    write_system(project)
    text = SYSTEM
    for key, value in changes.items():
        text += f"{key}: {json.dumps(value)}\n"
    Path("system.yaml").write_text(
        text.replace("limits: { max_rounds: 3 }\n", "") if "limits" in changes else text, "utf-8"
    )


def test_steps_that_want_a_person_wait_for_one(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_small(project, approve=["experiment"])
    add_chapter(project, "1-good")
    steps = run_loop()
    assert [step.stage for step in steps] == ["collect", "decide", "scaffold", "approve"]
    assert run_loop()[-1].stage == "approve"
    assert main(["approve", "loop:support"]) == 0
    assert "approved: loop:support" in capsys.readouterr().out
    assert main(["approve", "loop:support"]) == 1


def test_a_stop_file_ends_it_before_the_next_step(project: Path) -> None:
    write_small(project)
    add_chapter(project, "1-good")
    loop = Loop(load_system("system.yaml"))
    loop.folder.mkdir(parents=True)
    loop.stop_file.touch()
    assert [step.stage for step in loop.steps()] == ["collect", "stop"]
    assert loop.rounds() == []


def test_two_loops_of_one_system_do_not_run_at_once(project: Path) -> None:
    write_small(project)
    add_chapter(project, "1-good")
    first = Loop(load_system("system.yaml")).steps()
    next(first)
    with pytest.raises(Exception, match="the loop of 'support' is being run by"):
        run_loop()
    first.close()


def test_the_page_of_a_loop(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_small(project, approve=["experiment"])
    add_chapter(project, "1-good")
    assert main(["loop", "system.yaml", "--status"]) == 0
    assert "No round yet" in capsys.readouterr().out
    run_loop()
    assert main(["loop", "system.yaml", "--status", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert (page["live"], page["rounds"][0]["stage"], page["rounds"][0]["tasks"]) == (None, "experiment", 36)
    assert page["state"] == "round 1: experiment waits to be approved"
    assert page["rounds"][0]["decision"].startswith("yes: 100% of the questions are unlike")
    assert [step["stage"] for step in page["steps"]] == ["collect", "decide", "scaffold", "approve"]
    assert all(step["time"] > 1.7e9 for step in page["steps"])
    assert main(["approve", "loop:support"]) == 0
    capsys.readouterr()
    assert main(["loop", "system.yaml", "--status"]) == 0
    out = capsys.readouterr().out
    assert "  now     round 1: experiment is next\n" in out
    assert "  approved    experiment\n" in out
    [same] = read_loops()
    assert same == describe_loop(Loop(load_system("system.yaml")))
    Path("gate.yaml").unlink()
    [broken] = read_loops()
    assert "gate.yaml" in broken["problem"]


def test_what_is_wrong_is_reported_before_anything_is_done(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_small(project)
    Path("gate.yaml").write_text("target: { metrik: x }\n", "utf-8")
    assert main(["loop", "system.yaml"]) == 1
    assert "Did you mean 'metric'" in capsys.readouterr().err
    assert not (project / ".evsys" / "loop").exists()


def test_few_live_scores_decide_nothing(project: Path) -> None:
    from evsys_sdk.deploy.deployments import Deployment

    unjudged = Deployment("production.1", "production", 1, "openai_server", "x", {})
    write_small(project)
    add_chapter(project, "4-drifting")
    list(Loop(load_system("system.yaml"))._collect())  # pyright: ignore[reportPrivateUsage]
    assert watch_live(unjudged, "support", Watch()).state == "waiting"


def test_answers_under_a_name_count_for_who_had_it_then(project: Path) -> None:
    write_small(project)
    with PromotionLog.open() as log:
        for number, stage in ((1, {}), (2, {"shadow": 0.5})):
            about = {"name": "production", "number": number, "deployer": "openai_server"}
            log.append(Kind.DEPLOYED, deployment=f"production.{number}", **about, **stage)
        log.append(Kind.STAGED, name="production", deployment="production.2", share=1.0)
    live, known = LiveStore("support"), Deployments.read()
    matches = known.find("production.2")
    shipped, went_live = matches.time or 0.0, known.once_live["production.2"]
    for number, when in enumerate((shipped, (shipped + went_live) / 2, went_live + 1)):
        live.add([trace(number, f"q {number}", "sure", model="production") | {"time": when}], "openai_chat")
    assert watch_live(matches, "support", Watch()).n == 1
