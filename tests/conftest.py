"""What holds for every test: it has its own project, and nothing it registers, sets or connects to outlives it.

Tests run in any order: `--random-order SEED` shuffles the test files and the tests of each file.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from evsys_sdk.paths import project_root
from evsys_sdk.registry import REGISTRIES

ROOT = Path(__file__).parents[1]
NOT_OF_A_PROJECT = (sys.base_prefix, str(ROOT / "src"), str(ROOT / "tests"))
UNCHECKED = (".git", ".venv", ".hypothesis", ".pytest", ".ruff", "__pycache__", "build", "dist", "node_modules")
SOURCES = (".py", ".md", ".yaml", ".toml", ".ts", ".tsx", ".css")
"""Files that a developer may add to the repository while the tests run."""

# Timings are measured in benchmarks/, never asserted in a test; and a failure must be repeatable. To search elsewhere:
# `pytest --hypothesis-profile random`.
hypothesis.settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.register_profile("random", hypothesis.settings.get_profile("repeatable"), derandomize=False)
hypothesis.settings.load_profile("repeatable")


# A shell that runs the tests in the background lets them ignore Ctrl-C, and everything they start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--random-order", metavar="SEED", help="shuffle test files, and the tests of each file")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle for `--random-order`. The tests of a file stay together, so that its fixtures are made once."""
    seed = config.getoption("--random-order")
    if seed is not None:
        draw = random.Random(seed)
        files = {item.path: draw.random() for item in items}
        items.sort(key=lambda item: (files[item.path], draw.random()))
    _prepare_tinker_tests(items)


def pytest_collection_finish() -> None:
    """Keep the collected tests, which live to the end, out of the garbage collections of a run: each took 0.2 s."""
    gc.collect()
    gc.freeze()


def _prepare_tinker_tests(items: list[pytest.Item]) -> None:
    """Without the packages these tests are skipped; what the tinker package deprecates in itself is its own affair."""
    missing = [name for name in ("tinker", "uvicorn") if find_spec(name) is None]
    for item in items:
        if item.get_closest_marker("tinker") is None:
            continue
        if missing:
            item.add_marker(pytest.mark.skip(reason=f"needs {' and '.join(missing)}: run make test-tinker"))
        for category in ("DeprecationWarning", "ResourceWarning", "pytest.PytestUnraisableExceptionWarning"):
            item.add_marker(pytest.mark.filterwarnings(f"ignore::{category}"))


@pytest.fixture(scope="session", autouse=True)
def _unchanged_repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail if tests write into the repository, or if fixtures of modules and sessions write into a shared folder."""
    before, files = Path.cwd(), _list_written_files()
    shared = tmp_path_factory.mktemp("shared")
    assert project_root(shared) == shared, f"{project_root(shared)} is a project: tests below it share its record"
    os.chdir(shared)
    yield
    os.chdir(before)
    gained = sorted({path for path, _ in _list_written_files() - files})
    assert not gained, f"tests wrote into the repository: {', '.join(gained[:20])}"
    left = sorted(path.name for path in shared.iterdir())
    assert not left, f"a fixture of a module or session has no own folder; it wrote {', '.join(left[:20])}"


def _list_written_files() -> set[tuple[str, int]]:
    """Files of the repository that are no sources; those of its workspace with the time of their last change."""
    found: set[tuple[str, int]] = set()
    for folder, names, files in os.walk(ROOT):
        names[:] = [name for name in names if not name.startswith(UNCHECKED)]
        changes = ".evsys" in folder or folder.startswith(str(ROOT / "outputs"))
        for path in (os.path.join(folder, name) for name in files if not name.endswith(SOURCES)):
            found.add((os.path.relpath(path, ROOT), os.stat(path).st_mtime_ns if changes else 0))
    return found


@pytest.fixture(autouse=True)
def _own_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in the test's own folder, which is the project of this process and of those that it starts."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A copy of the examples, whose configs name files relative to the project."""
    return shutil.copytree(ROOT / "examples", tmp_path / "examples")


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
    monkeypatch.setattr(sys, "path", sys.path[:])
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
