"""Responses, refusals and authentication."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import Scope

from ..errors import show
from .settings import is_loopback

JSON = "application/json"
PROTOBUF = "application/x-protobuf"


def answer_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response; Starlette's own refuses NaN, which metrics of a diverged model contain."""
    return Response(json.dumps(value, separators=(",", ":")).encode(), status, headers, JSON)


def answer_failure(message: str, category: str) -> Response:
    """The result of a failed operation; the request succeeded, so the status is 200."""
    return answer_json({"error": message, "category": category})


class Refusal(Exception):
    """A refused request, with the reason for the client."""

    def __init__(self, status: int, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after_s = status, message, retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}

    def answer(self) -> Response:
        category = "user" if self.status < 500 else "server"
        return answer_json({"error": self.message, "category": category}, self.status, self.headers)


def check_key(sent: bytes, keys: Iterable[str]) -> None:
    """Refuse a request with a missing or wrong key."""
    # Constant-time comparison, against timing attacks.
    if not any(hmac.compare_digest(sent, key.encode()) for key in keys):
        raise Refusal(401, "the API key is missing or wrong. Send the server's key as X-API-Key, or as a bearer token.")


def check_caller(scope: Scope, address: str) -> None:
    """Refuse requests of web pages, for a server without a key that listens on `address`.

    A page could reach the server by a name that resolves to this machine, or by a form; `Host` and `Origin` reveal it.
    """
    headers = dict(scope["headers"])
    host = headers.get(b"host", b"").decode("latin-1")
    if is_loopback(address) and host and not is_loopback(_name(f"//{host}")):
        raise Refusal(
            403,
            f"this server has no key and answers only to its own address, not to {show(host)}. Use "
            "http://127.0.0.1 with its port, or give the server a key.",
        )
    origin = headers.get(b"origin", b"").decode("latin-1")
    if origin and _name(origin) != _name(f"//{host}"):
        raise Refusal(403, f"this server has no key and answers no page of {show(origin)}. Give the server a key.")


def _name(url: str) -> str:
    """The host of a URL; empty if there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
