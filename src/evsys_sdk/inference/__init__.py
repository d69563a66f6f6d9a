"""How text becomes tokens and tokens become text: rendering conversations for training, sampling and evaluation.

from evsys_sdk.inference import get_renderer

renderer = get_renderer(tokenizer)
renderer.render([{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}])
"""

from __future__ import annotations

from .renderer import Rendered, Renderer, Supervise, Tokenizer, get_renderer, preview, row_messages

__all__ = ["Rendered", "Renderer", "Supervise", "Tokenizer", "get_renderer", "preview", "row_messages"]
