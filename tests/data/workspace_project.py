"""A small project with a `data/` folder, for tests of the workspace."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def chat_row(text: str) -> Row:
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": text.upper()}]}


def task_row(number: int) -> Row:
    verifier = {"kind": "in_process", "fn_name": "exact_match", "expected": str(number)}
    return {"task_id": f"t{number}", "instruction": f"Say {number}.", "verifier": verifier}


def write_rows(path: Path, rows: Iterable[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def dataset_file(root: Path, name: str = "sft", version: int = 1, split: str = "train", rows: int = 3) -> Path:
    """A dataset in the project's layout; its rows say which version and split they are."""
    path = root / "data" / "datasets" / name / f"v{version}" / f"{split}.jsonl"
    return write_rows(path, [chat_row(f"{split} {version} {number}") for number in range(rows)])


def benchmark_file(root: Path, name: str = "exam", place: str = "benchmark", rows: int = 2) -> Path:
    return write_rows(root / "data" / place / name / "tasks.jsonl", [task_row(number) for number in range(rows)])
