"""JSON over HTTP: one POST with a total time limit; every failure is an `InferenceError`.

No retries, and no redirects, which could send a key to another address.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from ..errors import DataError
from .errors import InferenceError

if TYPE_CHECKING:
    import httpx

_JSON = {"content-type": "application/json", "accept": "application/json"}


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    text: str
    body: Any
    """The parsed JSON; None if the text is not JSON."""

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait, from the headers."""
        # Milliseconds take precedence if a provider sends both.
        milliseconds = _seconds(self.headers.get("retry-after-ms"))
        if milliseconds is not None:
            return milliseconds / 1000
        value = self.headers.get("retry-after")
        seconds = _seconds(value)
        if seconds is not None or value is None:
            return seconds
        try:
            at = parsedate_to_datetime(value)
        except ValueError:
            return None
        # A date with zone -0000 parses as naive; treat it as UTC.
        return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())

    @property
    def request_id(self) -> str:
        """The request id for the provider's support."""
        return self.headers.get("request-id") or self.headers.get("x-request-id") or ""


class Transport:
    """The connections of one client on one event loop."""

    def __init__(self, *, timeout_s: float, connect_timeout_s: float, connections: int) -> None:
        import httpx

        self._timeout = timeout_s
        self._http = httpx.AsyncClient(
            # Each read may take the whole time limit, which `post` enforces. No limit on the wait for a free
            # connection, which is not the server's fault.
            timeout=httpx.Timeout(timeout_s, connect=connect_timeout_s, pool=None),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        )

    async def post(self, url: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> HttpAnswer:
        """Send `body` and wait for the complete response of any status."""
        import httpx

        content, where = encode_body(body), place(url)
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._http.post(url, headers={**_JSON, **headers}, content=content)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise _explain_timeout(error, where, self._timeout) from None
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            message = f"the connection to {where} failed: {reason}. Check the address and the network."
            raise InferenceError(message, kind="connection") from None
        except httpx.RequestError as error:
            message = f"the answer of {where} cannot be decoded: {error}. Try again, or check proxies."
            raise InferenceError(message, kind="bad_response") from None
        return HttpAnswer(response.status_code, response.headers, response.text, _json(response))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()


def encode_body(body: Mapping[str, Any]) -> bytes:
    """`body` as JSON; a lone surrogate or an unsupported value raises DataError."""
    try:
        # allow_nan=False: Python would write NaN and Infinity, which are not JSON.
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        around = ascii(error.object[max(0, error.start - 20) : error.start + 20])
        raise DataError(
            f"the request contains a lone surrogate, which is invalid Unicode, near {around}. Remove it."
        ) from None
    except (TypeError, ValueError) as error:
        raise DataError(f"the request cannot be written as JSON: {error}. Use only text, numbers and lists.") from None


def place(url: str) -> str:
    """An address for messages, without query and credentials."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def _explain_timeout(error: Exception, where: str, timeout_s: float) -> InferenceError:
    import httpx

    if isinstance(error, httpx.ConnectTimeout):
        message = f"{where} did not accept a connection in time. Check the address, or raise connect_timeout_s."
    else:
        message = f"{where} did not answer within {timeout_s:g} s. Raise timeout_s, or lower max_tokens."
    return InferenceError(message, kind="timeout")


def _json(response: httpx.Response) -> Any:
    try:
        return json.loads(response.content)
    except ValueError:
        return None


def _seconds(value: str | None) -> float | None:
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    # `float` also parses "nan" and "inf".
    return max(0.0, seconds) if math.isfinite(seconds) else None
