"""Writes what users asked a router of requests, as its log would have it; no model is needed.

    python examples/loop_smollm2/make_traces.py 1     # the first weeks: people answer, the small model fails
    python examples/loop_smollm2/make_traces.py 2     # later: refunds are asked for, which nobody taught it

A right answer has a thumb up, what the model made of it a thumb down. A seed decides everything.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROWS = Path(__file__).parents[1] / "quickstart" / "data" / "train.jsonl"
REFUNDS = [
    *("i want my money back for {}", "refund {} please", "{} came broken, pay me back", "how do i return {}"),
    *("take back {} and refund me", "get a refund for {}", "{} never came, money back", "cancel {} with a refund"),
]
THINGS = ["the lamp", "the shoes", "my order", "the phone", "a chair", "the tickets", "the kettle", "my coat"]
BEGIN = 1_790_000_000


def usual(chance: random.Random) -> Iterator[tuple[str, str]]:
    rows = [json.loads(line) for line in ROWS.read_text("utf-8").splitlines()]
    chance.shuffle(rows)
    yield from ((row["query"], row["tool_slug"]) for row in rows)


def refunds(chance: random.Random) -> Iterator[tuple[str, str]]:
    found = [(text.format(thing), "refund_order") for text in REFUNDS for thing in THINGS]
    chance.shuffle(found)
    yield from found


def trace(number: int, question: str, answer: str, feedback: str) -> dict[str, Any]:
    messages = [
        {"role": "user", "content": f"Which tool answers this? {question}"},
        {"role": "assistant", "content": answer},
    ]
    return {"id": f"r{number}", "time": BEGIN + 600 * number, "messages": messages, "feedback": feedback}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("period", type=int, choices=(1, 2))
    period = parser.parse_args().period
    chance = random.Random(period)
    asked = usual(chance) if period == 1 else refunds(chance)
    lines: list[dict[str, Any]] = []
    for at, (question, tool) in zip(range(160 if period == 1 else 64), asked, strict=False):
        number = period * 1000 + at
        if at % 4 == 3:
            lines.append(trace(number, question, "I can help you with that!", "down"))
        else:
            lines.append(trace(number, question, f"<answer>{tool}</answer>", "up"))
    path = Path("outputs/router/inbox") / f"period-{period}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    print(f"{len(lines)} traces in {path}")


if __name__ == "__main__":
    main()
