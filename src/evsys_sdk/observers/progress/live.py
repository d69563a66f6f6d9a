"""Progress as a live display on a terminal: a bar that stays at the bottom, and lines that scroll past above it.

    ◆ val  step 50  pass@1 0.4120 (+0.0310)
    run-a ━━━━━━━━━━━━━━━━━━━━━━╺━━━━━━━━━━━━━━━  120/200  60%  0:42  0:28 left
          loss 0.4123 ↓ █▇▅▄▃▂▂▁▁  lr 1.0e-04  12.3k tok/s

Whatever else is written to the terminal meanwhile (log lines, warnings, prints of other libraries) appears above it.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
from typing import IO, TYPE_CHECKING, Any

from .state import Snapshot
from .text import count, duration, number, sparkline

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_REFRESHES_PER_SECOND = 8
_NARROWEST_BAR = 8
_WIDEST_BAR = 48
_LONGEST_LABEL = 24
_CURVE_WIDTH = 20

_terminal = threading.Lock()
"""Held by the display that owns the terminal; only one can be redrawn at a time."""

MARKS = {"eval": ("◆", "cyan"), "checkpoint": ("●", "dim"), "completed": ("✔", "green"), "failed": ("✖", "red")}
"""How moments are marked, and in which colour."""


class LiveDisplay:
    """Owns the bottom lines of the terminal while the run goes on."""

    arrow = "→"

    def __init__(self, label: str) -> None:
        from rich.console import Console

        self._label = label
        self._console = Console(stderr=True, highlight=False)
        self._live: Any = None
        self._owns_terminal = False
        self._snapshot = Snapshot()
        self._began = time.monotonic()
        self._moved_handlers: list[tuple[logging.StreamHandler[Any], IO[str]]] = []

    @classmethod
    def open(cls, label: str) -> LiveDisplay | None:
        """A display that owns the terminal until it is stopped; None while another run of this process does."""
        if not _terminal.acquire(blocking=False):
            return None
        display = cls(label)
        display._owns_terminal = True
        return display

    def start(self, opening: str, snapshot: Snapshot) -> None:
        from rich.live import Live

        self._snapshot = snapshot
        self._began = time.monotonic()
        self._line("▶", "bold cyan", self._label, opening)
        self._live = Live(
            get_renderable=self._render,
            console=self._console,
            refresh_per_second=_REFRESHES_PER_SECOND,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # results that go to a file or a pipe must still arrive there
            redirect_stderr=True,
        )
        stderr = sys.stderr  # rich puts a stream of its own in its place
        self._live.start(refresh=True)
        self._move_log_handlers(stderr)
        atexit.register(self.stop)  # an exit without `close` must not leave the cursor hidden

    def update(self, snapshot: Snapshot, now: float) -> None:
        self._snapshot = snapshot

    def event(self, kind: str, label: str, text: str, step: int) -> None:
        mark, style = MARKS[kind]
        self._line(mark, style, label if kind == "eval" else f"{kind} {label}", f"step {step}  {text}".rstrip())

    def end(self, status: str, text: str) -> None:
        self.stop()
        mark, style = MARKS.get(status, ("■", "yellow"))
        self._line(mark, f"bold {style}", f"{self._label} {status}", text)

    def stop(self) -> None:
        # Taken out first: this may be called again, by `end`, at exit or by both.
        live, self._live = self._live, None
        # First: rich's stream is of no use once the display has stopped.
        for handler, stream in self._moved_handlers:
            handler.setStream(stream)
        self._moved_handlers.clear()
        if live is not None:
            live.stop()
            atexit.unregister(self.stop)
        if self._owns_terminal:
            self._owns_terminal = False
            _terminal.release()

    def _move_log_handlers(self, stderr: IO[str]) -> None:
        """Handlers keep the stream they were made with; while the bar is there they must write above it."""
        loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
        for logger in loggers:
            for handler in getattr(logger, "handlers", ()):
                if getattr(handler, "stream", None) is stderr and hasattr(handler, "setStream"):
                    handler.setStream(sys.stderr)
                    self._moved_handlers.append((handler, stderr))

    def _line(self, mark: str, style: str, label: str, text: str) -> None:
        from rich.text import Text

        self._console.print(Text.assemble((f"{mark} ", style), (label, style), "  ", text), soft_wrap=True)

    def _render(self) -> RenderableType:
        from rich.console import Group

        snapshot, width = self._snapshot, self._console.width
        longest = min(_LONGEST_LABEL, width // 3)
        label = self._label if len(self._label) <= longest else f"{self._label[: longest - 1]}…"
        return Group(self._bar_line(snapshot, label, width), self._metrics_line(snapshot, " " * len(label), width))

    def _bar_line(self, snapshot: Snapshot, name: str, width: int) -> Text:
        from rich.text import Text

        right = self._right_of_bar(snapshot)
        label = Text(f"{name} ", style="bold cyan")
        room = min(_WIDEST_BAR, width - len(label) - len(right) - 1)
        while room < _NARROWEST_BAR and right.plain:  # a narrow terminal: times first, then the numbers
            right = Text(right.plain.rpartition("  ")[0], style="default")
            room = min(_WIDEST_BAR, width - len(label) - len(right) - 1)
        return Text.assemble(label, draw_bar(snapshot.fraction, max(room, 0)), right, no_wrap=True, overflow="crop")

    def _right_of_bar(self, snapshot: Snapshot) -> Text:
        from rich.text import Text

        elapsed = duration(time.monotonic() - self._began)
        left = snapshot.seconds_left
        done = (
            f"{snapshot.done:>{len(str(snapshot.total))}}/{snapshot.total}"
            if snapshot.total
            else f"step {snapshot.done}"
        )
        text = Text(f"  {done}", style="bold")
        if snapshot.fraction is not None:
            text.append(f"  {snapshot.fraction:4.0%}", style="default")
        text.append(f"  {elapsed}", style="dim")
        if left is not None:
            text.append(f"  {duration(left)} left", style="dim")
        return text

    def _metrics_line(self, snapshot: Snapshot, indent: str, width: int) -> Text:
        from rich.text import Text

        text = Text(f"{indent} ", no_wrap=True, overflow="ellipsis")
        if not snapshot.headline:
            return text.append("waiting for the first step", style="dim")
        arrow = {-1: "↓", 0: "→", 1: "↑"}[snapshot.trend]
        style = "green" if snapshot.is_improving else "yellow" if snapshot.trend else "dim"
        value = number(snapshot.value)
        text.append(f"{snapshot.headline} ")
        text.append(value, style="bold" if value not in ("nan", "inf", "-inf") else "bold red")
        text.append(f" {arrow} ", style=style)
        text.append(sparkline(snapshot.curve, min(_CURVE_WIDTH, max(0, width - 60))), style="cyan")
        for name, shown in snapshot.others:
            text.append(f"  {name} {number(shown)}")
        if snapshot.learning_rate is not None:
            text.append(f"  lr {number(snapshot.learning_rate)}", style="dim")
        if snapshot.tokens_per_second is not None:
            text.append(f"  {count(snapshot.tokens_per_second)} tok/s", style="dim")
        return text


def draw_bar(fraction: float | None, width: int) -> Text:
    """A bar of this width; a dim one where nobody knows how far it is."""
    from rich.text import Text

    if fraction is None:
        return Text("━" * width, style="grey37")
    halves = round(fraction * width * 2)
    full, half = divmod(halves, 2)
    done = "━" * full + "╸" * half
    return Text.assemble((done, "magenta" if fraction < 1 else "green"), ("━" * (width - len(done)), "grey23"))
