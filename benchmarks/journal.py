"""What an event of the journal costs, alone and beside other writers, and what verifying its chain costs. Aim: 1 ms.

python benchmarks/journal.py --events 5000
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

from measure import machine

from evsys_sdk.record.events import Journal, Kind, verify_chain
from evsys_sdk.record.layout import ExperimentFiles

AIM_MS = 1.0
METRICS = {f"val/words/metric-{number}": number / 7 for number in range(20)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=5000)
    options = parser.parse_args()
    print(machine())
    for writers in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            with multiprocessing.Pool(writers) as pool:
                times = pool.starmap(append_many, [(folder, options.events)] * writers)
            began = time.perf_counter()
            problems = verify_chain(ExperimentFiles(Path(folder)).journal)
            verified = (time.perf_counter() - began) * 1000
            assert not problems, problems[0]
        found = sorted(time for each in times for time in each)
        median, late = statistics.median(found), found[int(len(found) * 0.99)]
        print(
            f"{writers} writer(s), {len(found):,} events: median {median:.3f} ms, 99 % below {late:.3f} ms "
            f"(aim: {AIM_MS:g} ms); chain verified in {verified:.0f} ms"
        )


def append_many(folder: str, events: int) -> list[float]:
    """Milliseconds of each event."""
    times: list[float] = []
    with Journal.of(Path(folder)) as journal:
        for number in range(events):
            began = time.perf_counter()
            journal.append(Kind.ARM_ENDED, arm=f"run__seed{number}", status="completed", metrics=METRICS)
            times.append((time.perf_counter() - began) * 1000)
    return times


if __name__ == "__main__":
    main()
