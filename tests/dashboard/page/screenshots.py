"""Takes the pictures of the documentation: every screen of the page, light and dark, of real experiments on `mock`.

    make page && python -m tests.dashboard.page.screenshots docs/images/dashboard

It is run by hand when the page has changed (`make screenshots`); it needs what `make test-dashboard` needs. In a folder
`dashboard` only the pictures that are there are replaced: those of the documentation. Elsewhere all are made.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack, chdir
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from evsys_sdk.dashboard.local.records import LocalRecords
from evsys_sdk.dashboard.server.app import local_app
from evsys_sdk.dashboard.server.auth import LocalGate
from evsys_sdk.loop.page import ProjectLoops

from ..serving import running_app
from .conftest import Site, Tab, find_chromium
from .project import make_decided, make_looped, make_project
from .states import make_states

SCREENS = {
    "experiments": "/",
    "compare": "/compare?a={sweep}&b={too-hot}",
    "data": "/data",
    "experiment": "/e/{sweep}",
    "curves": "/e/{sweep}?tab=curves",
    "items": "/e/{sweep}?tab=items",
    "rollouts": "/e/{rl}?tab=rollouts",
    "retention": "/e/{continual}?tab=retention",
    "cost": "/e/{sweep}?tab=cost",
    "lineage": "/e/{sweep}?tab=lineage",
    "record": "/e/{sweep}?tab=record",
    "failed": "/e/{too-hot}",
    "arm": "/e/{sweep}/a/s__max_steps20__seed42",
}
OF_A_LOOP = {"loops": "/loops", "looks": "/e/{decided}"}
OF_A_CAMPAIGN = {"needs-you": "/", "campaign": "/campaign/night"}
NARROW = ("experiments", "experiment", "rollouts", "needs-you", "campaign")
COLOURS = 96  # enough for a page of flat colours; keeps the repository small


def main(target: Path) -> None:
    target = target.resolve()
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright, ExitStack() as stack:
        router, support = Path(folder) / "router", Path(folder) / "support"
        router.mkdir()
        support.mkdir()
        ids = make_project(router)
        make_looped(support)
        ids["decided"] = make_decided(support)
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=arguments)
        night = stack.enter_context(make_states(Path(folder) / "night"))
        for root, screens in ((router, SCREENS), (support, OF_A_LOOP), (Path(folder) / "night", OF_A_CAMPAIGN)):
            gate, source = LocalGate(), LocalRecords([root / "outputs"], root)
            with chdir(root), _serve(source, gate, root.name) as server:
                addresses = {name: one.format(**night, **ids) for name, one in screens.items()}
                show(browser, Site(server.url, gate.token), addresses, target)
        browser.close()


def _serve(source: LocalRecords, gate: LocalGate, name: str) -> Any:
    return running_app(lambda hosts: local_app(source, gate, hosts, name=name, pages=ProjectLoops()))


def show(browser: Any, site: Site, screens: dict[str, str], target: Path) -> None:
    """Every screen in both schemes; those that matter on a telephone also as it shows them."""
    names = {file.stem for file in target.glob("*.png")} if target.name == "dashboard" else set[str]()
    for scheme in ("light", "dark"):
        for suffix, width, height in ((scheme, 1440, 900), (f"narrow-{scheme}", 390, 780)):
            view = {"width": width, "height": height}
            context = browser.new_context(viewport=view, color_scheme=scheme, reduced_motion="reduce", locale="en-GB")
            tab = Tab(context, site)
            tab.sign_in()
            for name in screens if width > 1000 else screens.keys() & NARROW:
                if names and f"{name}-{suffix}" not in names:
                    continue
                tab.open(screens[name]).wait_for_timeout(1500)
                take(tab, target / f"{name}-{suffix}.png")
            context.close()


def take(tab: Tab, file: Path) -> None:
    """Take a picture, with few colours so that it is small."""
    tab.page.screenshot(path=file)
    with Image.open(file) as picture:
        # This method keeps colours of few points, as those of the verdicts are; the usual one mixes them with others.
        few = Image.Quantize.MAXCOVERAGE
        small = picture.convert("RGB").quantize(COLOURS, method=few, dither=Image.Dither.NONE)
    small.save(file, optimize=True)
    print(f"{file}  {file.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
