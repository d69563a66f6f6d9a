"""Answers in the shapes of OpenAI's API: whole, as events of a stream, and errors."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from ...inference.renderer import decode
from ..answer import Refusal, answer_json
from .drawing import Answer, Drawing

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
DONE = b"data: [DONE]\n\n"


def refuse(refusal: Refusal) -> Response:
    """A refusal as OpenAI's clients read it."""
    kind = _TYPES.get(refusal.status) or ("invalid_request_error" if refusal.status < 500 else "server_error")
    error = {"message": refusal.message, "type": kind}
    error |= {"param": getattr(refusal, "param", None), "code": getattr(refusal, "code", None)}
    headers = {} if refusal.retry_after_s is None else {"retry-after": str(refusal.retry_after_s)}
    return answer_json({"error": error}, refusal.status, headers)


def event(value: Mapping[str, Any]) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all parts of an answer share."""

    kind: str
    """`chat.completion` or `text_completion`."""
    model: str
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def full_id(self) -> str:
        """As clients see it."""
        return f"{'chatcmpl' if self.kind == 'chat.completion' else 'cmpl'}-{self.id}"

    def wrap(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self._head(self.kind), "choices": choices, **more}

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.kind == "chat.completion" else self.kind
        return {**self._head(kind), "choices": choices, **more}

    def _head(self, kind: str) -> dict[str, Any]:
        head = {"id": self.full_id, "object": kind, "created": self.created, "model": self.model}
        return {**head, "system_fingerprint": None}


def usage(prompt: int, completion: int) -> dict[str, int]:
    """What was read and written, in tokens."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def chat_logprobs(drawing: Drawing, answer: Answer, start: int = 0) -> dict[str, Any]:
    """The log-probabilities of an answer's tokens from `start` on, as chat completions have them."""
    content: list[dict[str, Any]] = []
    top = [(piece.tokens[at], piece.logprobs[at]) for piece in answer.top for at in range(len(piece.tokens))]
    for at in range(start, drawing.said(answer)):
        entry = _token(drawing, answer.tokens[at], answer.logprobs[at])
        best = [_token(drawing, int(token), float(value)) for token, value in zip(*top[at], strict=True)] if top else []
        content.append({**entry, "top_logprobs": best})
    return {"content": content, "refusal": None}


def text_logprobs(drawing: Drawing, answer: Answer) -> dict[str, Any]:
    """The log-probabilities of a completion, as the older API has them."""
    tokens = [decode(drawing.model.client.tokenizer, [token]) for token in answer.tokens]
    offsets, at = list[int](), 0
    for text in tokens:
        offsets.append(at)
        at += len(text)
    tops: list[dict[str, float]] = []
    for piece in answer.top:
        for ids, values in zip(piece.tokens, piece.logprobs, strict=True):
            named = {
                decode(drawing.model.client.tokenizer, [int(id)]): _finite(float(v))
                for id, v in zip(ids, values, strict=True)
            }
            tops.append(named)
    values = [_finite(value) for value in answer.logprobs]
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops or None, "text_offset": offsets}


def _token(drawing: Drawing, token: int, logprob: float) -> dict[str, Any]:
    text = decode(drawing.model.client.tokenizer, [token])
    # a token that is only part of a character has no text whose bytes could be told
    return {"token": text, "logprob": _finite(logprob), "bytes": None if "\ufffd" in text else list(text.encode())}


def _finite(value: float) -> float:
    """JSON has no minus infinity; OpenAI writes this number for what cannot be drawn."""
    return value if math.isfinite(value) else -9999.0
