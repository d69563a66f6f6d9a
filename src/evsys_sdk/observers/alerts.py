"""Alerts: what needs a person, sent to webhooks and commands that `.evsys/alerts.yaml` names.

    alerts:
      - webhook: ${SLACK_WEBHOOK}            # Slack, Discord, ntfy, or JSON to any address
      - command: notify-send evsys "$EVSYS_ALERT"
        events: [waiting, failed]

The outbox is not stored: it is `read_attention()` less what was delivered, so that nothing is lost with a process. Each
alert has an id, and is sent again under it until its target has accepted it. Sending is the work of a process of its
own (`evsys alerts --watch`), which runs of experiments start and never wait for.
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
"""Between two attempts at a target that does not accept; they begin at the polling interval and double."""
_GIVE_UP_S = 3600.0
"""How long a watcher continues after everything has ended, while something is not delivered."""
_FORMATS = {"hooks.slack.com": "slack", "discord.com": "discord", "discordapp.com": "discord", "ntfy.sh": "ntfy"}

type AlertKind = Literal[
    "waiting", "damaged", "failed", "killed", "refused", "deadline", "nearly_spent", "flagged", "budget", "ended"
]


class AlertTarget(Strict):
    """One place that alerts go to."""

    webhook: str | None = Field(default=None, min_length=1)
    """Address that gets a POST; `${NAME}` is an environment variable."""
    command: str | None = Field(default=None, min_length=1)
    """Shell command with the text in `EVSYS_ALERT`, the id in `EVSYS_ALERT_ID`, and everything as JSON on stdin."""
    format: Literal["auto", "slack", "discord", "ntfy", "json"] = "auto"
    """Form of the message; by default told from the address, else JSON."""
    events: list[AlertKind] = []
    """Which alerts; by default all."""
    per_hour: int = Field(default=60, ge=1)
    """Most alerts in an hour; others wait."""

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        if (self.webhook is None) == (self.command is None):
            raise ValueError("an alert goes to a 'webhook' or to a 'command'. Set one of them.")
        return self


class AlertsConfig(Strict):
    """Where alerts go."""

    alerts: list[AlertTarget]
    """Each gets all alerts that it asks for."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One attempt to deliver an alert."""

    target: str
    item: AttentionItem
    problem: str = ""
    """Why it was not accepted; empty when it was."""

    def to_dict(self) -> dict[str, Any]:
        return {"target": self.target, "problem": self.problem, **self.item.to_dict()}


def load_alerts() -> AlertsConfig | None:
    """The targets of this project; None where it has none."""
    path = workspace_dir() / f"{ALERTS}.yaml"
    return load_settings(path, AlertsConfig) if path.is_file() else None


def send_due(config: AlertsConfig, *, skip: Sequence[str] = ()) -> tuple[list[Delivery], int]:
    """Deliver what is due, except to the targets in `skip`: the attempts, and how many alerts are due after them."""
    delivered, items, now = read_delivered(), read_attention(), time.time()
    made: list[Delivery] = []
    left = 0
    for at, target in enumerate(config.alerts):
        name = _name(at, target)
        due = [one for one in items if _wants(target, one) and (name, one.id) not in delivered]
        recent = sum(to == name and when > now - 3600 for (to, _), when in delivered.items())
        left += len(due)
        for one in due[: 0 if name in skip else max(target.per_hour - recent, 0)]:
            made.append(Delivery(name, one, _send(target, one)))
            if made[-1].problem:
                break  # the others would fail as well; they are tried at the next look
            note_delivered(name, one.id)
            left -= 1
    return made, left


def send_test(config: AlertsConfig) -> list[Delivery]:
    """Send every target a message that is not about anything."""
    one = AttentionItem(f"test/{time.time():.0f}", "test", "test", "", "this is a test of evsys alerts", "evsys status")
    return [Delivery(_name(at, target), one, _send(target, one)) for at, target in enumerate(config.alerts)]


def watch_alerts() -> None:
    """Deliver alerts as long as anything runs in the project, and until all are delivered; one process at a time."""
    while (config := load_alerts()) is not None:
        try:
            with folder_lock(workspace_dir() / ALERTS, what="the watcher of alerts", patience_s=0.0):
                _watch(config)
        except FolderBusy:
            return
        if not _is_anything_running():  # asked again without the lock: who began meanwhile found a watcher
            return


def start_watcher() -> None:
    """Start a watcher in the background where the project has alerts; whatever happens to it holds up nothing."""
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
        held = [name for name, (_, until) in tries.items() if time.monotonic() < until]
        made, left = send_due(config, skip=held)
        for one in made:
            count = tries.get(one.target, (0, 0.0))[0] + 1
            pause = min(_POLL_S * 2 ** (count - 1), _LONGEST_WAIT_S)
            tries[one.target] = (count, time.monotonic() + pause) if one.problem else (0, 0.0)
        if not running and (not left or time.monotonic() - quiet_since > _GIVE_UP_S):
            return
        time.sleep(_POLL_S)


def _is_anything_running() -> bool:
    folders: list[Path] = [*experiment_roots(), workspace_dir() / CAMPAIGNS]
    return any(find_owned(folder) for folder in folders if folder.is_dir())


def _wants(target: AlertTarget, one: AttentionItem) -> bool:
    return not target.events or one.kind in target.events


def _name(at: int, target: AlertTarget) -> str:
    """What the list of deliveries and messages call a target, without what may be secret in its address."""
    return f"{at + 1}:{'command' if target.command else 'webhook'}"


def _send(target: AlertTarget, one: AttentionItem) -> str:
    """Why a target did not accept an alert; empty when it did."""
    text = redact_text(f"{project_root().name}: {one.experiment}: {one.what}. Start with: {one.command}")
    about = {**one.to_dict(), "what": redact_text(one.what), "project": project_root().name, "text": text}
    try:
        return _run(target.command, one, text, about) if target.command else _post(target, one, text, about)
    except EvsysError as error:
        return str(error)


def _run(command: str, one: AttentionItem, text: str, about: dict[str, Any]) -> str:
    import json

    own = {"EVSYS_ALERT": text, "EVSYS_ALERT_ID": one.id, "EVSYS_ALERT_KIND": one.kind}
    given = json.dumps(about, ensure_ascii=False).encode()
    try:
        done = subprocess.run(
            command, shell=True, input=given, env={**os.environ, **own}, capture_output=True, timeout=_COMMAND_S
        )
    except subprocess.TimeoutExpired:
        return f"the command took longer than {_COMMAND_S:g} s"
    return f"the command ended with {done.returncode}" if done.returncode else ""


def _post(target: AlertTarget, one: AttentionItem, text: str, about: dict[str, Any]) -> str:
    import httpx

    address = str(expand_variables(target.webhook, "webhook"))
    host = urlsplit(address).hostname or ""
    form = target.format if target.format != "auto" else _FORMATS.get(host, "json")
    headers = {"Idempotency-Key": one.id, "X-Evsys-Alert-Id": one.id}
    content: dict[str, Any] = {"json": {"slack": {"text": text}, "discord": {"content": text[:2000]}}.get(form, about)}
    if form == "ntfy":
        headers |= {"Title": f"evsys: {one.kind}"}
        content = {"content": text.encode()}
    try:
        answer = httpx.post(address, headers=headers, timeout=_PATIENCE_S, **content)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"{host}: {type(error).__name__}"
    return "" if answer.is_success else f"{host}: it answered with {answer.status_code}"
