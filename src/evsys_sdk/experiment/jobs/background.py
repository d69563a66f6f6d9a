"""Experiments that outlive the command that started them: start one, follow it, stop it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...errors import TrainingError
from ...record.events import count_events
from ...record.layout import ExperimentFiles
from ...record.lock import lock_owner
from ...record.reader import ExperimentRecord
from ...user_code import keep_process

_POLL_S = 0.1
_START_S = 60.0
_LOCK_LINGERS_S = 2.0
"""Time for which the lock of an ended process may still be seen."""


def start_in_background(arguments: Sequence[str], experiment_dir: Path) -> int:
    """Run `evsys ARGUMENTS` for the experiment in a folder; return the process id once it has started."""
    if owner := lock_owner(experiment_dir):
        raise TrainingError(f"the experiment in {experiment_dir} is being run by process {owner.get('pid')} already.")
    events_before = count_events(experiment_dir)
    with ExperimentFiles(experiment_dir).console.open("ab") as console:
        process = subprocess.Popen(
            [sys.executable, "-m", "evsys_sdk", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            start_new_session=True,  # not reached by Ctrl-C or the end of the terminal
        )
    keep_process(process.pid)
    deadline = time.monotonic() + _START_S
    while count_events(experiment_dir) == events_before and time.monotonic() < deadline:
        if process.poll() is not None and process.returncode != 0:
            raise TrainingError(f"the command ended at once: {_last_printed_line(experiment_dir)}")
        time.sleep(_POLL_S)
    return process.pid


def follow(experiment_dir: Path) -> Iterator[str]:
    """Yield the output lines of an experiment in the background, from the start until it ends."""
    console = ExperimentFiles(experiment_dir).console
    with console.open("r", encoding="utf-8", errors="replace") as file:
        pending = ""
        while True:
            running = lock_owner(experiment_dir) is not None  # checked before reading, so that no line is missed
            pending += file.read()
            *lines, pending = pending.split("\n")
            yield from lines
            if not running:
                if pending:
                    yield pending
                return
            time.sleep(_POLL_S)


def cancel(experiment_dir: Path, *, patience_s: float, kill: bool = False) -> dict[str, Any]:
    """Ask a running experiment for a clean stop and wait; with `kill`, kill it if it has not stopped by then."""
    owner, lock = lock_owner(experiment_dir), ExperimentFiles(experiment_dir).lock
    deadline = time.monotonic() + _LOCK_LINGERS_S
    while owner == {} and time.monotonic() < deadline:  # the owner is writing the lock
        time.sleep(_POLL_S)
        owner = lock_owner(experiment_dir)
    if owner is None:
        return {"was_running": False, "stopped": True, "killed": False}
    if "pid" not in owner:
        raise TrainingError(f"{lock} names no process. Find and end the process that runs the experiment.")
    # A process id is valid on its own machine only.
    if owner.get("host") != socket.gethostname():
        raise TrainingError(f"it runs on {owner.get('host')}. Stop process {owner.get('pid')} there.")
    pid = int(owner["pid"])
    _signal(pid, signal.SIGTERM, experiment_dir)
    stopped = _wait_until_free(experiment_dir, patience_s)
    if not stopped and kill:
        _signal(pid, signal.SIGKILL, experiment_dir)
        stopped = _wait_until_free(experiment_dir, patience_s)
        return {"was_running": True, "stopped": stopped, "killed": True}
    return {"was_running": True, "stopped": stopped, "killed": False}


def wait_for_end(experiment_dir: Path) -> str:
    """Wait until no process runs the experiment; return its state."""
    while lock_owner(experiment_dir) is not None:
        time.sleep(_POLL_S)
    return ExperimentRecord(experiment_dir).status


def _signal(pid: int, number: signal.Signals, experiment_dir: Path) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        if _wait_until_free(experiment_dir, _LOCK_LINGERS_S):
            return
        lock = ExperimentFiles(experiment_dir).lock
        raise TrainingError(
            f"process {pid}, which ran it, has ended, but a process it started still holds {lock}. "
            "End that process; `lsof` or `fuser` on the file shows it."
        ) from None
    except PermissionError:
        raise TrainingError(f"process {pid} belongs to another user. Ask that user to stop it.") from None


def _wait_until_free(experiment_dir: Path, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while lock_owner(experiment_dir) is not None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _last_printed_line(experiment_dir: Path) -> str:
    console = ExperimentFiles(experiment_dir).console
    text = console.read_text(encoding="utf-8", errors="replace").strip()
    return text.rsplit("\n", 1)[-1] or f"see {console}"
