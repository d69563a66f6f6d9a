"""Turns held-out rows of the routing task into tasks: half of them to choose by, the other half to report on.

python examples/03_benchmark/make_tasks.py
"""

import json
from pathlib import Path

from evsys_sdk import TransformSpec
from evsys_sdk.data import apply_transforms, build_transforms

HERE = Path(__file__).parent
HELD_OUT = HERE.parent / "01_quickstart" / "data" / "test.jsonl"
CHAT = {"user_template": "Which tool answers this? {query}", "assistant_template": "<answer>{tool_slug}</answer>"}


def main() -> None:
    rows = [json.loads(line) for line in HELD_OUT.read_text(encoding="utf-8").splitlines()]
    transforms = build_transforms(
        [
            TransformSpec(kind="jsonl_to_chat", params=CHAT),
            TransformSpec(kind="chat_to_harbor_task", params={"expected_pattern": "<answer>(.*)</answer>"}),
        ]
    )
    tasks = list(apply_transforms(rows, transforms))
    for name, part in (("val", tasks[: len(tasks) // 2]), ("test", tasks[len(tasks) // 2 :])):
        lines = (json.dumps(task) + "\n" for task in part)
        (HERE / "data" / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
