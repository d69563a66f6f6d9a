"""All arms of an experiment on one screen: who is done, who is running, how well, how long still.

    words: 3 of 6 arms done, 1 failed, 2 running, about 2m 40s left, 1m 12s so far
    sft__seed1 ━━━━━━━━━━╺━━━━━  120/200  28s left  loss 0.4123  val/words/pass@1 0.41
    rl__seed1  ━━━━━╺━━━━━━━━━━   60/200  1m 10s left  reward/mean 0.2031

Arms may run in other processes or on other machines, so everything is read from the record. Scores and ends scroll past
above, and so does whatever anybody prints meanwhile: standard output and error of this process, and of the processes it
starts, are led through a pipe while the board owns the bottom of the screen. Without a terminal to redraw, each arm
that ends is a line that says how many are left.
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

_SECONDS_BETWEEN_LOOKS, _REST_AFTER_LOOKS = 0.5, 30
"""How often it looks; and how many times as long as a look it rests, because the machine is there for training."""
_BAR_WIDTH, _WIDTH_WITH_BARS = 24, 80
_LINES_FOR_OTHERS = 3
"""Of the screen's height: the head of the board, and room for what scrolls past."""
_SENTENCE = 40
"""A line of at least so many characters does not come twice by chance."""
_MOST_SENTENCES = 1000

_MARKS = {"eval": ("◆", "cyan"), "completed": ("✔", "green"), "failed": ("✖", "red")}
"""Mark and colour of each kind of event."""

type Look = Callable[[Path], LiveStatus]


@dataclass(slots=True)
class Changes:
    """Tells what has happened since the last look."""

    _ended: set[str] = field(default_factory=set[str])
    _scores: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict[tuple[str, str], tuple[int, float]])

    def tell(self, status: LiveStatus) -> Iterator[tuple[str, str, str]]:
        """Each moment as (kind, label, text), scores before ends."""
        for arm in status.arms:
            for metric, value in arm.scores.items():
                at, before = arm.scored_at[metric], self._scores.get((arm.arm, metric))
                self._scores[arm.arm, metric] = (at, value)
                if before is None or before[0] != at:
                    change = None if before is None else value - before[1]
                    moved = "" if change is None else f" ({'-' if change < 0 else '+'}{score_text(abs(change))})"
                    yield "eval", arm.arm, f"step {at}  {metric} {score_text(value)}{moved}"
        for arm in status.arms:
            if arm.has_ended and arm.arm not in self._ended:
                self._ended.add(arm.arm)
                yield arm.state, arm.arm, _outcome(arm)
            elif not arm.has_ended:
                self._ended.discard(arm.arm)  # it is tried again


@dataclass(slots=True)
class Repeats:
    """Knows the sentences that were printed: what every arm reports is shown once."""

    count: int = 0
    _known: set[str] = field(default_factory=set[str])

    def knows(self, line: str) -> bool:
        """Whether this very sentence was there before; short lines, as of a table or a counter, never count."""
        if len(line.strip()) < _SENTENCE:
            return False
        if line in self._known:
            self.count += 1
            return True
        if len(self._known) < _MOST_SENTENCES:
            self._known.add(line)
        return False


def headline(status: LiveStatus, seconds: float) -> str:
    """`3 of 6 arms done, 1 failed, 2 running, about 2m 40s left, 1m 12s so far`; the end is what narrow windows cut."""
    counts, left = status.counts, status.seconds_left
    parts = [
        f"{status.done} of {len(status.arms)} arms done",
        *(f"{counts[state]} {state}" for state in ("failed", "cancelled", RUNNING) if counts.get(state)),
        "" if left is None else f"about {duration_text(round(left))} left",
        f"{duration_text(round(seconds))} so far",
    ]
    return ", ".join(part for part in parts if part)


