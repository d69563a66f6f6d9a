"""`evsys mcp` as the official Python client of the protocol sees it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from evsys_sdk.scaffold.project import init_project

pytestmark = [
    pytest.mark.agents,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("mcp") is None, reason="needs `mcp`: `make test-agents` has it"),
]


async def test_the_official_client_lists_and_calls_the_tools(tmp_path: Path) -> None:
    from mcp import ClientSession, StdioServerParameters, stdio_client

    root = init_project("shop", into=tmp_path / "shop").root
    server = StdioServerParameters(command=sys.executable, args=["-m", "evsys_sdk", "mcp"], cwd=str(root))
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        greeted = await session.initialize()
        assert greeted.server_info.name == "evsys"
        listed = await session.list_tools()
        assert len(listed.tools) == 14
        answer = await session.call_tool("list_experiments", {"limit": 3})
        assert not answer.is_error
        assert json.loads(answer.content[0].text)["total"] == 0
        refused = await session.call_tool("get_experiment", {"experiment": "nothing"})
        assert refused.is_error
        assert "there is no experiment 'nothing'" in refused.content[0].text
        wrong = await session.call_tool("launch", {"config": "x.yaml"})
        assert wrong.is_error
        assert "'plan_hash' is missing" in wrong.content[0].text
