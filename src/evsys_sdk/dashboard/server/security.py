"""Checks before any route: host, size, origin and authentication; and the security headers of every response.

Everything except the page's files and the sign-in needs a valid key or session. Each route declares the scope that it
needs (`routes/routing.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..client.connection import API_PREFIX, PROJECT_HEADER
from .auth import AccessGate, Caller

COOKIE = "evsys_session"
REQUEST_HEADER = "x-evsys-request"
LARGEST_BODY = 16 << 20
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data:; style-src 'self'; "
    "style-src-attr 'unsafe-inline'; font-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = [
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_SAFE = ("GET", "HEAD", "OPTIONS")
_SESSION_PATH = f"{API_PREFIX}/session"
_MOST_DIGITS = 20


class Guard:
    """ASGI middleware that checks every request."""

    def __init__(self, app: ASGIApp, gate: AccessGate, hosts: Iterable[str]) -> None:
        self.app, self._gate = app, gate
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None  # there are no websockets here
        is_api = scope["path"].startswith(f"{API_PREFIX}/")
        send = _with_headers(send, is_api)
        headers = _headers(scope)
        refused = self._refuse(scope, headers, is_api)
        if refused is not None:
            return await _answer(send, *refused)
        await self.app(scope, _limit(receive), send)

    def _refuse(self, scope: Scope, headers: dict[str, str], is_api: bool) -> tuple[int, str, str] | None:
        """Return status, error and message of a refusal, or None after setting the caller in the scope."""
        # The host check prevents DNS rebinding, by which another site's page could read this server.
        if headers.get("host", "").lower() not in self._hosts:
            message = "this server does not answer to that name. Start it with --allow-host to change that."
            return 421, "wrong_host", message
        length = headers.get("content-length", "0")
        # The number of digits is checked first, because `int` raises for thousands of digits.
        if not length.isdecimal() or len(length) > _MOST_DIGITS or int(length) > LARGEST_BODY:
            return 413, "too_large", f"a request may have {LARGEST_BODY} bytes."
        # PostgreSQL rejects text with NUL.
        if "\x00" in scope["path"] or b"%00" in scope["query_string"]:
            return 400, "bad_request", "an address has no NUL character."
        method = scope["method"]
        if not is_api:
            fine = method in ("GET", "HEAD")
            return None if fine else (405, "method_not_allowed", "this can only be read.")
        if method not in _SAFE and not self._is_own_origin(headers):
            return 403, "foreign_origin", "requests of other pages are refused."
        if scope["path"].rstrip("/") == _SESSION_PATH and method == "POST":
            return None
        identity = self._identify(headers)
        if identity is None:
            return 401, "unauthorized", "send a valid API key as 'Authorization: Bearer ...', or sign in."
        if headers.get(PROJECT_HEADER.lower(), identity.project) != identity.project:
            return 403, "forbidden", "this key belongs to another project. Check EVSYS_PROJECT_ID."
        # Only scripts of this page can set a custom header: CSRF protection in addition to the cookie's `samesite`.
        if identity.by_cookie and method not in _SAFE and REQUEST_HEADER not in headers:
            return 403, "forbidden", "a change that is made with a session must send X-Evsys-Request."
        scope["evsys.identity"] = identity
        return None

    def _identify(self, headers: dict[str, str]) -> Caller | None:
        kind, _, key = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and key.strip():
            return self._gate.identify_key(key.strip())
        cookie = session_cookie(headers.get("cookie", ""))
        return self._gate.identify_session(cookie) if cookie else None

    def _is_own_origin(self, headers: dict[str, str]) -> bool:
        site = headers.get("sec-fetch-site")
        if site is not None and site not in ("same-origin", "none"):
            return False
        origin = headers.get("origin")
        if origin is None:
            return True  # not a browser
        try:
            return urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
        except ValueError:  # not a valid URL
            return False


def session_cookie(header: str) -> str:
    """The session in a Cookie header; empty if there is none."""
    try:
        cookie = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return cookie.value if cookie is not None else ""


class TooLarge(HTTPException):
    """The body exceeds the limit; raised while it is read."""

    def __init__(self) -> None:
        super().__init__(413, f"a request may have {LARGEST_BODY} bytes.")


def _limit(receive: Receive) -> Receive:
    received = 0  # counted on receipt, because a chunked body announces no length

    async def receive_counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > LARGEST_BODY:
            raise TooLarge
        return message

    return receive_counted


def _with_headers(send: Send, is_api: bool) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message.get("headers", [])}
            more = [*_HEADERS, (b"cache-control", b"no-store" if is_api else b"no-cache")]
            message["headers"] = [*message.get("headers", []), *(header for header in more if header[0] not in present)]
        await send(message)

    return send_with_headers


def _headers(scope: Scope) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:  # the first value of a repeated header is used everywhere
        headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return headers


async def _answer(send: Send, status: int, error: str, message: str) -> None:
    body = json.dumps({"error": error, "message": message}).encode()
    headers: list[Any] = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
