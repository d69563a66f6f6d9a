"""Asks a server through litellm, by OpenAI's APIs and by Anthropic's; prints what it saw as JSON.

python litellm_child.py URL KEY
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main(url: str, key: str) -> dict[str, Any]:
    import litellm

    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 16, "temperature": 0}
    openai = {"model": "openai/tiny", "api_base": f"{url}/v1", "api_key": key}
    anthropic = {"model": "anthropic/tiny", "api_base": url, "api_key": key}
    chunks = litellm.completion(**openai, **body, stream=True)
    responses = litellm.responses(**openai, input="hi", max_output_tokens=16, temperature=0)
    return {
        "chat": litellm.completion(**openai, **body).choices[0].message.content,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        "messages": litellm.completion(**anthropic, **body).choices[0].message.content,
        "responses": responses.output[0].content[0].text,
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
