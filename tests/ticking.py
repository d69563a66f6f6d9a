"""A clock that advances when it is read, for tests of deadlines: their outcome does not depend on the machine."""

from __future__ import annotations

import pytest


class TickingClock:
    """Stands in for the module `time` in the modules that measure a budget."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: str, tick_s: float = 0.005) -> None:
        self.now, self.tick_s = 1e9, tick_s
        for module in modules:
            monkeypatch.setattr(f"evsys_sdk.{module}.time", self)

    def time(self) -> float:
        self.now += self.tick_s
        return self.now

    perf_counter = monotonic = time
