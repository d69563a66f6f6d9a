"""Alerts: events that need a person, sent to the webhooks and commands of `.evsys/alerts.yaml`.

    alerts:
      - webhook: ${SLACK_WEBHOOK}            # Slack, Discord, ntfy, or JSON to any address
      - command: notify-send evsys "$EVSYS_ALERT"
        events: [waiting, failed]

The outbox is computed: `read_attention()` minus delivered alerts, so nothing is lost with a process. Each alert is
retried under its id until its target accepts it. A separate process (`evsys alerts --watch`) sends them; experiments
start it and never wait for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from ..config.base import Strict, expand_variables
from ..config.load import load_settings
from ..errors import EvsysError
from ..history.attention import AttentionItem, read_attention
from ..history.find import experiment_roots
from ..log import get_logger
from ..paths import project_root, workspace_dir
from ..record.layout import ALERTS, CAMPAIGNS
from ..record.lock import FolderBusy, find_owned, folder_lock
from ..record.project_files.delivered import note_delivered, read_delivered
from ..redact import redact_text
from ..user_code import keep_process

_POLL_S = 2.0
_PATIENCE_S = 10.0
_COMMAND_S = 30.0
_LONGEST_WAIT_S = 60.0
"""Maximum wait between attempts at a failing target; it starts at the polling interval and doubles."""
_GIVE_UP_S = 3600.0
"""How long a watcher keeps trying after everything has ended."""
_FORMATS = {"hooks.slack.com": "slack", "discord.com": "discord", "discordapp.com": "discord", "ntfy.sh": "ntfy"}

type AlertKind = Literal[
    "waiting", "damaged", "failed", "killed", "refused", "deadline", "nearly_spent", "flagged", "budget", "ended"
]


class AlertTarget(Strict):
    """One destination of alerts."""

    webhook: str | None = Field(default=None, min_length=1)
    """URL that receives a POST; `${NAME}` is an environment variable."""
    command: str | None = Field(default=None, min_length=1)
    """Shell command with the text in `EVSYS_ALERT`, the id in `EVSYS_ALERT_ID`, and everything as JSON on stdin."""
    format: Literal["auto", "slack", "discord", "ntfy", "json"] = "auto"
    """Format of the message; by default detected from the URL, else JSON."""
    events: list[AlertKind] = []
    """Kinds of alerts to send; by default all."""
    per_hour: int = Field(default=60, ge=1)
    """Maximum alerts per hour; others wait."""

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        if (self.webhook is None) == (self.command is None):
            raise ValueError("an alert needs either 'webhook' or 'command'. Set exactly one of them.")
        return self


class AlertsConfig(Strict):
    """Destinations of alerts."""

    alerts: list[AlertTarget]
    """Each receives all alerts of its `events`."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One attempt to deliver an alert."""

    target: str
    item: AttentionItem
    problem: str = ""
    """Why it was not accepted; empty on success."""

    def to_dict(self) -> dict[str, Any]:
        return {"target": self.target, "problem": self.problem, **self.item.to_dict()}


def load_alerts() -> AlertsConfig | None:
    """The project's alert targets; None without any."""
    path = workspace_dir() / f"{ALERTS}.yaml"
    return load_settings(path, AlertsConfig) if path.is_file() else None


def send_due(config: AlertsConfig, *, skip: Sequence[str] = ()) -> tuple[list[Delivery], int]:
    """Deliver due alerts, except to the targets in `skip`; returns the attempts and the number still due."""
    delivered, items, now = read_delivered(), read_attention(), time.time()
    attempts: list[Delivery] = []
    remaining = 0
    for at, target in enumerate(config.alerts):
        name = _name(at, target)
        selected = [item for item in items if not target.events or item.kind in target.events]
        due = [item for item in selected if (name, item.id) not in delivered]
        recent = sum(to == name and when > now - 3600 for (to, _), when in delivered.items())
        remaining += len(due)
        for item in due[: 0 if name in skip else max(target.per_hour - recent, 0)]:
            attempts.append(Delivery(name, item, _send(target, item)))
            if attempts[-1].problem:
                break  # the others would fail too; retry in the next round
            note_delivered(name, item.id)
            remaining -= 1
    return attempts, remaining


