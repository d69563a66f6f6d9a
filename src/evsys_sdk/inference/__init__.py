"""How models are asked: rendering conversations to tokens and back, and clients that answer conversations.

from evsys_sdk.inference import get_renderer

renderer = get_renderer(tokenizer)
renderer.render([{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}])

renderer, renderers/   conversations -> tokens and back
client, clients/       the contract of an inference client, who pays for its answers, and the built-in ones
adapter                clients of other packages
retry                  trying again
messages               the conversation as clients read it
transport              JSON over HTTP
"""

from __future__ import annotations

from .renderer import Rendered, Renderer, Supervise, Tokenizer, get_renderer, preview, row_messages

__all__ = ["Rendered", "Renderer", "Supervise", "Tokenizer", "get_renderer", "preview", "row_messages"]
