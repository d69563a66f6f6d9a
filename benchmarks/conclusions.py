"""How often a verdict is wrong, and how often an effect is found, in worlds whose truth is known.

    python benchmarks/conclusions.py                      the main grid and every other factor, 2,000 worlds a cell
    python benchmarks/conclusions.py --worlds 300 --cells erratic
    python benchmarks/conclusions.py --full               the whole product of the factors
    python benchmarks/conclusions.py --processes 16 --log grid.jsonl      goes on where it was broken off
    python benchmarks/conclusions.py --log grid.jsonl --write-results     runs nothing; puts the log into RESULTS.md

The worlds are those of `conclusion_worlds.py`, and new every time: the seed comes from the operating system and is
printed. No cell may exceed 3.5 % false `supported`. Worlds are counted in parts that processes share; a log keeps the
parts, so that a run which is killed loses one part a process, and one that asks for more worlds adds to them. Every
line names the commit that last changed what conclusions are drawn by, so that lines of different ages are told apart;
only parts of one commit are added up.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import re
import secrets
import signal
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.metadata import version
from pathlib import Path

import numpy as np
from conclusion_worlds import Cell, Tally, all_cells, before_effect, measure_cell, with_effect
from measure import machine

MOST_FALSE = 3.5
_ROOT = Path(__file__).resolve().parent.parent
_CODE = [f"src/evsys_sdk/experiment/{room}" for room in ("statistics", "conclusion", "hypothesis.py")]
_LINE = re.compile(r"(?P<cell>.+?) +(?:false|found) +[0-9.]+ \(.*  at [0-9a-z+]+")
_ABOUT = "How often a verdict is wrong, and how often an effect is found, in worlds whose truth is known."
_PART = 250
"""Worlds that are counted at once."""

type Parts = dict[int, Tally]
"""What was seen, by the number of the first world."""


def report(cell: Cell, tally: Tally, code: str) -> str:
    """What was found in a cell, in one line, with the code that found it."""
    share = 100 * (tally.supported if cell.asks == "false" else tally.right) / tally.worlds
    error = 100 * np.sqrt(share / 100 * (1 - share / 100) / tally.worlds)
    coverage = 100 * tally.covered / tally.worlds
    aim, fine = "", True
    if cell.asks == "false":
        fine, aim = share <= MOST_FALSE, f"at most {MOST_FALSE}"
    elif cell.asks == "printed":
        fine, aim = 78 <= share <= 85, "78 to 85"
    elif cell.at_least is not None:
        fine, aim = share >= cell.at_least, f"at least {cell.at_least:g}"
    detectable = f"{np.median(tally.detectable):.3f}" if tally.detectable else "-"
    what = {"false": "false", "power": "found", "printed": "found"}[cell.asks]
    seeds = f"seeds {np.mean(tally.seeds):4.1f} of 10  " if tally.seeds else ""
    missed = "" if fine else "  MISSED"
    return (
        f"{cell.name:<52} {what} {share:5.1f} ({error:.1f}) of {tally.worlds:5d}  coverage {coverage:5.1f}  "
        f"sees {detectable:>6}  {seeds}at {code:<8} {aim}{missed}"
    ).rstrip()


def code_version() -> str:
    """The commit that last changed what conclusions are drawn by; with a `+` where that has been changed since."""

    def git(*words: str) -> str:
        command = ["git", *words, "--", *_CODE]
        return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False).stdout.strip()

    return (git("log", "-1", "--format=%h") or "unknown") + ("+" if git("status", "--porcelain") else "")


class Log:
    """The parts that were counted: cell and commit -> parts. Kept in a file, a line each, where there is one."""

    def __init__(self, file: Path | None) -> None:
        self.file, self.parts = file, defaultdict[tuple[str, str], Parts](dict)
        for line in file.read_text("utf-8").splitlines() if file is not None and file.is_file() else []:
            try:
                told = json.loads(line)
            except ValueError:  # broken off while it was written
                continue
            self.parts[told["cell"], told["code"]][told["start"]] = Tally(**told["tally"])

    def add(self, cell: str, code: str, start: int, tally: Tally) -> None:
        self.parts[cell, code][start] = tally
        if self.file is not None:
            told = {"cell": cell, "code": code, "start": start, "tally": vars(tally)}
            with self.file.open("a", encoding="utf-8") as file:
                file.write(f"\n{json.dumps(told)}")  # after the end of a line that was broken off

    def sum(self, cell: str, code: str) -> Tally:
        total = Tally()
        for part in self.parts[cell, code].values():
            total.merge(part)
        return total

    def missing(self, cell: str, code: str, worlds: int) -> list[tuple[int, int]]:
        """The first world of each part that was not counted yet, and how many it has."""
        done = self.parts[cell, code]
        parts = ((start, min(_PART, worlds - start)) for start in range(0, worlds, _PART))
        return [(start, size) for start, size in parts if start not in done or done[start].worlds < size]


def count(cells: Sequence[Cell], worlds: int, seed: int, code: str, log: Log, pool: ProcessPoolExecutor) -> list[str]:
    """What is missing of all cells, part by part; the line of every cell as soon as it is whole."""
    found: list[str] = []
    waiting = {cell.name: log.missing(cell.name, code, worlds) for cell in cells}
    jobs = {
        pool.submit(measure_cell, cell, size, seed, start): (cell, start)
        for cell in cells
        for start, size in waiting[cell.name]
    }
    left = {name: len(parts) for name, parts in waiting.items()}
    try:
        for job in as_completed(jobs):
            cell, start = jobs[job]
            log.add(cell.name, code, start, job.result())
            left[cell.name] -= 1
            if not left[cell.name]:
                found.append(report(cell, log.sum(cell.name, code), code))
                print(found[-1], flush=True)
    except KeyboardInterrupt:
        pool.shutdown(cancel_futures=True)  # the others would count on without anyone to tell
        raise
    return found


def read_lines(log: Log) -> dict[str, str]:
    """Name of a cell -> its line, by the commit that counted it last."""
    latest = dict(log.parts.keys())
    known = {cell.name: cell for cell in all_cells(full=True)}
    return {name: report(known[name], log.sum(name, code), code) for name, code in latest.items() if name in known}


def _cell_of(line: str) -> str | None:
    found = _LINE.match(line)
    return found and found["cell"]


def write_results(log: Log) -> None:
    """Put the lines of a log in the place of those of the same cells in RESULTS.md; other cells keep theirs."""
    file = _ROOT / "benchmarks" / "RESULTS.md"
    before, mark, rest = file.read_text("utf-8").partition("## conclusions\n")
    section, next_mark, after = rest.partition("\n## ")
    known = {cell: line for line in section.splitlines() if (cell := _cell_of(line))} | read_lines(log)
    names = [cell.name for cell in all_cells()]
    lines = [known[name] for name in names if name in known]
    missed = sum("MISSED" in line for line in lines)
    says = (
        f"{len(lines)} of {len(names)} cells, {missed} miss their aim. In brackets the standard error, after it the "
        "number of worlds; where none is given, 2,000, or 200 to 300 if the error of a rate below 10 % is 0.6 or more. "
        "After `at`: the commit a cell was run with, whose statistics may be older than today's."
    )
    head = f"{datetime.date.today()}\n{machine()}, numpy {version('numpy')}"
    text = "\n".join([_ABOUT, "", says, "", "```", head, *lines, "```", ""])
    file.write_text(f"{before}{mark}\n{text}{next_mark}{after}", "utf-8")
    print(says)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=2000, help="worlds a cell")
    parser.add_argument("--cells", default="", help="only cells whose name matches this regular expression")
    parser.add_argument("--full", action="store_true", help="the whole product of the factors")
    parser.add_argument("--seed", type=int, default=None, help="repeat a run; by default from the operating system")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--log", type=Path, default=None, help="keep counted worlds here, and count none of them again")
    parser.add_argument("--code", default=None, help="the commit of the code, where git cannot tell")
    parser.add_argument("--write-results", action="store_true", help="put the log into RESULTS.md, and run nothing")
    given = parser.parse_args()
    log = Log(given.log)
    if given.write_results:
        return write_results(log) if given.log else parser.error("--write-results needs --log")
    seed = secrets.randbits(32) if given.seed is None else given.seed
    code = given.code or code_version()
    print(f"{machine()}, numpy {version('numpy')}")
    print(f"seed {seed}, {given.worlds} worlds a cell", flush=True)
    cells = [cell for cell in all_cells(full=given.full) if re.search(given.cells, cell.name)]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when a process starts
    with ProcessPoolExecutor(given.processes, multiprocessing.get_context("spawn")) as pool:
        printed = [cell for cell in cells if cell.asks == "printed"]
        count([before_effect(cell) for cell in printed], given.worlds, seed, code, log, pool)
        effects = {cell.name: with_effect(cell, log.sum(before_effect(cell).name, code)) for cell in printed}
        lines = count([effects.get(cell.name, cell) for cell in cells], given.worlds, seed, code, log, pool)
    print(f"{len(lines)} cells, {sum(line.endswith('MISSED') for line in lines)} miss their aim")
    return None


if __name__ == "__main__":
    main()
