"""Asks a server for structured output and tool calls through LangChain; prints what it saw as JSON.

python langchain_child.py URL KEY
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main(url: str, key: str) -> dict[str, Any]:
    from typing import Literal

    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel

    class Report(BaseModel):
        """Report a city."""

        city: Literal["Rome", "Oslo"]

    model = ChatOpenAI(model="tiny", base_url=f"{url}/v1", api_key=key, max_retries=0, max_tokens=100)
    methods = ("json_schema", "function_calling")
    cities = {name: model.with_structured_output(Report, method=name).invoke("hi").city for name in methods}
    bound = model.bind_tools([Report], tool_choice="Report").invoke("hi")
    streamed = "".join(chunk.content for chunk in model.stream("hi"))
    return {**cities, "calls": [call["name"] for call in bound.tool_calls], "streamed": streamed}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
