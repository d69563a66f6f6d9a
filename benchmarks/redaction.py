"""What keeping secrets out of log lines costs in CPU time, for each line and for a million of them.

python benchmarks/redaction.py --lines 1000000 --repeats 3
"""

import argparse
import base64
import os
import random
import statistics
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from measure import machine

from evsys_sdk.redact import redact_text

SECRETS = {f"SERVICE_{number}_API_KEY": base64.b32encode(os.urandom(20)).decode() for number in range(8)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    os.environ |= SECRETS
    print(machine())
    print(f"{len(SECRETS)} secrets in the environment, {options.lines:,} lines of each kind")
    kinds: dict[str, Callable[[int], str]] = {"log lines": log_line, "metrics": metrics_line, "code": code_line}
    kinds |= {"with a key in it": key_line, "rollouts of 4 kB": rollout}
    print(f"{'':20} {'characters':>10} {'us a line':>10} {'s for all':>10} {'MB/s':>8}")
    for name, make in kinds.items():
        sample = [make(number) for number in range(2000)]
        few = min(options.lines, 100_000_000 // max(1, len(sample[0])))  # no more than takes some seconds
        times = [measure(sample, few) * options.lines / few for _ in range(options.repeats)]
        seconds, size = statistics.median(times), statistics.fmean(map(len, sample))
        each = seconds / options.lines
        print(f"{name:20} {size:10.0f} {each * 1e6:10.2f} {seconds:10.2f} {size / each / 1e6:8.0f}")


def measure(lines: list[str], total: int) -> float:
    began = time.process_time()
    for _ in range(total // len(lines)):
        for line in lines:
            redact_text(line)
    return (time.process_time() - began) * total / (total // len(lines) * len(lines))


CHANCE = random.Random(0)
CODE = [line for path in Path(__file__).parents[1].glob("src/**/*.py") for line in path.read_text("utf-8").splitlines()]


def log_line(number: int) -> str:
    return f"12:00:{number % 60:02d} INFO    sft__seed{number % 5} step {number}: loss {CHANCE.random():.4f}, 51 rows/s"


def metrics_line(number: int) -> str:
    return f'{{"step": {number}, "loss": {CHANCE.random()}, "lr": 1e-4, "tokens": {number * 7}, "grad_norm": 1.5}}'


def code_line(number: int) -> str:
    return CHANCE.choice(CODE)


def key_line(number: int) -> str:
    return (
        f"401 from https://host.example/v1 for {uuid.UUID(int=number)}: invalid api_key sk-{number:08d}abcdefghijklmnop"
    )


def rollout(number: int) -> str:
    return " ".join(CHANCE.choice(CODE).strip() for _ in range(100))[:4000]


if __name__ == "__main__":
    main()
