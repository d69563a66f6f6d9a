"""Uses a server as the official `openai` package does; runs in a Python that has it. Prints what it saw as JSON.

python openai_child.py URL
"""

from __future__ import annotations

import json
import sys
from typing import Any


def make_report() -> Any:
    from typing import Literal

    from pydantic import BaseModel

    class Report(BaseModel):
        city: Literal["Rome", "Oslo"]

    return Report


def main(url: str) -> dict[str, Any]:
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="tml-any", max_retries=0)
    body: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 12}
    whole = client.chat.completions.create(**body, n=2, seed=1, logprobs=True, top_logprobs=2)
    streamed = client.chat.completions.create(
        **body, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(streamed)
    with client.chat.completions.stream(**body, temperature=0) as events:
        for _ in events:
            pass
        final = (
            events.current_completion_snapshot
        )  # the final one is refused where the answer was cut off by its length
    greedy = client.chat.completions.create(**body, temperature=0)
    older = client.completions.create(model="tiny", prompt="hello", max_tokens=5, logprobs=1)
    response = client.responses.create(model="tiny", input="hi", max_output_tokens=12, temperature=0)
    with client.responses.stream(model="tiny", input="hi", max_output_tokens=12, temperature=0) as events:
        response_events = list(events)
    report = make_report()
    parsed = client.chat.completions.parse(**{**body, "max_tokens": 100}, response_format=report)
    parsed_response = client.responses.parse(model="tiny", input="hi", text_format=report)
    forced = client.chat.completions.create(
        **{**body, "max_tokens": 100}, tools=[openai.pydantic_function_tool(report)], tool_choice="required"
    )
    errors: dict[str, Any] = {}
    for name, fields in {"model": {"model": "nobody"}, "value": {"temperature": -3}}.items():
        try:
            client.chat.completions.create(**{**body, **fields})
        except openai.APIStatusError as error:
            errors[name] = [type(error).__name__, error.code, error.param]
    return {
        "version": openai.__version__,
        "models": [model.id for model in client.models.list()],
        "choices": len(whole.choices),
        "logprobs": len(whole.choices[0].logprobs.content),
        "usage": whole.usage.total_tokens,
        "streamed": "".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
        "stream_usage": chunks[-1].usage.completion_tokens,
        "helper": final.choices[0].message.content,
        "greedy": greedy.choices[0].message.content,
        "older": len(older.choices[0].logprobs.tokens),
        "response": response.output_text,
        "streamed_response": response_events[-1].response.output_text,
        "response_events": [response_events[0].type, response_events[-1].type],
        "cities": [parsed.choices[0].message.parsed.city, parsed_response.output_parsed.city],
        "forced": forced.choices[0].message.tool_calls[0].function.name,
        "errors": errors,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
