"""What a progress display must be able to do, and which one suits the place the run is started from."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Literal, Protocol

from .state import Snapshot

type Style = Literal["auto", "live", "plain"]


class Display(Protocol):
    """Shows one run on stderr."""

    arrow: str
    """How `from -> to` is drawn here."""

    def start(self, opening: str, snapshot: Snapshot) -> None: ...
    def update(self, snapshot: Snapshot, now: float) -> None: ...
    def event(self, kind: str, label: str, text: str, step: int) -> None: ...
    def end(self, status: str, text: str) -> None: ...
    def stop(self) -> None: ...


def is_live_terminal(environment: Mapping[str, str] | None = None) -> bool:
    """Whether stderr is a terminal that a person watches, that can be redrawn and that knows more than ASCII."""
    environment = os.environ if environment is None else environment
    is_dumb = environment.get("TERM", "dumb") in ("dumb", "unknown")
    is_ci = environment.get("CI", "").lower() not in ("", "0", "false")
    shares_terminal = environment.get("EVSYS_ARM_WORKER")  # with the processes of other arms
    plain = is_dumb or is_ci or shares_terminal or environment.get("NO_COLOR")
    return sys.stderr.isatty() and not plain and sys.stderr.encoding.lower().startswith("utf")
