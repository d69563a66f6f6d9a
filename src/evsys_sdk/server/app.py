"""HTTP: what every request passes before it reaches its route. Who may ask, how long, and every error as a sentence."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from ..errors import EvsysError, show
from ..inference.protocols import describe_error
from ..inference.protocols.exchange import RequestRefused
from ..log import get_logger
from .answer import Refusal, answer_json
from .openai import routes as openai
from .service import Service
from .settings import is_loopback
from .tinker.routes import ROOT, ROUTES, Unknown
from .weights import external

_OPEN: Final = f"{ROOT}/healthz"
"""Needs no key."""


class App:
    """The server as an ASGI application."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._key = (service.settings.api_key or "").encode()
        self._feedback_key = (service.settings.feedback_key or "").encode()
        self._router = Router(ROUTES, redirect_slashes=False, default=Unknown())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            self._admit(scope["path"], dict(scope["headers"]))
            scope["app"], scope["service"] = self, self.service
            await self._router(scope, receive, send)
        except Exception as error:
            await self._refuse(error, scope)(scope, receive, send)

    def _refuse(self, error: Exception, scope: Scope) -> Response:
        refusal = self._refusal(error, scope)
        if not scope["path"].startswith(openai.PREFIXES):
            return refusal.answer()
        details = (error.param, error.code) if isinstance(error, RequestRefused) else ()
        body = describe_error(scope["path"], refusal.status, refusal.message, *details)
        return answer_json(body, refusal.status, refusal.headers)

    def _refusal(self, error: Exception, scope: Scope) -> Refusal:
        match error:
            case Refusal():
                return error
            case RequestRefused():
                return Refusal(error.status, str(error))
            case EvsysError():
                return Refusal(400, str(error))
            case HTTPException(status_code=405):
                return Refusal(405, f"{scope['path']} is not asked for with {scope['method']}. See docs/serve.md.")
            case _:
                get_logger(__name__).error(
                    "%s %s failed id=%s", scope["method"], show(scope["path"]), scope.get("request_id"), exc_info=error
                )
                return Refusal(500, "the server failed; its log says how.")

    def _admit(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        keys = [self._key] if self._key else []
        if path == openai.FEEDBACK and self._feedback_key:  # opens nothing else, so that it may be given away
            keys.append(self._feedback_key)
        if not self._key:
            self._check_caller(headers)
        if keys and path != _OPEN and not path.startswith(external.PREFIX):
            given = headers.get(b"x-api-key") or headers.get(b"authorization", b"").removeprefix(b"Bearer ")
            # how long a comparison takes must not say how much of a guess is right
            if not any(hmac.compare_digest(given, key) for key in keys):
                raise Refusal(
                    401, "the API key is missing or wrong. Send the server's key as X-API-Key, or as a bearer token."
                )

    def _check_caller(self, headers: Mapping[bytes, bytes]) -> None:
        """Without a key, a page in a browser on this machine could ask too: by its own name made to point here, or by
        sending a form. It would say so in `Host` or in `Origin`."""
        host, settings = headers.get(b"host", b"").decode("latin-1"), self.service.settings
        if is_loopback(settings.host) and host and not is_loopback(_name(f"//{host}")):
            raise Refusal(
                403,
                f"this server has no key and answers only to its own address, not to {show(host)}. Use "
                "http://127.0.0.1 with its port, or give the server a key.",
            )
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and _name(origin) != _name(f"//{host}"):
            raise Refusal(403, f"this server has no key and answers no page of {show(origin)}. Give the server a key.")


def _name(url: str) -> str:
    """The host in a URL; empty if it has none that can be read."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
