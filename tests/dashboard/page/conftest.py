from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.dashboard.export import PAGE

NEEDED = ("fastapi", "uvicorn", "playwright", "axe_playwright_python")


def find_chromium() -> str | None:
    """The browser: EVSYS_CHROMIUM, else what the system has."""
    named = os.environ.get("EVSYS_CHROMIUM")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}: run make test-dashboard")
    program = find_chromium()
    if program is None:
        pytest.skip("needs Chromium: install it (Debian: apt-get install chromium), or name it in EVSYS_CHROMIUM")
    if not (PAGE / "index.html").is_file():
        pytest.skip("the page is not built: run make page")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        launched = playwright.chromium.launch(executable_path=program, args=arguments, timeout=60_000)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def project(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A project with real experiments: its folder, and their ids by name."""
    from .project import make_project

    root = tmp_path_factory.mktemp("project")
    return root, make_project(root)


@pytest.fixture(scope="session")
def ids(project: tuple[Path, dict[str, str]]) -> dict[str, str]:
    return project[1]


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[[Path], Site]]:
    """Serves the record below a folder; the same folder once."""
    from ..serving import running_app

    running: dict[Path, Site] = {}

    def start(root: Path) -> Site:
        from evsys_sdk.dashboard.local.records import LocalRecords
        from evsys_sdk.dashboard.local.scripts import ProjectRecords
        from evsys_sdk.dashboard.server.app import local_app
        from evsys_sdk.dashboard.server.auth import LocalGate
        from evsys_sdk.loop.page import ProjectLoops

        if root not in running:
            gate, records = LocalGate(), LocalRecords([root / "outputs"], root)
            source: Any = ProjectRecords(records, root / ".evsys" / "dashboard")
            server = running_app(lambda hosts: local_app(source, gate, hosts, name="demo", pages=ProjectLoops()))
            stack.callback(source.close)
            running[root] = Site(stack.enter_context(server).url, gate.token)
        return running[root]

    with ExitStack() as stack:
        yield start


class Site:
    """Where a project is shown."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token = url, token


class Tab:
    """A signed-in page of the browser that remembers every complaint of the console."""

    def __init__(self, context: Any, site: Site) -> None:
        self.context, self.site = context, site
        self.complaints: list[str] = []
        self.page = context.new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("console", self._listen)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _listen(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def sign_in(self) -> None:
        self.page.goto(f"{self.site.url}/#token={self.site.token}")
        self.page.get_by_role("heading", name="Experiments").wait_for()

    def open(self, address: str) -> Any:
        """Go to an address of the page and wait until nothing is on its way."""
        self.page.goto(f"{self.site.url}/#{address}")
        self.page.locator("main").wait_for()
        self.settle()
        return self.page

    def settle(self) -> None:
        """Wait until nothing that is shown is on its way."""
        from playwright.sync_api import expect

        expect(self.page.locator(".bones")).to_have_count(0, timeout=20_000)


@pytest.fixture
def open_tab(browser: Any, serve: Callable[[Path], Site]) -> Iterator[Callable[..., Tab]]:
    tabs: list[Tab] = []

    def make(root: Path, **options: Any) -> Tab:
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}, "locale": "en-GB"} | options))
        tab = Tab(context, serve(root))
        tab.sign_in()
        tabs.append(tab)
        return tab

    yield make
    for tab in tabs:
        tab.context.close()
        assert tab.complaints == []


@pytest.fixture
def tab(open_tab: Callable[..., Tab], project: tuple[Path, dict[str, str]]) -> Tab:
    return open_tab(project[0])
