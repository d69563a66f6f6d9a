"""Takes the pictures of the documentation: every screen of the page, light and dark, of real experiments on `mock`.

    make page && python -m tests.dashboard.page.screenshots docs/images/dashboard

It is run by hand when the page has changed (`make screenshots`); what it needs is what `make test-dashboard` needs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from evsys_sdk.dashboard.local import LocalRecords
from evsys_sdk.dashboard.server.app import local_app
from evsys_sdk.dashboard.server.auth import LocalGate

from ..serving import running_app
from .conftest import Site, Tab, find_chromium
from .project import make_project

SCREENS = {
    "experiments": "/",
    "campaign": "/campaign",
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
NARROW = ("experiments", "experiment", "rollouts")
COLOURS = 64  # enough for a page of flat colours; keeps the repository small


def main(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        root = Path(folder) / "router"
        root.mkdir()
        ids = make_project(root)
        gate, source = LocalGate(), LocalRecords([root / "outputs"], root)
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=arguments)
        with running_app(lambda hosts: local_app(source, gate, hosts, name="router")) as server:
            for scheme in ("light", "dark"):
                for suffix, width, height in ((scheme, 1280, 800), (f"narrow-{scheme}", 390, 780)):
                    view = {"width": width, "height": height}
                    context = browser.new_context(
                        viewport=view, color_scheme=scheme, reduced_motion="reduce", locale="en-GB"
                    )
                    tab = Tab(context, Site(server.url, gate.token))
                    tab.sign_in()
                    for name in SCREENS if width > 1000 else NARROW:
                        tab.open(SCREENS[name].format(**ids)).wait_for_timeout(400)
                        take(tab, target / f"{name}-{suffix}.png")
                    context.close()
        browser.close()


def take(tab: Tab, file: Path) -> None:
    tab.page.screenshot(path=file)
    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(file, optimize=True)
    print(f"{file}  {file.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
