"""Write the rows and tasks of the campaign on SmolLM2: sums of two numbers below 100, each pair in one file only."""

from __future__ import annotations

import json
import random
from itertools import combinations
from pathlib import Path

SIZES = {"sums_val": 40, "sums_test": 60, "sums_train": 500}


def main() -> None:
    pairs = list(combinations(range(11, 100), 2))
    random.Random(0).shuffle(pairs)
    for name, size in SIZES.items():
        chosen, pairs = pairs[:size], pairs[size:]
        lines = [json.dumps(describe(a, b)) + "\n" for a, b in chosen]
        Path(__file__).with_name("data").joinpath(f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def describe(a: int, b: int) -> dict[str, int]:
    """A sum with the steps of adding tens and ones."""
    return {"a": a, "b": b, "tens": a // 10 * 10 + b // 10 * 10, "ones": a % 10 + b % 10, "sum": a + b}


if __name__ == "__main__":
    main()
