"""Uses a server as the official `anthropic` package does; prints what it saw as JSON.

python anthropic_child.py URL KEY
"""

from __future__ import annotations

import json
import sys
from typing import Any

TOOL = {
    "name": "report",
    "description": "Report a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def main(url: str, key: str) -> dict[str, Any]:
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)
    body: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 12}
    whole = client.messages.create(**body, system="Be brief.", extra_body={"temperature": 0})
    with client.messages.stream(**body, system="Be brief.", extra_body={"temperature": 0}) as events:
        streamed = "".join(events.text_stream)
        final = events.get_final_message()
    body["max_tokens"] = 100
    call = client.messages.create(**body, tools=[TOOL], tool_choice={"type": "tool", "name": "report"})
    with client.messages.stream(**body, tools=[TOOL], tool_choice={"type": "any"}) as events:
        streamed_call = events.get_final_message()
    used = call.content[0]
    result = {"type": "tool_result", "tool_use_id": used.id, "content": "done"}
    history = [
        *body["messages"],
        {"role": "assistant", "content": call.content},
        {"role": "user", "content": [result]},
    ]
    after = client.messages.create(**{**body, "messages": history}, tools=[TOOL])
    errors: dict[str, Any] = {}
    for name, fields in {"model": {"model": "nobody"}, "value": {"max_tokens": -3}}.items():
        try:
            client.messages.create(**{**body, **fields})
        except anthropic.APIStatusError as error:
            errors[name] = type(error).__name__
    return {
        "whole": whole.content[0].text,
        "streamed": streamed,
        "same_usage": final.usage.output_tokens == whole.usage.output_tokens,
        "counted": client.messages.count_tokens(model="tiny", messages=body["messages"]).input_tokens,
        "calls": [call.content[0].input, streamed_call.content[0].input],
        "reasons": [call.stop_reason, streamed_call.stop_reason],
        "after": after.role,
        "errors": errors,
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
