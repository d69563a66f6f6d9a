"""How fast the dashboard's page answers on a large record, in Chromium.

python benchmarks/page.py --experiments 10000 --arms 1000 --rollouts 100000

Aims: the first useful paint within 500 ms, an interaction within 200 ms, no frame over 50 ms while scrolling.
Needs the page (make page), Chromium, and what constraints/dashboard.in names.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import machine

sys.path.insert(0, str(Path(__file__).parents[1]))

BEGAN = 1_760_000_000.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=10_000)
    parser.add_argument("--arms", type=int, default=1_000)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(machine())
    print(f"{options.experiments} experiments, {options.arms} arms in one, {options.rollouts} rollouts in it")
    with tempfile.TemporaryDirectory() as folder:
        write_record(Path(folder), options.experiments, options.arms, options.rollouts)
        with Dashboard(Path(folder)) as dashboard:
            measure_page(dashboard, options.repeats)


def write_record(root: Path, experiments: int, arms: int, rollouts: int) -> None:
    from tests.history.recorded import write_experiment

    began = time.perf_counter()
    (root / ".evsys").mkdir()
    for at in range(experiments - 1):
        runs = {"base": 0.4, "changed": (at % 100) / 100}
        write_experiment(root / "outputs", f"e{at:05}", started=BEGAN + at, seeds=(42,), runs=runs)
    runs = {f"run{at:04}": at / arms for at in range(arms)}
    wide = write_experiment(root / "outputs", "wide", started=BEGAN + experiments, seeds=(42,), runs=runs)
    place = wide / next(path.name for path in wide.iterdir() if path.is_dir()) / "logs" / "training"
    place.mkdir(parents=True)
    with (place / "rollouts.jsonl").open("w", encoding="utf-8") as out:
        for at in range(rollouts):
            line = {"task_id": f"t{at:06}", "sample": 0, "step": at // 1000, "reward": (at % 11) / 10, "status": "ok"}
            out.write(json.dumps(line | {"text": f"an answer to task {at}, of some length"}) + "\n")
    print(f"written in {time.perf_counter() - began:.0f} s")


class Dashboard:
    """`evsys dashboard` over a folder, as a process of its own."""

    def __init__(self, root: Path) -> None:
        command = [sys.executable, "-m", "evsys_sdk", "dashboard", "--port", "0", "--json"]
        self.process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        told = json.loads(self.process.stdout.readline())
        self.url, self.open = told["url"], told["open"]

    def __enter__(self) -> "Dashboard":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()


def measure_page(dashboard: Dashboard, repeats: int) -> None:
    from playwright.sync_api import sync_playwright

    program = os.environ.get("EVSYS_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(180_000)
        report("first visit: sign in and index everything", [timed(lambda: first_rows(page, dashboard.open))])
        address = f"{dashboard.url}/?again=1"
        report("list: reload until rows are shown", [timed(lambda: first_rows(page, address)) for _ in range(repeats)])
        measure_list(page, repeats)
        measure_experiment(page, repeats)
        browser.close()


def first_rows(page: Any, address: str) -> None:
    page.goto(address)
    page.locator(".experiments .line:not(.head)").first.wait_for()


def measure_list(page: Any, repeats: int) -> None:
    report("list: frames while scrolling", scroll(page, ".virtual"), "longest of")
    rows = page.locator(".experiments .line:not(.head)")

    def search(at: int) -> None:
        name = f"e{at * 7 + 3:05}"
        page.get_by_role("searchbox").fill(name)
        rows.nth(1).wait_for(state="detached")
        rows.filter(has_text=name).wait_for()

    report("list: search until the one row is shown", [timed(search, at) for at in range(repeats)])
    page.get_by_role("searchbox").fill("")
    report("list: jump to the end until rows are shown", [timed(jump, page, ".virtual") for _ in range(repeats)])


def measure_experiment(page: Any, repeats: int) -> None:
    page.get_by_role("searchbox").fill("wide")
    page.locator(".experiments .line:not(.head)", has_text="wide").first.wait_for()
    page.get_by_role("searchbox").press("Escape")

    def open_experiment() -> None:
        page.locator(".experiments a", has_text="wide").first.click()
        page.locator(".arms tbody tr").nth(5).wait_for()

    report("experiment: open until the arms are shown", [timed(open_experiment)])
    report("arms: frames while scrolling", scroll(page, ".arms"), "longest of")

    def sort(_: int) -> None:
        before = page.locator(".arms tbody tr").nth(1).inner_text()
        page.get_by_role("button", name="score").click()
        while page.locator(".arms tbody tr").nth(1).inner_text() == before:
            pass

    page.locator(".arms").evaluate("box => box.scrollTo(0, 0)")
    report("arms: sort by another column", [timed(sort, at) for at in range(repeats)])

    def open_section(name: str, shown: str) -> None:
        page.get_by_role("navigation", name="sections").get_by_role("link", name=name).click()
        page.locator(shown).first.wait_for()

    report("rollouts: first visit, indexes the file", [timed(open_section, "Rollouts", ".rollouts .line")])
    report("rollouts: frames while scrolling", scroll(page, ".virtual"), "longest of")
    report("rollouts: jump anywhere until rows are shown", [timed(jump, page, ".virtual", at) for at in range(repeats)])

    def choose(at: int) -> None:
        row = page.locator(".rollouts .line").nth(8 + at)
        task = row.locator("button").inner_text().split(" ")[0]
        row.click()
        page.locator(".reader h2", has_text=task).wait_for()

    report("rollouts: open another", [timed(choose, at) for at in range(repeats)])

    def narrow(at: int) -> None:
        total = page.locator(".filters .quiet").last.inner_text()
        page.locator(".bars button").nth(1 + at % 8).click()
        while page.locator(".filters .quiet").last.inner_text() == total:
            pass

    report("rollouts: narrow by reward", [timed(narrow, at) for at in range(repeats)])
    for name, shown in (("Curves", ".figure, .empty"), ("Cost", ".figure"), ("Arms", ".arms tbody tr")):
        report(f"experiment: open {name.lower()}", [timed(open_section, name, shown)])


def jump(page: Any, box: str, share: int = 0) -> None:
    """Scroll to the end, or to some place before it, and wait for what is there."""
    page.locator(box).evaluate("(box, at) => box.scrollTo(0, box.scrollHeight * (1 - 0.13 * at))", share)
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.locator(f"{box} .gap").first.wait_for(state="detached")


def scroll(page: Any, box: str) -> list[float]:
    """The longest waits for a frame, in milliseconds, over two seconds of scrolling."""
    script = """box => new Promise(done => {
        const frames = []; let last = performance.now(); const began = last;
        const step = now => {
            frames.push(now - last); last = now; box.scrollBy(0, 60);
            if (now - began < 2000) requestAnimationFrame(step);
            else done(frames.sort((a, b) => b - a).slice(0, 5));
        };
        requestAnimationFrame(step);
    })"""
    return page.locator(box).first.evaluate(script)


def timed(work: Callable[..., object], *arguments: object) -> float:
    began = time.perf_counter()
    work(*arguments)
    return (time.perf_counter() - began) * 1000


def report(what: str, times: list[float], kind: str = "median of") -> None:
    value = max(times) if kind.startswith("longest") else statistics.median(times)
    print(f"{what:50} {value:8.0f} ms   {kind} {len(times)}: {' '.join(f'{one:.0f}' for one in times)}")


if __name__ == "__main__":
    main()
