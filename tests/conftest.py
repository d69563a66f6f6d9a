"""What holds for every test: nothing registered, set or connected to outlives it or depends on the machine."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from evsys_sdk.registry import REGISTRIES

ROOT = Path(__file__).parents[1]
NOT_OF_A_PROJECT = (sys.base_prefix, str(ROOT / "src"), str(ROOT / "tests"))

# Timings are measured in benchmarks/, never asserted in a test; and a failure in CI must be repeatable.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


# A shell that runs the tests in the background lets them ignore Ctrl-C, and everything they start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings and credentials of the person who runs the tests must not change their outcome."""
    for name in os.environ:
        if name.startswith("EVSYS_") or name.endswith("_API_KEY"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _own_registries() -> Iterator[None]:
    """Forget after each test what it registered."""
    with ExitStack() as stack:
        for registry in REGISTRIES.values():
            stack.enter_context(registry.isolated())
        yield


@pytest.fixture(autouse=True)
def _own_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What one test imports as code of a project is imported, and registered, again by the next that needs it."""
    monkeypatch.setattr("evsys_sdk.settings._named", [])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and not file.startswith(NOT_OF_A_PROJECT) and "site-packages" not in file:
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Undo what a command line that ran inside the test did to the logger, or `caplog` would see nothing after it."""
    logger = logging.getLogger("evsys_sdk")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse connections to other machines, so that no test passes or fails by the weather."""

    def guarded(connect: Callable[..., Any]) -> Callable[..., Any]:
        def only_here(self: socket.socket, address: Any) -> Any:
            internet = self.family in (socket.AF_INET, socket.AF_INET6) and self.type == socket.SOCK_STREAM
            if internet and address[0] not in ("localhost", "127.0.0.1", "::1"):
                pytest.fail(f"the test tried to connect to {address[0]}:{address[1]}; tests use no network")
            return connect(self, address)

        return only_here

    monkeypatch.setattr(socket.socket, "connect", guarded(socket.socket.connect))
    monkeypatch.setattr(socket.socket, "connect_ex", guarded(socket.socket.connect_ex))
