"""All arms of an experiment on one screen: states, metrics and remaining time.

    words: 3 of 6 arms done, 1 failed, 2 running, about 2m 40s left, 1m 12s so far
    sft__seed1 ━━━━━━━━━━╺━━━━━  120/200  28s left  loss 0.4123  val/words/pass@1 0.41
    rl__seed1  ━━━━━╺━━━━━━━━━━   60/200  1m 10s left  reward/mean 0.2031

Arms may run in other processes or on other machines, so everything is read from the record. Scores and finished arms
scroll above the board, together with stdout and stderr of this process and its children, which pass through a pipe.
Without a terminal, each finished arm is one line with the number of remaining arms.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...experiment.jobs.live_status import RUNNING, WAITING, ArmStatus, LiveStatus, StatusReader
from ...history.text import clip, duration_text, score_text

if TYPE_CHECKING:
    from rich.console import RenderableType

_SECONDS_BETWEEN_READS, _REST_AFTER_READS = 0.5, 30
"""Minimum interval of reads; and minimum pause as a multiple of a read's duration, to leave the machine to training."""
_BAR_WIDTH, _WIDTH_WITH_BARS = 24, 80
_LINES_FOR_OTHERS = 3
"""Lines for the board's head and for scrolling output."""
_SENTENCE = 40
"""Minimum length of lines to deduplicate; shorter ones may repeat by chance."""
_MOST_SENTENCES = 1000

_MARKS = {"eval": ("◆", "cyan"), "completed": ("✔", "green"), "failed": ("✖", "red")}
"""Mark and colour of each kind of event."""

type ReadStatus = Callable[[Path], LiveStatus]


@dataclass(slots=True)
class Changes:
    """Detects changes since the last read."""

    _ended: set[str] = field(default_factory=set[str])
    _scores: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict[tuple[str, str], tuple[int, float]])

    def update(self, status: LiveStatus) -> Iterator[tuple[str, str, str]]:
        """Each change as (kind, label, text), scores before ends."""
        for arm in status.arms:
            for metric, value in arm.scores.items():
                at, before = arm.scored_at[metric], self._scores.get((arm.arm, metric))
                self._scores[arm.arm, metric] = (at, value)
                if before is None or before[0] != at:
                    change = None if before is None else value - before[1]
                    change_text = "" if change is None else f" ({'-' if change < 0 else '+'}{score_text(abs(change))})"
                    yield "eval", arm.arm, f"step {at}  {metric} {score_text(value)}{change_text}"
        for arm in status.arms:
            if arm.has_ended and arm.arm not in self._ended:
                self._ended.add(arm.arm)
                yield arm.state, arm.arm, _outcome(arm)
            elif not arm.has_ended:
                self._ended.discard(arm.arm)  # it was restarted


@dataclass(slots=True)
class Repeats:
    """Deduplicates printed sentences, so that a message of every arm is shown once."""

    count: int = 0
    _printed: set[str] = field(default_factory=set[str])

    def is_repeated(self, line: str) -> bool:
        """Whether this line was printed before; short lines, as in tables or counters, do not count."""
        if len(line.strip()) < _SENTENCE:
            return False
        if line in self._printed:
            self.count += 1
            return True
        if len(self._printed) < _MOST_SENTENCES:
            self._printed.add(line)
        return False


def headline(status: LiveStatus, seconds: float) -> str:
    """A line such as `3 of 6 arms done, 1 failed, 2 running, about 2m 40s left, 1m 12s so far`."""
    counts, left = status.counts, status.seconds_left
    parts = [
        f"{status.done} of {len(status.arms)} arms done",
        *(f"{counts[state]} {state}" for state in ("failed", "cancelled", RUNNING) if counts.get(state)),
        "" if left is None else f"about {duration_text(round(left))} left",
        f"{duration_text(round(seconds))} so far",
    ]
    return ", ".join(part for part in parts if part)


def arm_facts(arm: ArmStatus) -> list[str]:
    """Progress, remaining time and metrics, the most important first."""
    left = arm.seconds_left
    width = len(str(arm.total_steps))
    return [
        f"{arm.step or 0:>{width}}/{arm.total_steps}" if arm.total_steps else f"step {arm.step or 0}",
        "" if left is None else f"{duration_text(left)} left",
        "" if arm.value is None else f"{arm.measure} {score_text(arm.value)}",
        *(f"{name} {score_text(value)}" for name, value in arm.scores.items()),
    ]


def _outcome(arm: ArmStatus) -> str:
    steps = arm.step or 0
    facts = [f"{steps} step{'' if steps == 1 else 's'}", *arm_facts(arm)[2:]]
    if arm.error:
        facts.append(arm.error.strip().splitlines()[-1])
    return ", ".join(fact for fact in facts if fact)


@contextmanager
def watch_plain(path: Path, read_status: ReadStatus | None = None) -> Generator[None]:
    """Print a line whenever an arm has ended."""
    began, printed = time.monotonic(), -1

    def show(status: LiveStatus) -> None:
        nonlocal printed
        if status.done > max(printed, 0):
            _write(f"[{path.name}] {headline(status, time.monotonic() - began)}\n")
        printed = status.done

    with _poll(path, read_status or partial(StatusReader().read, to_count=True), show):
        yield


