"""How fast the dashboard's page answers on a large record, in Chromium.

python benchmarks/page.py --experiments 10000 --arms 1000 --rollouts 100000

Aims: the first useful paint within 500 ms, an interaction within 200 ms, no frame over 50 ms while scrolling. An
interaction is timed in the page: from the event that a person causes to the frame in which what it asks for is there.
Takes a minute or two, and the first time as long again to write the record, which is kept. Needs the page (make page),
Chromium, and what constraints/dashboard.in names.
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
    parser.add_argument("--folder", type=Path, help="where the record is kept; by default a temporary folder")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sizes = options.experiments, options.arms, options.rollouts
    folder = options.folder or Path(tempfile.gettempdir(), f"evsys-page-{'-'.join(map(str, sizes))}")
    print(machine())
    print(f"load of the machine before this: {os.getloadavg()[0]:.1f}")
    print("{} experiments, {} arms in one, {} rollouts in it".format(*sizes))
    if not (folder / ".evsys").is_dir():
        write_record(folder, *sizes)
    forget_index(folder)
    with Dashboard(folder) as dashboard:
        measure_page(dashboard, options.repeats)
    print(f"{folder} is kept, because so many files take minutes to remove", file=sys.stderr)


def forget_index(root: Path) -> None:
    from evsys_sdk.record.layout import HISTORY_CACHE

    (root / "outputs" / HISTORY_CACHE).unlink(missing_ok=True)


def write_record(root: Path, experiments: int, arms: int, rollouts: int) -> None:
    from tests.history.recorded import write_experiment

    if root.exists() and any(root.iterdir()):
        sys.exit(f"{root}: there is something else, or half a record, in it. Remove it, or name another --folder.")
    began = time.perf_counter()
    for at in range(experiments - 1):
        runs = {"base": 0.4, "changed": (at % 100) / 100}
        write_experiment(root / "outputs", f"e{at:05}", started=BEGAN + at, seeds=(42,), runs=runs)
    runs = {f"run{at:04}": at / arms for at in range(arms)}
    wide = write_experiment(root / "outputs", "wide", started=BEGAN + experiments, seeds=(42,), runs=runs)
    place = wide / next(path.name for path in wide.iterdir() if path.is_dir()) / "logs" / "training"
    place.mkdir(parents=True)
    with (place / "rollouts.jsonl").open("w", encoding="utf-8") as out:
        for at in range(rollouts):
            reward = int((at * 7919 % 10_007 / 10_007) ** 2 * 11) / 10  # no two rewards are equally frequent
            line = {"task_id": f"t{at:06}", "sample": 0, "step": at // 1000, "reward": reward, "status": "ok"}
            out.write(json.dumps(line | {"text": f"an answer to task {at}, of some length"}) + "\n")
    (root / ".evsys").mkdir()
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


NOTE_EVENTS = """for (const kind of ["pointerdown", "keydown", "input"]) {
    addEventListener(kind, event => { window.began ??= event.timeStamp; }, {capture: true});
}"""
SHOWN = "selector => document.querySelector(selector)"
ROWS = ".experiments .line:not(.head)"


def measure_page(dashboard: Dashboard, repeats: int) -> None:
    from playwright.sync_api import sync_playwright

    program = os.environ.get("EVSYS_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(60_000)
        page.add_init_script(NOTE_EVENTS)
        report("first visit: sign in until rows are shown", [visit(page, dashboard.open)])
        report("first visit: until all are indexed", [finish_reading(page)])
        address = f"{dashboard.url}/?again=1"
        report("list: reload until rows are shown", [visit(page, address) for _ in range(repeats)])
        measure_list(page, repeats)
        measure_experiment(page, repeats)
        measure_rollouts(page, repeats)
        for name, shown in (("Curves", ".figure, .empty"), ("Cost", ".figure"), ("Arms", ".arms tbody tr")):
            report(f"experiment: open {name.lower()}", [open_section(page, name, shown)])
        browser.close()


def visit(page: Any, address: str) -> float:
    """Open an address; from the beginning of the navigation until there are rows."""
    page.goto(address, wait_until="commit")
    return page.wait_for_function(f"selector => ({SHOWN})(selector) && performance.now()", arg=ROWS).json_value()


def finish_reading(page: Any) -> float:
    shown = "() => !document.querySelector('progress') && performance.now()"
    return page.wait_for_function(shown, timeout=300_000).json_value()


def interact(page: Any, act: Callable[[], object], shown: str, argument: object = None) -> float:
    """Milliseconds from the event that a person causes to the frame in which what it asks for is shown."""
    page.evaluate("window.began = undefined")
    act()
    done = f"argument => ({shown})(argument) && performance.now() - window.began"
    return page.wait_for_function(done, arg=argument).json_value()


def measure_list(page: Any, repeats: int) -> None:
    report("list: frames while scrolling", scroll(page, ".virtual"), "longest of")
    box = page.get_by_role("searchbox")

    def search(at: int) -> float:
        name = f"e{at * 7 + 3:05}"
        shown = f"name => [...document.querySelectorAll('{ROWS}')].map(row => row.innerText.includes(name)) == 'true'"
        return interact(page, lambda: box.fill(name), shown, name)

    report("list: search until the one row is shown", [search(at) for at in range(repeats)])
    interact(page, lambda: box.fill(""), f"() => document.querySelectorAll('{ROWS}').length > 5")
    report("list: jump anywhere until rows are shown", [jump(page, at / repeats) for at in range(1, repeats + 1)])


def measure_experiment(page: Any, repeats: int) -> None:
    page.get_by_role("searchbox").fill("wide")
    page.locator(ROWS, has_text="wide").first.wait_for()
    page.get_by_role("searchbox").press("Escape")
    link = page.locator(".experiments a", has_text="wide").first
    several = "() => document.querySelectorAll('.arms tbody tr').length > 5"
    first = interact(page, link.click, several)
    report("experiment: open until the arms are shown, first", [first])
    again: list[float] = []
    for _ in range(repeats):
        page.go_back()
        page.locator(ROWS, has_text="wide").first.wait_for()
        again.append(interact(page, link.click, several))
    report("experiment: open until the arms are shown, again", again)
    report("arms: frames while scrolling", scroll(page, ".arms"), "longest of")
    page.locator(".arms").evaluate("box => box.scrollTo(0, 0)")
    second = "document.querySelectorAll('.arms tbody tr')[1].innerText"

    def sort(_: int) -> float:
        before = page.evaluate(second)
        return interact(page, page.get_by_role("button", name="score").click, f"before => {second} !== before", before)

    report("arms: sort by another column", [sort(at) for at in range(repeats)])


def open_section(page: Any, name: str, shown: str) -> float:
    link = page.get_by_role("navigation", name="sections").get_by_role("link", name=name)
    return interact(page, link.click, SHOWN, shown)


def measure_rollouts(page: Any, repeats: int) -> None:
    report("rollouts: first visit, indexes the file", [open_section(page, "Rollouts", ".rollouts .line")])
    report("rollouts: frames while scrolling", scroll(page, ".virtual"), "longest of")
    report("rollouts: jump anywhere until rows are shown", [jump(page, 1 - at / repeats) for at in range(repeats)])

    def choose(at: int) -> float:
        row = page.locator(".rollouts .line").nth(8 + at)
        task = row.locator("button").inner_text().split(" ")[0]
        shown = "task => document.querySelector('.reader h2').innerText.includes(task)"
        return interact(page, row.click, shown, task)

    report("rollouts: open another", [choose(at) for at in range(repeats)])
    total = "[...document.querySelectorAll('.filters .quiet')].at(-1).innerText"

    def narrow(at: int) -> float:
        before = page.evaluate(total)
        bar = page.locator(".bars button").nth(1 + at % 8)
        return interact(page, bar.click, f"before => {total} !== before", before)

    report("rollouts: narrow by reward", [narrow(at) for at in range(repeats)])

    def search(at: int) -> float:
        words = f"task {at + 1}{at}"
        shown = "words => [...document.querySelectorAll('.rollouts .line')].every(row => row.innerText.includes(words))"
        return interact(page, lambda: page.get_by_role("searchbox").fill(words), shown, words)

    page.get_by_role("button", name="clear").click()
    report("rollouts: search", [search(at) for at in range(repeats)])


def jump(page: Any, share: float) -> float:
    """Scroll a list to some place and wait for the rows that are there."""
    place = """share => { const box = document.querySelector('.virtual'); window.began = performance.now();
        box.scrollTo(0, box.scrollHeight * share - 500); }"""
    shown = """() => { const box = document.querySelector('.virtual').getBoundingClientRect();
        return document.elementFromPoint(box.x + 60, box.y + box.height / 2)?.closest('.line:not(.head)'); }"""
    return interact(page, lambda: page.evaluate(place, share), shown)


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


def report(what: str, times: list[float], kind: str = "median of") -> None:
    value = max(times) if kind.startswith("longest") else statistics.median(times)
    print(f"{what:50} {value:8.0f} ms   {kind} {len(times)}: {' '.join(f'{one:.0f}' for one in times)}")


if __name__ == "__main__":
    main()
