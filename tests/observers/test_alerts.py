"""Alerts reach a real HTTP server at least once per event, whoever is killed meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.config.load import load_settings
from evsys_sdk.errors import ConfigError
from evsys_sdk.history.attention import AttentionItem
from evsys_sdk.history.campaigns.campaign import Terms, load_campaign, open_campaign
from evsys_sdk.observers.alerts import AlertsConfig, send_due, watch_alerts
from evsys_sdk.record.approvals import decide_approval, request_approval

from ..http_stand_in import JsonHandler, LoopbackServer
from ..loop.test_portfolio import write_project


class Hook(LoopbackServer):
    """A webhook that keeps what it gets, and refuses the first so many requests."""

    def __init__(self, refuse: int = 0) -> None:
        self.received: list[tuple[str, str]] = []
        self.refused = 0
        hook = self

        class Handler(JsonHandler):
            def do_POST(self) -> None:
                body = self.read_body().decode()
                if hook.refused < refuse:
                    hook.refused += 1
                    self.send_json({}, 503)
                    return
                hook.received.append((self.headers["Idempotency-Key"], body))
                self.send_json({})

        handler: type[BaseHTTPRequestHandler] = Handler
        super().__init__(handler)


def write_alerts(folder: Path, *targets: dict[str, Any]) -> AlertsConfig:
    (folder / ".evsys").mkdir(exist_ok=True)
    (folder / ".evsys" / "alerts.yaml").write_text(json.dumps({"alerts": targets}), encoding="utf-8")
    return AlertsConfig.model_validate({"alerts": [*targets]})


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as server:
        yield server


def test_what_waits_is_sent_once_in_the_form_of_its_target(tmp_path: Path, hook: Hook) -> None:
    forms = ("slack", "discord", "ntfy", "json")
    config = write_alerts(tmp_path, *({"webhook": hook.url, "format": form} for form in forms))
    request_approval(tmp_path / ".evsys" / "loop" / "shop", "deploy of round 3")
    attempts, left = send_due(config)
    assert [attempt.problem for attempt in attempts] == [""] * 4
    assert left == 0
    assert len({id for id, _ in hook.received}) == 1
    slack, discord, ntfy, plain = (body for _, body in hook.received)
    text = "loop:shop: waits for approval: deploy of round 3. Start with: evsys approve loop:shop"
    assert text in json.loads(slack)["text"]
    assert text in json.loads(discord)["content"]
    assert text in ntfy
    assert json.loads(plain)["kind"] == "waiting"
    assert json.loads(plain)["id"] == hook.received[0][0]
    assert send_due(config) == ([], 0)


def test_what_is_asked_again_is_news(tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    config, folder = write_alerts(tmp_path, {"webhook": hook.url}), tmp_path / ".evsys" / "loop" / "shop"
    request_approval(folder, "deploy")
    send_due(config)
    decide_approval(folder, approve=False)
    send_due(config)
    later = time.time() + 60
    monkeypatch.setattr("time.time", lambda: later)
    request_approval(folder, "deploy")
    send_due(config)
    assert len({id for id, _ in hook.received}) == len(hook.received) == 2


def test_a_target_that_refuses_gets_it_again_and_holds_up_no_other(tmp_path: Path) -> None:
    request_approval(tmp_path / ".evsys" / "loop" / "shop", "deploy")
    note = tmp_path / "note.txt"
    with Hook(refuse=2) as server:
        command = {"command": f'echo "$EVSYS_ALERT_ID" >> {note}', "events": ["waiting"]}
        config = write_alerts(tmp_path, {"webhook": server.url}, command, {"webhook": server.url, "events": ["failed"]})
        assert [attempt.problem != "" for attempt in send_due(config)[0]] == [True, False]
        assert main(["alerts"]) == 2
        assert send_due(config)[1] == 0
        assert [f"{id}\n" for id, _ in server.received] == [note.read_text("utf-8")]


def test_no_more_than_the_rate_allows(tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_alerts(tmp_path, {"webhook": hook.url, "per_hour": 3})
    items = [AttentionItem(f"e{at}/failed", "failed", f"e{at}", "", "failed", "evsys show") for at in range(5)]
    monkeypatch.setattr("evsys_sdk.observers.alerts.read_attention", lambda: items)
    assert send_due(config)[1] == 2
    assert send_due(config) == ([], 2)
    later = time.time() + 3700
    monkeypatch.setattr("time.time", lambda: later)
    assert send_due(config)[1] == 0
    assert [id for id, _ in hook.received] == [item.id for item in items]


def test_a_secret_in_an_address_is_in_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOOK", "http://127.0.0.1:9/services/T0P53CR3T")
    write_alerts(tmp_path, {"webhook": "${HOOK}"}, {"webhook": "${NOT_SET}"})
    assert main(["alerts", "--test", "--json"]) == 2
    out = capsys.readouterr().out
    assert "T0P53CR3T" not in out
    problems = [delivery["problem"] for delivery in json.loads(out)["deliveries"]]
    assert problems[0] == "127.0.0.1: ConnectError"
    assert "'NOT_SET' is not set" in problems[1]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({}, "Set exactly one of them"),
        ({"webhook": "x", "command": "y"}, "Set exactly one of them"),
        ({"webhook": "x", "events": ["fails"]}, "fails"),
        ({"webhok": "x"}, "webhok"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(tmp_path: Path, target: dict[str, Any], said: str) -> None:
    (tmp_path / ".evsys").mkdir()
    file = tmp_path / ".evsys" / "alerts.yaml"
    file.write_text(json.dumps({"alerts": [target]}), encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        load_settings(file, AlertsConfig)


def test_without_a_file_the_command_says_how_to_write_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alerts"]) == 1
    assert "alerts: [{webhook:" in capsys.readouterr().err


CONFIG = """\
name: long
run:
  name: r
  data: { source_kind: in_memory, rows: [{ messages: [{ role: user, content: a }, { role: assistant, content: b }] }] }
  model: { name: tiny }
  algorithm: { kind: sft, params: { max_steps: 100000000 } }
  backend: { kind: mock }