@contextmanager
def watch_live(path: Path, read_status: ReadStatus | None = None) -> Generator[None]:
    """Show the board at the bottom of the terminal, with all other output above it."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    began, changes = time.monotonic(), Changes()
    with _terminal_behind_a_pipe() as (terminal, follow):
        console = Console(file=terminal, highlight=False, force_terminal=True, width=_size(terminal)[0])
        repeats = Repeats()

        def pass_on(line: str) -> None:
            if not repeats.is_repeated(line):
                console.print(Text.from_ansi(line))

        follow(pass_on)

        def show(status: LiveStatus) -> None:
            width, height = _size(terminal)
            console.width = width
            for kind, label, text in changes.update(status):
                mark, style = _MARKS.get(kind, ("■", "yellow"))
                title = label if kind == "eval" else f"{label} {kind}"
                console.print(Text.assemble((f"{mark} {title}", style), "  ", text))
            live.update(_board(path.name, status, time.monotonic() - began, width, height), refresh=True)

        live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)
        with live, _poll(path, read_status or StatusReader().read, show):
            yield
    if repeats.count:
        _write(f"({repeats.count} repeated lines of several arms were shown once.)\n")


def _board(name: str, status: LiveStatus, seconds: float, width: int, height: int) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    head = Text.assemble((f"{name}: ", "bold"), headline(status, seconds), no_wrap=True, overflow="ellipsis")
    running = [arm for arm in status.arms if arm.state == RUNNING]
    shown = running[: max(height - _LINES_FOR_OTHERS, 1)]
    arms = Table.grid(padding=(0, 2, 0, 0))
    arms.add_column(style="cyan", no_wrap=True)
    if is_wide := width >= _WIDTH_WITH_BARS:
        arms.add_column(width=_BAR_WIDTH)
    arms.add_column(no_wrap=True)
    for arm in shown:
        bar = [ProgressBar(arm.total_steps, min(arm.step or 0, arm.total_steps or 0))] if is_wide else []
        arms.add_row(clip(arm.arm, max(width // 3, 8)), *bar, "  ".join(fact for fact in arm_facts(arm) if fact))
    others, waiting = len(running) - len(shown), status.counts.get(WAITING)
    rest = f"and {others} more running" if others else f"{waiting} waiting" if waiting else ""
    return Group(head, *([arms] if shown else []), *([Text(rest, style="dim")] if rest else []))


@contextmanager
def _poll(path: Path, read_status: ReadStatus, show: Callable[[LiveStatus], None]) -> Generator[None]:
    """Read and show the status regularly and once at the end; a failed read is retried."""
    over = threading.Event()

    def poll() -> None:
        read_s = 0.0
        while not over.wait(max(_SECONDS_BETWEEN_READS, read_s * _REST_AFTER_READS)):
            began = time.monotonic()
            with suppress(Exception):  # a file may be partly written; the run must not fail
                show(read_status(path))
            read_s = time.monotonic() - began

    thread = threading.Thread(target=poll, name="evsys-board", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()  # `show` is never called by two threads at once
        with suppress(Exception):
            show(read_status(path))


@contextmanager
def _terminal_behind_a_pipe() -> Generator[tuple[Any, Callable[[Callable[[str], None]], None]]]:
    """The terminal as a file, while stdout and stderr are captured line by line.

    The second value registers the function for captured lines.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    descriptors = [2, 1] if os.isatty(1) else [2]  # leave stdout alone if it is redirected
    # Descriptors, not `sys.stdout`: C libraries and child processes write to them directly.
    saved = {descriptor: os.dup(descriptor) for descriptor in descriptors}
    read, write = os.pipe()
    for descriptor in descriptors:
        os.dup2(write, descriptor)
    os.close(write)  # the reader ends when the descriptors are restored
    reader: threading.Thread | None = None

    def follow(show_line: Callable[[str], None]) -> None:
        nonlocal reader

        def pass_on() -> None:
            with open(read, "rb", closefd=False) as lines:
                for line in lines:
                    with suppress(Exception):  # keep reading, or writers would block
                        show_line(line.decode("utf-8", "replace").rstrip("\n"))

        reader = threading.Thread(target=pass_on, name="evsys-terminal", daemon=True)
        reader.start()

    # a copy, because the saved descriptor is closed first
    with open(os.dup(saved[2]), "w", encoding="utf-8", errors="replace") as terminal:
        try:
            yield terminal, follow
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, original in saved.items():
                os.dup2(original, descriptor)  # closes this process's last writers, so the reader ends
                os.close(original)
            if reader is not None:
                reader.join(timeout=1.0)  # a remaining child process may keep the pipe open
            with suppress(OSError):
                os.close(read)


def _size(terminal: Any) -> tuple[int, int]:
    try:
        size = os.get_terminal_size(terminal.fileno())
    except OSError:
        return 100, 24
    return size.columns or 100, size.lines or 24


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
