"""Eval datasets: which rows can be scored, and which errors the others raise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.errors import DataError
from evsys_sdk.eval import EvalRow, load_eval_dataset

HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"query": "hi", "tool_slug": "A"}, EvalRow("row-1", "hi", "A")),
        ({"prompt": "hi", "answer": " A ", "toolkit": "t"}, EvalRow("row-1", "hi", "A", "t")),
        ({"messages": HI, "target": "A", "id": 7, "extra": 1}, EvalRow("7", HI, "A")),
        ({"prompt": HI, "target": "A", "task_id": "x"}, EvalRow("x", HI, "A")),
        ({"query": "hi", "prompt": None, "tool_slug": "A", "answer": "A"}, EvalRow("row-1", "hi", "A")),
    ],
)
def test_rows_are_read_in_each_form(row: Any, expected: EvalRow) -> None:
    assert load_eval_dataset([row]) == [expected]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tool_slug": "A"}, "has no question: add one of prompt, query, messages. Its keys: tool_slug"),
        ({"query": "hi"}, "has no target: add one of tool_slug, answer, target"),
        ({"query": "hi", "prompt": "ho", "target": "A"}, "'prompt' and 'query' differ"),
        ({"query": "hi", "tool_slug": "A", "answer": "B"}, "'tool_slug' and 'answer' differ"),
        ({"query": " ", "target": "A"}, "'query' must be non-empty text"),
        ({"query": 3, "target": "A"}, "'query' must be non-empty text, not 3"),
        ({"query": "hi", "target": ["A"]}, "'target' must be a slug, not ['A']"),
        ({"query": "hi", "target": "A", "toolkit": ""}, "'toolkit' must be non-empty text"),
        ({"query": "hi", "target": "A", "id": 1.5}, "the id must be text or a whole number, not 1.5"),
        ({"messages": [], "target": "A"}, "'messages' must be a non-empty list"),
        ({"messages": [*HI, {"role": "assistant", "content": "A"}], "target": "A"}, "reveals the answer"),
    ],
)
def test_a_row_that_cannot_be_scored_is_refused_with_its_line(row: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "eval.jsonl"
    path.write_text('{"query": "ok", "target": "A"}\n\n' + json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        load_eval_dataset(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert message in str(caught.value)


def test_ids_must_differ() -> None:
    row = {"id": "x", "query": "hi", "target": "A"}
    with pytest.raises(DataError, match="rows:2: the id 'x' repeats line 1"):
        load_eval_dataset([row, row])


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "eval.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(DataError, match="no rows to score"):
        load_eval_dataset(tmp_path / "eval.jsonl")
