"""JSON over HTTP: one POST, with a limit on the whole exchange, and every way it can break as an `InferenceError`.

Nothing here knows a provider, repeats a request or follows a redirect: a key must not travel to another address.
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
    """What a server sent back."""

    status: int
    headers: Mapping[str, str]
    text: str
    body: Any
    """The text as JSON; None where it is none."""

    @property
    def retry_after(self) -> float | None:
        """Seconds that the headers ask to wait."""
        # The finer one first, where a provider sends both.
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
        # A date in the zone -0000 is read without any zone, and could not be compared.
        return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())

    @property
    def request_id(self) -> str:
        """What the provider's support wants to know."""
        return self.headers.get("request-id") or self.headers.get("x-request-id") or ""


class Transport:
    """Connections of one client. Belongs to one event loop."""

    def __init__(self, *, timeout_s: float, connect_timeout_s: float, connections: int) -> None:
        import httpx

        self._timeout = timeout_s
        self._http = httpx.AsyncClient(
            # Each read may take as long as the whole exchange; that is what is limited.
            # A free connection is waited for without limit: that is our own limit at work, and no fault of the server.
            timeout=httpx.Timeout(timeout_s, connect=connect_timeout_s, pool=None),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        )

    async def post(self, url: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> HttpAnswer:
        """Send `body` and wait for the whole answer, whatever its status."""
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
            message = f"the answer of {where} cannot be decoded: {error}. Try again, or check what stands in between."
            raise InferenceError(message, kind="bad_response") from None
        return HttpAnswer(response.status_code, response.headers, response.text, _json(response))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()


def encode_body(body: Mapping[str, Any]) -> bytes:
    """`body` as JSON; text that is no valid Unicode is refused with its place in it."""
    try:
        # Python would write NaN and Infinity, which are no JSON: better refused here, where the value is known.
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        around = ascii(error.object[max(0, error.start - 20) : error.start + 20])
        raise DataError(f"the request holds a lone surrogate, which is not valid Unicode, near {around}.") from None
    except (TypeError, ValueError) as error:
        raise DataError(f"the request cannot be written as JSON: {error}. Use only text, numbers and lists.") from None


def place(url: str) -> str:
    """An address for messages: without query, and without anything that could be a password."""
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
    # `float` reads "nan" and "inf" as well, and no pause of that length would end.
    return max(0.0, seconds) if math.isfinite(seconds) else None