def arm_facts(arm: ArmStatus) -> list[str]:
    """How far, how long still, how well: the most important first."""
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
def watch_plain(path: Path, look: Look | None = None) -> Generator[None]:
    """Write a line whenever an arm has ended."""
    began, known = time.monotonic(), -1

    def show(status: LiveStatus) -> None:
        nonlocal known
        if status.done > max(known, 0):
            _write(f"[{path.name}] {headline(status, time.monotonic() - began)}\n")
        known = status.done

    with _look_regularly(path, look or partial(StatusReader().read, to_count=True), show):
        yield


@contextmanager
def watch_live(path: Path, look: Look | None = None) -> Generator[None]:
    """Keep the board at the bottom of the terminal, and everything that is printed above it."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    began, changes = time.monotonic(), Changes()
    with _terminal_behind_a_pipe() as (terminal, follow):
        console = Console(file=terminal, highlight=False, force_terminal=True, width=_size(terminal)[0])
        repeated = Repeats()

        def pass_on(line: str) -> None:
            if not repeated.knows(line):
                console.print(Text.from_ansi(line))

        follow(pass_on)

        def show(status: LiveStatus) -> None:
            width, height = _size(terminal)
            console.width = width
            for kind, label, text in changes.tell(status):
                mark, style = _MARKS.get(kind, ("■", "yellow"))
                said = label if kind == "eval" else f"{label} {kind}"
                console.print(Text.assemble((f"{mark} {said}", style), "  ", text))
            live.update(_board(path.name, status, time.monotonic() - began, width, height), refresh=True)

        live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)
        with live, _look_regularly(path, look or StatusReader().read, show):
            yield
    if repeated.count:
        _write(f"({repeated.count} lines that several arms repeated word for word were shown once.)\n")


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
def _look_regularly(path: Path, look: Look, show: Callable[[LiveStatus], None]) -> Generator[None]:
    """Look now and then, and once more at the end; a look that fails is made again."""
    over = threading.Event()

    def keep_looking() -> None:
        took = 0.0
        while not over.wait(max(_SECONDS_BETWEEN_LOOKS, took * _REST_AFTER_LOOKS)):
            began = time.monotonic()
            with suppress(Exception):  # a file may be half-written; the run must not hear of it
                show(look(path))
            took = time.monotonic() - began

    thread = threading.Thread(target=keep_looking, name="evsys-board", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()  # `show` is never called by two threads at once
        with suppress(Exception):
            show(look(path))


@contextmanager
def _terminal_behind_a_pipe() -> Generator[tuple[Any, Callable[[Callable[[str], None]], None]]]:
    """The terminal as a file, while everything written to stdout and stderr comes out line by line.

    The second value takes the function that gets each line.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    descriptors = [2, 1] if os.isatty(1) else [2]  # results that go to a file or a pipe must still arrive there
    # Descriptors and not `sys.stdout`: libraries in C and other processes write to them without asking Python.
    saved = {descriptor: os.dup(descriptor) for descriptor in descriptors}
    read, write = os.pipe()
    for descriptor in descriptors:
        os.dup2(write, descriptor)
    os.close(write)  # now only those descriptors hold it: the reader comes to its end when they are given back
    reader: threading.Thread | None = None

    def follow(tell: Callable[[str], None]) -> None:
        nonlocal reader

        def pass_on() -> None:
            with open(read, "rb", closefd=False) as lines:
                for line in lines:
                    with suppress(Exception):  # writers would block if no one read any more
                        tell(line.decode("utf-8", "replace").rstrip("\n"))

        reader = threading.Thread(target=pass_on, name="evsys-terminal", daemon=True)
        reader.start()

    # a copy, because what was saved is closed before this file is
    with open(os.dup(saved[2]), "w", encoding="utf-8", errors="replace") as terminal:
        try:
            yield terminal, follow
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, original in saved.items():
                os.dup2(original, descriptor)  # the last writers of this process are gone, so that the reader ends
                os.close(original)
            if reader is not None:
                reader.join(timeout=1.0)  # a process that was left behind may still hold the other end
            with suppress(OSError):
                os.close(read)


def _size(terminal: Any) -> tuple[int, int]:
    try:
        found = os.get_terminal_size(terminal.fileno())
    except OSError:
        return 100, 24
    return found.columns or 100, found.lines or 24


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
