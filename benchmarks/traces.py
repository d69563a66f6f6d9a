"""Importing traces: a million records of OpenAI's chat format, with what is personal taken out of some."""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import tempfile
import time
from pathlib import Path

from measure import machine

from evsys_sdk.loop.traces.store import import_traces

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs", "while", "seven", "wizards", "measure"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    records = parser.parse_args().records
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path(".evsys").mkdir()
        path = write(Path("traces.jsonl"), records)
        for label in ("first import", "the same again"):
            wall, processor = time.monotonic(), used()
            report = import_traces("bench", [path])
            wall, processor = time.monotonic() - wall, used() - processor
            told = f"{report.added} added, {report.duplicates} known, {report.redacted or 'nothing'} taken out"
            print(f"{label:<15} {wall:6.1f} s wall, {processor:6.1f} s processor of all processes; {told}")
        print(f"{path.stat().st_size / 1e6:.0f} MB read (aim: a million in less than a minute on two cores)")
        print(f"load average {os.getloadavg()[1]:.1f}: with more than two, wall time is that of the neighbours as well")


def used() -> float:
    """Processor time of this process and of those it waited for."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


def write(path: Path, records: int) -> Path:
    chance = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for number in range(records):
            asked, answer = (" ".join(chance.choices(WORDS, k=30)) for _ in range(2))
            if number % 50 == 0:
                asked += f" write to bob{number}@example.com"
            messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
            record = {"id": f"c{number}", "time": 1.7e9 + number, "model": "m", "messages": messages, "feedback": "up"}
            file.write(json.dumps(record) + "\n")
    return path


if __name__ == "__main__":
    main()
