"""The transform that the documentation writes as its example, as it stands there, in the pipeline it stands in."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from evsys_sdk import register_transform
from evsys_sdk.config import TransformSpec
from evsys_sdk.data import ChatMessagesRow, TargetFormat, apply_transforms, build_transforms, parse_rows
from evsys_sdk.data.transforms.rows import Dedupe as BuiltinDedupe
from evsys_sdk.errors import DuplicateNameError
from evsys_sdk.registry import REGISTRIES, get_transform

RAW = [
    {"query": "send a mail", "tool_slug": "GMAIL_SEND", "toolkit": "gmail"},
    {"query": "send a mail", "tool_slug": "GMAIL_SEND", "toolkit": "gmail"},
    {"query": "open an issue", "tool_slug": "GITHUB_ISSUE", "toolkit": "github"},
]
PIPELINE = [
    TransformSpec(
        kind="jsonl_to_chat",
        params={"user_template": "Query: {query}", "assistant_template": "<answer>{tool_slug}</answer>"},
    ),
    TransformSpec(kind="dedupe", params={"key": "query"}),
]


def register_example() -> type:
    @register_transform("dedupe")
    class Dedupe:
        name = "dedupe"

        class Config(BaseModel, extra="forbid"):
            key: str = "query"

        def __init__(self, **kw: Any) -> None:
            self.cfg = self.Config(**kw)

        def __call__(self, rows: Any) -> Any:
            keys, out = set(), []
            for r in rows:
                if r.get(self.cfg.key) not in keys:
                    keys.add(r.get(self.cfg.key))
                    out.append(r)
            return out

    return Dedupe


def typed_rows() -> list[Any]:
    return list(parse_rows(apply_transforms(RAW, build_transforms(PIPELINE)), TargetFormat.CHAT_MESSAGES))


@pytest.mark.parametrize("whose", ["built-in", "the example's", "the example's, after the built-in was used"])
def test_the_documented_pipeline_keeps_one_row_per_query(whose: str) -> None:
    if "after" in whose:
        assert get_transform("dedupe") is BuiltinDedupe
    if whose != "built-in":
        assert register_example() is get_transform("dedupe")
    rows = typed_rows()
    assert [row.metadata["query"] for row in rows] == ["send a mail", "open an issue"]
    assert rows[1] == ChatMessagesRow(
        [
            {"role": "user", "content": "Query: open an issue"},
            {"role": "assistant", "content": "<answer>GITHUB_ISSUE</answer>"},
        ],
        {"query": "open an issue", "tool_slug": "GITHUB_ISSUE", "toolkit": "github"},
    )


def test_a_replaced_built_in_is_listed_as_registered() -> None:
    register_example()
    entries = {entry.name: entry for entry in REGISTRIES["transform"].entries()}
    assert entries["dedupe"].source == "registered"
    assert entries["jsonl_to_chat"].source == "built-in"


def test_other_built_ins_cannot_be_replaced_and_the_example_only_once() -> None:
    register_example()
    for name in ("dedupe", "jsonl_to_chat"):
        with pytest.raises(DuplicateNameError):

            @register_transform(name)
            class Other: ...
