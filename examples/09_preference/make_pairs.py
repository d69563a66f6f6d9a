"""Writes preference pairs for the routing task: the answer in its tags is preferred to the same answer in a sentence.

python examples/09_preference/make_pairs.py
"""

import json
from pathlib import Path

HERE = Path(__file__).parent
N_PAIRS = 120


def main() -> None:
    rows = (HERE.parent / "01_quickstart" / "data" / "train.jsonl").read_text(encoding="utf-8").splitlines()[:N_PAIRS]
    pairs = [
        {
            "prompt": f"Which tool answers this? {row['query']}",
            "chosen": f"<answer>{row['tool_slug']}</answer>",
            "rejected": f"You could use {row['tool_slug']} for that.",
        }
        for row in map(json.loads, rows)
    ]
    (HERE / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")


if __name__ == "__main__":
    main()