"""


def kill_watcher(folder: Path) -> None:
    """Wait for the watcher that a command started, and kill it."""
    owner = dict[str, Any]()

    def has_owner() -> bool:
        for file in folder.glob("*lock*") if folder.is_dir() else ():
            content = file.read_text("utf-8")
            owner.update(json.loads(content) if content else {})
        return "pid" in owner

    wait_for(has_owner)
    os.kill(owner["pid"], 9)


def watch_until(is_delivered: Callable[[], Any]) -> None:
    """Watch as the next commands do in the background: a killed watcher keeps its lock for a moment."""

    def watched() -> Any:
        watch_alerts()
        return is_delivered()

    wait_for(watched)


@pytest.mark.slow
def test_a_killed_run_and_a_killed_watcher_lose_no_alert(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    with Hook(refuse=1) as server:
        write_alerts(tmp_path, {"webhook": server.url})
        command = [sys.executable, "-m", "evsys_sdk", "run", "config.yaml", "--quiet"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # The watcher that the run started is killed first, then the run: no one is left who knows.
        wait_for(lambda: (tmp_path / "outputs" / "long" / "journal.jsonl").exists())
        kill_watcher(tmp_path / ".evsys" / "alerts")
        process.kill()
        process.wait()
        assert server.received == []
        watch_until(lambda: server.received)
        assert server.refused == 1
        [(id, body)] = server.received
        assert json.loads(body)["kind"] == "killed"
        assert "/killed/" in id
        watch_alerts()
        assert len(server.received) == 1


@pytest.mark.slow
def test_a_killed_campaign_and_its_end_reach_the_webhook(tmp_path: Path, hook: Hook) -> None:
    write_project(tmp_path)
    write_alerts(tmp_path, {"webhook": hook.url})
    open_campaign("night", Terms("?", tokens=40_000, portfolio="portfolio.yaml"))
    command = [sys.executable, "-m", "evsys_sdk", "campaign", "run", "night"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: len(load_campaign("night").decisions) >= 2)
    kill_watcher(tmp_path / ".evsys" / "alerts")
    process.kill()
    process.wait()

    def received(kind: str) -> set[str]:
        return {id for id, body in list(hook.received) if json.loads(body)["kind"] == kind and "campaign:night" in id}

    watch_until(lambda: received("killed"))
    assert len(received("killed")) == 1
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, check=True)
    watch_alerts()
    wait_for(lambda: received("ended"))
    assert received("ended") == {"campaign:night/ended/closed"}