def send_test(config: AlertsConfig) -> list[Delivery]:
    """Send a test message to every target."""
    item = AttentionItem(
        f"test/{time.time():.0f}", "test", "test", "", "this is a test of evsys alerts", "evsys status"
    )
    return [Delivery(_name(at, target), item, _send(target, item)) for at, target in enumerate(config.alerts)]


def watch_alerts() -> None:
    """Deliver alerts while anything runs in the project, and until all are delivered; one process at a time."""
    while (config := load_alerts()) is not None:
        try:
            with folder_lock(workspace_dir() / ALERTS, what="the watcher of alerts", patience_s=0.0):
                _watch(config)
        except FolderBusy:
            return
        if not _is_anything_running():  # checked again after releasing the lock, for runs that started meanwhile
            return


def start_watcher() -> None:
    """Start a background watcher if the project has alerts; failures are only logged."""
    try:
        if load_alerts() is None:
            return
        process = subprocess.Popen(
            [sys.executable, "-m", "evsys_sdk", "alerts", "--watch"],
            cwd=project_root(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        keep_process(process.pid)
    except (EvsysError, OSError) as error:
        get_logger(__name__).warning("alerts are not sent: %s", error)


def _watch(config: AlertsConfig) -> None:
    tries: dict[str, tuple[int, float]] = {}
    quiet_since = time.monotonic()
    while True:
        if running := _is_anything_running():
            quiet_since = time.monotonic()
        paused = [name for name, (_, until) in tries.items() if time.monotonic() < until]
        attempts, remaining = send_due(config, skip=paused)
        for attempt in attempts:
            count = tries.get(attempt.target, (0, 0.0))[0] + 1
            pause = min(_POLL_S * 2 ** (count - 1), _LONGEST_WAIT_S)

            tries[attempt.target] = (count, time.monotonic() + pause) if attempt.problem else (0, 0.0)
        if not running and (not remaining or time.monotonic() - quiet_since > _GIVE_UP_S):
            return
        time.sleep(_POLL_S)


def _is_anything_running() -> bool:
    folders: list[Path] = [*experiment_roots(), workspace_dir() / CAMPAIGNS]
    return any(find_owned(folder) for folder in folders if folder.is_dir())


def _name(at: int, target: AlertTarget) -> str:
    """A target's name in records and messages, without its possibly secret URL."""
    return f"{at + 1}:{'command' if target.command else 'webhook'}"


def _send(target: AlertTarget, item: AttentionItem) -> str:
    """Send an alert; returns the problem, empty on success."""
    text = redact_text(f"{project_root().name}: {item.experiment}: {item.what}. Start with: {item.command}")
    details = {**item.to_dict(), "what": redact_text(item.what), "project": project_root().name, "text": text}
    try:
        return _run(target.command, item, text, details) if target.command else _post(target, item, text, details)
    except EvsysError as error:
        return str(error)


def _run(command: str, item: AttentionItem, text: str, details: dict[str, Any]) -> str:
    import json

    variables = {"EVSYS_ALERT": text, "EVSYS_ALERT_ID": item.id, "EVSYS_ALERT_KIND": item.kind}
    stdin = json.dumps(details, ensure_ascii=False).encode()
    try:
        process = subprocess.run(
            command, shell=True, input=stdin, env={**os.environ, **variables}, capture_output=True, timeout=_COMMAND_S
        )
    except subprocess.TimeoutExpired:
        return f"the command took longer than {_COMMAND_S:g} s"
    return f"the command ended with {process.returncode}" if process.returncode else ""


def _post(target: AlertTarget, item: AttentionItem, text: str, details: dict[str, Any]) -> str:
    import httpx

    address = str(expand_variables(target.webhook, "webhook"))
    host = urlsplit(address).hostname or ""
    form = target.format if target.format != "auto" else _FORMATS.get(host, "json")
    headers = {"Idempotency-Key": item.id, "X-Evsys-Alert-Id": item.id}
    content: dict[str, Any] = {
        "json": {"slack": {"text": text}, "discord": {"content": text[:2000]}}.get(form, details)
    }
    if form == "ntfy":
        headers |= {"Title": f"evsys: {item.kind}"}
        content = {"content": text.encode()}
    try:
        answer = httpx.post(address, headers=headers, timeout=_PATIENCE_S, **content)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"{host}: {type(error).__name__}"
    return "" if answer.is_success else f"{host} answered with status {answer.status_code}"
