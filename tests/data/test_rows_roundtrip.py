"""Any row, there and back: through typed rows, and through a file of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evsys_sdk.data import from_dict, iter_jsonl, parse_rows, to_dict
from evsys_sdk.data.jsonl import read_jsonl, write_jsonl

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=4)
BLOCKS = st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}) | st.fixed_dictionaries(
    {"type": st.just("image_url"), "image_url": st.fixed_dictionaries({"url": TEXT})}
)
CONTENT = TEXT | st.lists(BLOCKS, min_size=1, max_size=3)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]), "content": CONTENT},
    optional={"name": TEXT, "tool_call_id": TEXT, "tool_calls": st.lists(OBJECTS, max_size=2)},
)
FILLED = TEXT.filter(bool)
VERIFIERS = st.one_of(
    st.fixed_dictionaries({"kind": st.just("in_process"), "fn_name": FILLED, "expected": VALUES, "params": OBJECTS}),
    st.fixed_dictionaries({"kind": st.just("e2b"), "dockerfile": FILLED, "test_sh": FILLED, "test_state_py": TEXT}),
    st.fixed_dictionaries({"kind": st.just("llm_judge"), "judge_model": FILLED, "rubric": FILLED}),
)
ROWS = st.one_of(
    st.fixed_dictionaries(
        {"messages": st.lists(MESSAGES, min_size=1, max_size=4), "metadata": OBJECTS},
        optional={"target_assistant": TEXT},
    ),
    st.fixed_dictionaries(
        {"task_id": FILLED, "instruction": CONTENT, "verifier": VERIFIERS, "metadata": OBJECTS},
    ),
    st.fixed_dictionaries({"inputs": OBJECTS, "expected": VALUES, "metadata": OBJECTS}),
)


@given(ROWS)
def test_a_row_comes_back_equal(row: dict[str, Any]) -> None:
    typed = from_dict(row)
    assert to_dict(typed) == row
    assert list(parse_rows([row])) == [typed]


@settings(max_examples=50)
@given(st.lists(ROWS, max_size=5))
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_a_file_of_rows_comes_back_equal(tmp_path: Path, name: str, rows: list[dict[str, Any]]) -> None:
    path = tmp_path / name
    assert write_jsonl(path, rows) == len(rows)
    assert list(read_jsonl(path)) == rows
    assert [to_dict(row) for row in iter_jsonl(path)] == rows
