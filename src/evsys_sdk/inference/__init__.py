"""Inference: render conversations to tokens and back, and clients that complete conversations.

from evsys_sdk.inference import get_renderer

renderer = get_renderer(tokenizer)
renderer.render([{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}])

renderer, renderers/   conversations -> tokens and back
client, clients/       the contract of an inference client, cost accounting, and the built-in clients
adapter                clients of other packages
retry                  retries with backoff
messages               validation of conversations for clients
transport              JSON over HTTP
"""

from __future__ import annotations

from .renderer import Rendered, Renderer, Supervise, Tokenizer, get_renderer, preview, row_messages

__all__ = ["Rendered", "Renderer", "Supervise", "Tokenizer", "get_renderer", "preview", "row_messages"]
