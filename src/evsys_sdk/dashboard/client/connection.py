"""Where the dashboard is and who asks: settings from the environment, and one HTTP request.

| variable | default | purpose |
|---|---|---|
| EVSYS_API_URL | http://localhost:8000 | address of the dashboard |
| EVSYS_API_KEY | | who may write; issued by `evsys dashboard key` |
| EVSYS_PROJECT_ID | | the project records belong to |
| EVSYS_LOG_DIR | .evsys | folder of the local mirror |
| EVSYS_OFFLINE | false | write the mirror only; no key needed |
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from ...errors import ConfigError, DashboardClientError, EvsysAuthError, show
from ...paths import workspace_dir
from ...redact import hide

if TYPE_CHECKING:
    from http.client import HTTPConnection

API_PREFIX = "/api/dashboard/api"
DEFAULT_URL = "http://localhost:8000"
PROJECT_HEADER = "X-Evsys-Project"
TIMEOUT_S = 10.0
_TEMPORARY = (408, 425, 429)  # the same request may be taken later; of other 4xx it never is
_LONGEST_ANSWER = 64 << 20
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


class Unreachable(DashboardClientError):
    """There was no answer, or one that says to try again later."""


@dataclass(frozen=True, slots=True)
class Connection:
    """One dashboard, one project, one key."""

    url: str
    project: str
    api_key: str = field(repr=False)
    mirror_dir: Path
    offline: bool = False

    @classmethod
    def from_environment(
        cls,
        *,
        url: str | None = None,
        api_key: str | None = None,
        project: str | None = None,
        log_dir: str | Path | None = None,
        offline: bool | None = None,
    ) -> Connection:
        """What is given, else what the environment says; a missing key is an error unless offline."""
        environment = os.environ
        offline = read_flag("EVSYS_OFFLINE") if offline is None else offline
        key = (api_key if api_key is not None else environment.get("EVSYS_API_KEY", "")).strip()
        project = (project if project is not None else environment.get("EVSYS_PROJECT_ID", "")).strip()
        missing = [name for name, value in (("EVSYS_API_KEY", key), ("EVSYS_PROJECT_ID", project)) if not value]
        if missing and not offline:
            raise EvsysAuthError(
                f"the dashboard needs {' and '.join(missing)}. Set what `evsys dashboard key` printed, or set "
                "EVSYS_OFFLINE=1 to keep everything on this disk and send it later with `evsys sync`."
            )
        # Both go into headers, where a line break would begin another header.
        if not (key.isascii() and key.isprintable() and project.isascii() and project.isprintable()):
            raise EvsysAuthError("EVSYS_API_KEY or EVSYS_PROJECT_ID has characters that no key has. Copy it again.")
        base = Path(log_dir or environment.get("EVSYS_LOG_DIR", "").strip() or workspace_dir())
        address = url if url is not None else environment.get("EVSYS_API_URL", "").strip() or DEFAULT_URL
        return cls(check_url(address), project, key, base.expanduser() / "dashboard", offline)

    @property
    def target(self) -> str:
        """Which records of which server these are."""
        return f"{self.url} {self.project}"

    def open(self, timeout_s: float = TIMEOUT_S) -> HTTPConnection:
        """A connection that is not connected yet."""
        from http.client import HTTPConnection, HTTPSConnection

        parts = urlsplit(self.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=timeout_s)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """`request_bytes`, with the answer as JSON."""
        data = self.request_bytes(method, path, body, **options)
        try:
            return json.loads(data) if data else {}
        except ValueError:
            raise Unreachable(
                f"{self.url} did not answer as a dashboard does (it said {show(data[:80].decode(errors='replace'))}). "
                "Check EVSYS_API_URL."
            ) from None

    def request_bytes(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        *,
        query: dict[str, Any] | None = None,
        connection: HTTPConnection | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """One request below the API's prefix. Raises DashboardClientError, never with the key.

        `path` holds ids as they are: it is quoted here, and only here.
        """
        from http.client import HTTPException

        given = {key: value for key, value in (query or {}).items() if value is not None}
        target = f"{urlsplit(self.url).path.rstrip('/')}{API_PREFIX}{quote(path)}"
        target += f"?{urlencode(given, doseq=True)}" if given else ""
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        headers = {"Authorization": f"Bearer {self.api_key}", PROJECT_HEADER: self.project}
        if content is not None:
            headers["Content-Type"] = content_type
        own = connection or self.open()
        try:
            own.request(method, target, content, headers)
            answer = own.getresponse()
            data, status = answer.read(_LONGEST_ANSWER), answer.status
        except (OSError, HTTPException, ValueError) as error:
            own.close()  # or what is left of this answer would be read as that of the next request
            reason = hide(str(error) or type(error).__name__, self.api_key)
            # `from None`: the error beneath may quote the request, and with it the key
            raise Unreachable(f"the dashboard at {self.url} cannot be reached: {reason}.") from None
        finally:
            if connection is None:
                own.close()
        if status < 300:
            return data
        raise self._refusal(status, data)

    def _refusal(self, status: int, data: bytes) -> DashboardClientError:
        try:
            stated: Any = json.loads(data)
            message, next_seq = str(stated.get("message", "")), stated.get("next")
        except (ValueError, AttributeError):
            message, next_seq = "", None
        if status >= 500 or status in _TEMPORARY:
            return Unreachable(
                f"the dashboard at {self.url} answered {status}. {self._redact(message)}".strip(), status
            )
        if status == 409 and isinstance(next_seq, int):
            return SequenceGap(next_seq)
        said = self._redact(message) or "It gave no reason; check EVSYS_API_URL."
        return DashboardClientError(f"the dashboard at {self.url} refused this ({status}). {said}", status)

    def _redact(self, message: str) -> str:
        return hide(message[:500], self.api_key)


class SequenceGap(DashboardClientError):
    """The server expects another record of a stream next."""

    def __init__(self, next_seq: int) -> None:
        super().__init__(f"the dashboard expects record {next_seq} next.", 409)
        self.next_seq = next_seq

    # Exceptions are made again from their message when they cross a process, and this one is made from a number.
    def __reduce__(self) -> tuple[type[SequenceGap], tuple[int]]:
        return type(self), (self.next_seq,)


def check_url(url: str) -> str:
    """`url` without a slash at its end, if it is an address that can be asked."""
    parts = urlsplit(url)
    try:
        # `urlsplit` looks at the port only when it is asked for, and raises then.
        port_is_fine = parts.port is None or 0 < parts.port < 65536
    except ValueError:
        port_is_fine = False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_fine or not url.isprintable():
        raise ConfigError(f"EVSYS_API_URL is {show(url)}, which is no address. Write it like {DEFAULT_URL}.")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError("EVSYS_API_URL holds more than an address. Put the key into EVSYS_API_KEY instead.")
    return url.rstrip("/")


def read_flag(name: str) -> bool:
    """An environment variable that is either on or off."""
    value = os.environ.get(name, "").strip().lower()
    if value not in (*_TRUE, *_FALSE):
        raise ConfigError(f"{name} is {show(value)}. Set it to 1 or 0.")
    return value in _TRUE


def new_id() -> str:
    """An id no one else has, which sorts by the time it was made."""
    import secrets

    # milliseconds in hex, of a fixed length: as text, ids sort as times do
    return f"{int(time.time() * 1000):012x}{secrets.token_hex(10)}"
