"""How often a verdict is wrong, and how often an effect is found, in worlds whose truth is known.

    python benchmarks/conclusions.py                      the main grid and every other factor, 2,000 worlds a cell
    python benchmarks/conclusions.py --worlds 300 --cells erratic
    python benchmarks/conclusions.py --full               the whole product of the factors
    python benchmarks/conclusions.py --log grid.txt       goes on where it was broken off, while the code is the same
    python benchmarks/conclusions.py --log grid.txt --write-results       runs nothing; puts the log into RESULTS.md

The worlds are those of `conclusion_worlds.py`, and new every time: the seed comes from the operating system and is
printed. No cell may exceed 3.5 % false `supported`. Every line names the commit that last changed what conclusions are
drawn by, so that lines of different ages are told apart.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import os
import re
import secrets
import subprocess
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path

import numpy as np
from conclusion_worlds import Cell, Tally, all_cells, measure_cell
from measure import machine

MOST_FALSE = 3.5
_ROOT = Path(__file__).resolve().parent.parent
_CODE = [f"src/evsys_sdk/experiment/{room}" for room in ("statistics", "conclusion", "hypothesis.py")]
_LINE = re.compile(r"(?P<cell>.+?) +(?:false|found) +[0-9.]+ \(.*  at [0-9a-z+]+")
_ABOUT = "How often a verdict is wrong, and how often an effect is found, in worlds whose truth is known."


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
        f"{cell.name:<52} {what} {share:5.1f} ({error:.1f})  coverage {coverage:5.1f}  sees {detectable:>6}  "
        f"{seeds}at {code:<8} {aim}{missed}"
    ).rstrip()


def code_version() -> str:
    """The commit that last changed what conclusions are drawn by; with a `+` where that has been changed since."""

    def git(*words: str) -> str:
        command = ["git", *words, "--", *_CODE]
        return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False).stdout.strip()

    return (git("log", "-1", "--format=%h") or "unknown") + ("+" if git("status", "--porcelain") else "")


def read_log(file: Path) -> dict[str, str]:
    """Name of a cell -> its latest line."""
    lines = file.read_text("utf-8").splitlines() if file.is_file() else []
    return {cell: line for line in lines if (cell := _cell_of(line))}


def _cell_of(line: str) -> str | None:
    found = _LINE.match(line)
    return found and found["cell"]


def write_results(log: Path) -> None:
    """Put the lines of a log in the place of those of the same cells in RESULTS.md; other cells keep theirs."""
    file = _ROOT / "benchmarks" / "RESULTS.md"
    before, mark, rest = file.read_text("utf-8").partition("## conclusions\n")
    section, next_mark, after = rest.partition("\n## ")
    known = {cell: line for line in section.splitlines() if (cell := _cell_of(line))} | read_log(log)
    names = [cell.name for cell in all_cells()]
    lines = [known[name] for name in names if name in known]
    missed = sum("MISSED" in line for line in lines)
    says = f"{len(lines)} of {len(names)} cells, {missed} miss their aim. After `at`: the commit a cell was run with."
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
    parser.add_argument("--log", type=Path, default=None, help="keep lines here, and run no cell again that it has")
    parser.add_argument("--write-results", action="store_true", help="put the log into RESULTS.md, and run nothing")
    given = parser.parse_args()
    if given.write_results:
        return write_results(given.log or parser.error("--write-results needs --log"))
    seed = secrets.randbits(32) if given.seed is None else given.seed
    code = code_version()
    print(f"{machine()}, numpy {version('numpy')}")
    print(f"seed {seed}, {given.worlds} worlds a cell")
    done = {cell for cell, line in (read_log(given.log) if given.log else {}).items() if f"  at {code} " in f"{line} "}
    cells = [cell for cell in all_cells(full=given.full) if re.search(given.cells, cell.name)]
    wanted = [cell for cell in cells if cell.name not in done]
    missed = 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(given.processes) as pool:
        found = pool.map(measure_cell, wanted, itertools.repeat(given.worlds), itertools.repeat(seed))
        for cell, tally in zip(wanted, found, strict=True):
            line = report(cell, tally, code)
            missed += line.endswith("MISSED")
            print(line, flush=True)
            if given.log:
                with given.log.open("a", encoding="utf-8") as file:
                    file.write(f"{line}\n")
    print(f"{len(wanted)} cells, {missed} miss their aim")
    return None


if __name__ == "__main__":
    main()
