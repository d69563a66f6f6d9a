"""The model provider `evsys` of inspect_ai, found by its entry point.

    inspect eval sums.py --model evsys/<experiment>:<run>
    inspect eval sums.py --model evsys/<model> --model-base-url http://127.0.0.1:8000/v1

The first form uses the weights of a run on this disk, the second any server with OpenAI's API.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from ..eval.inspect_api import Ask, policy_api
from ..inference.client import ChatClient
from ..registry import get_inference
from .source import find_source

_MAX_TOKENS = 1024


def _open(name: str, base_url: str | None, api_key: str | None) -> ChatClient:
    if base_url is not None:
        key = api_key or os.environ.get("EVSYS_API_KEY") or "none"
        return get_inference("openai")(model=name, base_url=base_url, api_key=key)
    source = find_source(name.replace(":", "/"))
    params = {"model": source.base_model, "checkpoint": str(source.weights)}
    return get_inference(source.backend)(**params)


def _ask_client(client: ChatClient) -> Ask:
    async def ask(question: dict[str, Any]) -> dict[str, Any]:
        config = question["config"]
        [completion] = await client.complete(
            question["messages"],
            max_tokens=config.get("max_tokens") or _MAX_TOKENS,
            temperature=config.get("temperature", 0.0),
            stop=config.get("stop_seqs"),
            tools=question["tools"] or None,
            seed=config.get("seed"),
        )
        used = {"input_tokens": completion.usage.input_tokens, "output_tokens": completion.usage.output_tokens}
        return {"message": completion.message, "stop_reason": completion.stop_reason, **used}

    return ask


@import_module("inspect_ai.model").modelapi(name="evsys")
def evsys() -> Any:
    """Return the `ModelAPI` class of the provider."""
    base: Any = policy_api()

    class EvsysAPI(base):
        """A trained run, or a model on a server."""

        def __init__(
            self, model_name: str, base_url: str | None = None, api_key: str | None = None, config: Any = None
        ) -> None:
            self._client = _open(model_name, base_url, api_key)
            arguments = {"ask": _ask_client(self._client), "base_url": base_url, "api_key": api_key}
            super().__init__(model_name, **arguments)  # pyright: ignore[reportUnknownMemberType]

        async def aclose(self) -> None:
            self._client.close()

    return EvsysAPI
