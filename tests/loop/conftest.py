from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".evsys").mkdir()
    return tmp_path


@pytest.fixture
def write() -> Callable[..., Path]:
    """Write objects, or lines as they are, to a file."""

    def write_lines(name: str, *lines: Any) -> Path:
        path = Path(name)
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("".join(f"{text}\n" for text in texts), "utf-8")
        return path

    return write_lines


def chat(number: int, question: str, answer: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"id": f"c{number}", "time": 1_700_000_000 + number, "messages": messages, **fields}
