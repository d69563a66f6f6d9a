"""The ASGI application: authentication, limits and error responses around the routes."""

from __future__ import annotations

from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from ..errors import EvsysError, show
from ..inference.protocols import describe_error
from ..inference.protocols.exchange import RequestRefused
from ..log import get_logger
from .answer import Refusal, answer_json, check_caller, check_key
from .openai import routes as openai
from .service import Service
from .tinker.routes import ROOT, ROUTES, Unknown
from .weights import external

_OPEN: Final = f"{ROOT}/healthz"
"""Path without authentication."""


class App:
    """The server as an ASGI application."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._router = Router(ROUTES, redirect_slashes=False, default=Unknown())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            self._admit(scope)
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
                return Refusal(405, f"{scope['path']} does not support {scope['method']}. See docs/serve.md.")
            case _:
                get_logger(__name__).error(
                    "%s %s failed id=%s", scope["method"], show(scope["path"]), scope.get("request_id"), exc_info=error
                )
                return Refusal(500, "internal error; the server's log has the cause.")

    def _admit(self, scope: Scope) -> None:
        settings, path = self.service.settings, scope["path"]
        keys = [settings.api_key] if settings.api_key else []
        if path == openai.FEEDBACK and settings.feedback_key:  # valid for this path only, so it may be shared
            keys.append(settings.feedback_key)
        if not settings.api_key:
            check_caller(scope, settings.host)
        if keys and path != _OPEN and not path.startswith(external.PREFIX):
            headers = dict(scope["headers"])
            check_key(headers.get(b"x-api-key") or headers.get(b"authorization", b"").removeprefix(b"Bearer "), keys)
