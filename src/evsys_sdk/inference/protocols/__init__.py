"""The HTTP APIs for model answers: requests parsed into one form, responses and events built from one form.

exchange            shared classes: `Query`, `Reply`, `Exchange`
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
    exchange.path: exchange for exchange in (ChatCompletion, AnthropicMessage, OpenAIResponse)
}
"""Request path -> exchange class."""


def describe_error(path: str, status: int, message: str, param: str | None = None, code: str | None = None) -> Any:
    """The body of an error in the API of `path`."""
    kind = AnthropicMessage if path.startswith(AnthropicMessage.path) else ChatCompletion
    return kind.error(status, message, param, code)
