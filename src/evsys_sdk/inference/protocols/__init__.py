"""The APIs by which programs ask for a model's answer: requests read into one form, answers and events built from one.

exchange            what is common to all: `Query`, `Reply`, `Exchange`
chat_completions    POST /v1/chat/completions  (OpenAI)
completions         POST /v1/completions       (OpenAI, the older API)
messages            POST /v1/messages          (Anthropic)
responses           POST /v1/responses         (OpenAI)

    exchange = CHAT_EXCHANGES["/v1/messages"].read(fields)     # raises RequestRefused
    reply = ...                                                # answer exchange.query
    body = exchange.answer([reply], prompt_tokens)             # or, for exchange.query.stream:
    events = exchange.replay([reply], prompt_tokens)

Nothing here needs a web framework: bodies are dictionaries and events are bytes.
"""

from __future__ import annotations

from typing import Any, Final

from .chat_completions import ChatCompletion
from .exchange import ChatQuery, Exchange
from .messages import AnthropicMessage
from .responses import OpenAIResponse

CHAT_EXCHANGES: Final[dict[str, type[Exchange[ChatQuery]]]] = {
    one.path: one for one in (ChatCompletion, AnthropicMessage, OpenAIResponse)
}
"""By the path of their requests."""


def describe_error(path: str, status: int, message: str, param: str | None = None, code: str | None = None) -> Any:
    """The body of an error as clients of `path` read it."""
    kind = AnthropicMessage if path.startswith(AnthropicMessage.path) else ChatCompletion
    return kind.error(status, message, param, code)
