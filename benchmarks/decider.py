"""Whether the decider is right, by training on what it judged; and how long it takes to judge ten thousand traces.

The worlds are others than those that its thresholds were set with (100 and above).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from measure import machine

sys.path.insert(0, str(Path(__file__).parents[1]))

from evsys_sdk.loop.decider import decide
from evsys_sdk.loop.traces.rounds import seal_round
from evsys_sdk.loop.traces.store import import_traces
from tests.loop.situations import PER_WORLD, SYSTEM, Bench, Judged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=10, help="Worlds of twenty situations each.")
    parser.add_argument("--first-world", type=int, default=0)
    parser.add_argument("--traces", type=int, default=10_000)
    options = parser.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        measure_time(Path(folder) / "many", options.traces)
        judged: list[Judged] = []
        for seed in range(options.first_world, options.first_world + options.worlds):
            for one in Bench(Path(folder)).judge_world(seed, PER_WORLD):
                judged.append(one)
                if not one.is_right:
                    said = "; ".join(f"{why.rule} {why.value:.2f}" for why in one.decision.why if why.votes is not None)
                    print(f"  {one.family}: {one.before:.2f} -> {one.after:.2f}, learn {one.decision.learn} ({said})")
            print(f"world {seed}: {sum(one.is_right for one in judged)} of {len(judged)} right so far", flush=True)
    report(judged)


def report(judged: list[Judged]) -> None:
    families: dict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        families[one.family].append(one)
    print(f"\n{'situation':<22} {'count':>5} {'learning helps':>14} {'decided to':>10} {'right':>6} {'score':>14}")
    for family, found in families.items():
        scores = [sum(values) / len(found) for values in zip(*((one.before, one.after) for one in found), strict=True)]
        helps, yes, right = (sum(values) for values in zip(*map(facts, found), strict=True))
        print(f"{family:<22} {len(found):>5} {helps:>14} {yes:>10} {right:>6} {scores[0]:>6.2f} -> {scores[1]:.2f}")
    helps, yes, right = (sum(values) for values in zip(*map(facts, judged), strict=True))
    print(f"{'all':<22} {len(judged):>5} {helps:>14} {yes:>10} {right:>6}")
    print(f"{right / len(judged):.1%} of {len(judged)} decisions are right (aim: 90 %)")


def facts(one: Judged) -> tuple[bool, bool, bool]:
    return one.helps, one.decision.learn, one.is_right


def measure_time(home: Path, count: int) -> None:
    """Half of the traces are known, half are new."""
    (home / ".evsys").mkdir(parents=True)
    before = Path.cwd()
    os.chdir(home)
    for part in range(2):
        rows = range(part * count // 2, (part + 1) * count // 2)
        Path("more.jsonl").write_text("".join(json.dumps(line(n, part)) + "\n" for n in rows), "utf-8")
        import_traces("support", [Path("more.jsonl")])
        if part == 0:
            seal_round("support", min_reward=0.5)
    decide(SYSTEM)  # what is loaded once is not what is asked for
    wall, processor = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    decision = decide(SYSTEM)
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = used.ru_utime + used.ru_stime - processor.ru_utime - processor.ru_stime
    took = f"{time.monotonic() - wall:.2f} s, {spent:.2f} s of the processor"
    print(f"{count} traces judged in {took} (learn: {decision.learn}; aim: less than a second)", flush=True)
    os.chdir(before)


def line(number: int, part: int) -> dict[str, object]:
    """Questions of a few hundred words that vary, one in five of which is answered badly in the second half."""
    asked = f"please tell customer {number} about order {number * 7919 % 10007} " + "and the usual details of it " * 8
    failed = part == 1 and number % 5 == 0
    answer = "I do not know." if failed else f"It is number {number % 17}, " + "sure " * 40
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    thumb = "down" if failed else "up"
    return {"id": f"t{number}", "time": 1_790_000_000 + number, "messages": messages, "feedback": thumb}


if __name__ == "__main__":
    main()
