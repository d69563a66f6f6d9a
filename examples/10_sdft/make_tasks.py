"""Writes what the two skills are scored on: the quickstart's held-out requests, for the tools learned first and later.

python examples/10_sdft/make_tasks.py
"""

import json
from pathlib import Path

HERE = Path(__file__).parent
SKILLS = {
    "old": ["book_flight", "call_contact", "convert_currency", "find_recipe"],
    "new": ["play_music", "send_email", "set_alarm", "weather_lookup"],
}


def main() -> None:
    lines = (HERE.parent / "01_quickstart" / "data" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    for skill, tools in SKILLS.items():
        chosen = [row for row in rows if row["tool_slug"] in tools]
        tasks = [
            {
                "task_id": f"{skill}-{number}",
                "instruction": f"Which tool? {row['query']}",
                "verifier": {"kind": "in_process", "fn_name": "exact_match", "expected": row["tool_slug"]},
            }
            for number, row in enumerate(chosen, start=1)
        ]
        text = "".join(json.dumps(task) + "\n" for task in tasks)
        (HERE / f"{skill}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
