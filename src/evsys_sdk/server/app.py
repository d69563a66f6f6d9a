"""HTTP: an ASGI application in front of the service. Keys, sizes, deadlines, and every error as a sentence."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

from ..errors import EvsysError
from ..log import get_logger
from .answer import Answer, Refusal
from .routes import Request, Route, find
from .service import Service

type Message = MutableMapping[str, Any]
type Receive = Callable[[], Awaitable[Message]]
type Send = Callable[[Message], Awaitable[None]]


class App:
    """Answers HTTP requests."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._key = (service.settings.api_key or "").encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = await self._answer(scope, receive)
        headers = [(b"content-type", answer.content_type.encode()), (b"content-length", b"%d" % len(answer.body))]
        headers += [(name.encode(), value.encode()) for name, value in answer.headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, scope: Message, receive: Receive) -> Answer:
        try:
            route, parts = find(scope["method"], scope["path"])
            headers = dict(scope["headers"])
            self._admit(route, headers)
            async with asyncio.timeout(self.service.settings.read_s):
                body = await self._body(headers, receive)
            query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
            result = await route.handler(self.service, Request(body, query, parts))
            return result if isinstance(result, Answer) else Answer.json(result)
        except Refusal as refusal:
            return refusal.answer()
        except EvsysError as error:
            return Refusal(400, str(error)).answer()
        except TimeoutError:
            return Refusal(408, "the request did not arrive in time.").answer()
        except Exception:
            get_logger(__name__).exception("%s %s failed", scope["method"], scope["path"])
            return Refusal(500, "the server failed; its log says how.").answer()

    def _admit(self, route: Route, headers: dict[bytes, bytes]) -> None:
        if self._key and not route.open:
            given = headers.get(b"x-api-key") or headers.get(b"authorization", b"").removeprefix(b"Bearer ")
            if not hmac.compare_digest(given, self._key):
                raise Refusal(401, "the API key is missing or wrong. Send the server's key as X-API-Key.")
        if route.takes_work and self.service.draining:
            raise Refusal(503, "the server is shutting down and takes no new work.", retry_after_s=5)

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise Refusal(415, "compressed requests are not taken. Send the body as it is.")
        limit = self.service.settings.max_request_bytes
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > limit:
            raise Refusal(413, _too_long(limit), retry_after_s=None)
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refusal(400, "the connection was closed before the request was complete.")
            chunks.append(message.get("body", b""))
            size, more = size + len(chunks[-1]), message.get("more_body", False)
            if size > limit:
                raise Refusal(413, _too_long(limit))
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_long(limit: int) -> str:
    return f"the request is longer than {limit / 1e6:g} MB. Send smaller batches, or raise --max-request-mb."
