"""Progress as a live display on a terminal: rich's progress bar at the bottom, lines scrolling past above it.

    ◆ val  step 50  pass@1 0.4120 (+0.0310)
    run-a ━━━━━━━━━━━━━━━━━━━━━━╺━━━━━━━━━━━━━━━  120/200  0:42  0:28 left  loss 0.4123  lr 1.0e-04  12.3k tok/s

Other output to the terminal (log lines, warnings, prints of libraries) appears above it.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
from typing import IO, Any

from .plain import metrics_text
from .state import ProgressSnapshot
from .text import duration

_terminal = threading.Lock()
"""Held by the display that owns the terminal; only one can be redrawn at a time."""

MARKS = {"eval": ("◆", "cyan"), "checkpoint": ("●", "dim"), "completed": ("✔", "green"), "failed": ("✖", "red")}
"""Mark and colour of each kind of event."""


class LiveDisplay:
    """Owns the bottom line of the terminal during the run."""

    arrow = "→"

    def __init__(self, label: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._label = label
        self._console = Console(stderr=True, highlight=False)
        columns = (TextColumn("[bold cyan]{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
        self._progress = Progress(
            *columns,
            console=self._console,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # results that go to a file or a pipe must still arrive there
        )
        self._task: Any = None
        self._began = time.monotonic()
        self._moved_handlers: list[tuple[logging.StreamHandler[Any], IO[str]]] = []

    @classmethod
    def open(cls, label: str) -> LiveDisplay | None:
        """A display that owns the terminal until it is stopped; None while another run of this process does."""
        return cls(label) if _terminal.acquire(blocking=False) else None

    def start(self, opening: str, snapshot: ProgressSnapshot) -> None:
        self._line("▶", "bold cyan", self._label, opening)
        self._task = self._progress.add_task(self._label, total=snapshot.total, text="waiting for the first step")
        stderr = sys.stderr  # rich replaces it
        self._progress.start()
        # Handlers keep the stream they were made with; while the bar is there they must write above it.
        for logger in (logging.getLogger(), *logging.Logger.manager.loggerDict.values()):
            for handler in getattr(logger, "handlers", ()):
                if getattr(handler, "stream", None) is stderr and hasattr(handler, "setStream"):
                    handler.setStream(sys.stderr)
                    self._moved_handlers.append((handler, stderr))
        atexit.register(self.stop)  # an exit without `close` must not leave the cursor hidden

    def update(self, snapshot: ProgressSnapshot, now: float) -> None:
        left = snapshot.seconds_left
        parts = [
            f"{snapshot.done}/{snapshot.total}" if snapshot.total else f"step {snapshot.done}",
            duration(time.monotonic() - self._began),
            "" if left is None else f"{duration(left)} left",
            metrics_text(snapshot),
        ]
        text = "  ".join(part for part in parts if part)
        self._progress.update(self._task, completed=snapshot.done, text=text)

    def event(self, kind: str, label: str, text: str, step: int) -> None:
        mark, style = MARKS[kind]
        self._line(mark, style, label if kind == "eval" else f"{kind} {label}", f"step {step}  {text}".rstrip())

    def end(self, status: str, text: str) -> None:
        self.stop()
        mark, style = MARKS.get(status, ("■", "yellow"))
        self._line(mark, f"bold {style}", f"{self._label} {status}", text)

    def stop(self) -> None:
        """Release the terminal; further calls do nothing."""
        if self._task is None:
            return
        self._task = None
        for handler, stream in self._moved_handlers:  # first: rich's stream ends with the display
            handler.setStream(stream)
        self._moved_handlers.clear()
        self._progress.stop()
        atexit.unregister(self.stop)
        _terminal.release()

    def _line(self, mark: str, style: str, label: str, text: str) -> None:
        from rich.text import Text

        self._console.print(Text.assemble((f"{mark} ", style), (label, style), "  ", text), soft_wrap=True)
