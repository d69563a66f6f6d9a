"""The connection to a dashboard: settings from the environment, and HTTP requests.

| variable | default | purpose |
|---|---|---|
| EVSYS_API_URL | http://localhost:8000 | address of the dashboard |
| EVSYS_API_KEY | | API key, issued by `evsys dashboard key` |
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
_TEMPORARY = (408, 425, 429)  # worth retrying, unlike other 4xx
_LONGEST_ANSWER = 64 << 20
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


class Unreachable(DashboardClientError):
    """The server did not answer, or answered with a temporary error."""


@dataclass(frozen=True, slots=True)
class Connection:
    """The URL of a dashboard with the project and key to use."""

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
        """Create a connection from arguments and environment variables; raise if the key is missing and not offline."""
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
        # Both are sent in headers, where a line break would start another header.
        if not (key.isascii() and key.isprintable() and project.isascii() and project.isprintable()):
            raise EvsysAuthError("EVSYS_API_KEY or EVSYS_PROJECT_ID has characters that no key has. Copy it again.")
        base = Path(log_dir or environment.get("EVSYS_LOG_DIR", "").strip() or workspace_dir())
        address = url if url is not None else environment.get("EVSYS_API_URL", "").strip() or DEFAULT_URL
        return cls(check_url(address), project, key, base.expanduser() / "dashboard", offline)

    @property
    def target(self) -> str:
        """Server and project, as one key."""
        return f"{self.url} {self.project}"

    def open(self, timeout_s: float = TIMEOUT_S) -> HTTPConnection:
        """Create an HTTP connection; it connects at the first request."""
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
        """Like `request_bytes`, with the response decoded as JSON."""
        data = self.request_bytes(method, path, body, **options)
        try:
            return json.loads(data) if data else {}
        except ValueError:
            raise Unreachable(
                f"{self.url} did not answer like a dashboard (it sent {show(data[:80].decode(errors='replace'))}). "
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
        """Send one request below the API prefix; raise DashboardClientError, whose message never contains the key.

        `path` contains unquoted ids; it is quoted here.
        """
        from http.client import HTTPException

        parameters = {key: value for key, value in (query or {}).items() if value is not None}
        target = f"{urlsplit(self.url).path.rstrip('/')}{API_PREFIX}{quote(path)}"
        target += f"?{urlencode(parameters, doseq=True)}" if parameters else ""
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        headers = {"Authorization": f"Bearer {self.api_key}", PROJECT_HEADER: self.project}
        if content is not None:
            headers["Content-Type"] = content_type
        http = connection or self.open()
        try:
            http.request(method, target, content, headers)
            response = http.getresponse()
            data, status = response.read(_LONGEST_ANSWER), response.status
        except (OSError, HTTPException, ValueError) as error:
            http.close()  # or the rest of this response would be read as the next one
            reason = hide(str(error) or type(error).__name__, self.api_key)
            # `from None`, because the cause may quote the request with the key
            raise Unreachable(f"the dashboard at {self.url} cannot be reached: {reason}.") from None
        finally:
            if connection is None:
                http.close()
        if status < 300:
            return data
        raise self._refusal(status, data)

    def _refusal(self, status: int, data: bytes) -> DashboardClientError:
        try:
            body: Any = json.loads(data)
            message, next_seq = str(body.get("message", "")), body.get("next")
        except (ValueError, AttributeError):
            message, next_seq = "", None
        if status >= 500 or status in _TEMPORARY:
            return Unreachable(
                f"the dashboard at {self.url} answered {status}. {self._redact(message)}".strip(), status
            )
        if status == 409 and isinstance(next_seq, int):
            return SequenceGap(next_seq)
        reason = self._redact(message) or "It gave no reason; check EVSYS_API_URL."
        return DashboardClientError(f"the dashboard at {self.url} refused this ({status}). {reason}", status)

    def _redact(self, message: str) -> str:
        return hide(message[:500], self.api_key)


class SequenceGap(DashboardClientError):
    """The server expects another record of a stream next."""

    def __init__(self, next_seq: int) -> None:
        super().__init__(f"the dashboard expects record {next_seq} next.", 409)
        self.next_seq = next_seq

    # Pickling would call `__init__` with the message instead of the number.
    def __reduce__(self) -> tuple[type[SequenceGap], tuple[int]]:
        return type(self), (self.next_seq,)


def check_url(url: str) -> str:
    """Return `url` without trailing slashes; raise if it is not a valid HTTP URL."""
    parts = urlsplit(url)
    try:
        # Reading `port` raises if it is invalid.
        port_is_fine = parts.port is None or 0 < parts.port < 65536
    except ValueError:
        port_is_fine = False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_fine or not url.isprintable():
        raise ConfigError(f"EVSYS_API_URL is {show(url)}, which is not an address. Write it like {DEFAULT_URL}.")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError("EVSYS_API_URL holds more than an address. Put the key into EVSYS_API_KEY instead.")
    return url.rstrip("/")


def read_flag(name: str) -> bool:
    """Read an environment variable as a boolean."""
    value = os.environ.get(name, "").strip().lower()
    if value not in (*_TRUE, *_FALSE):
        raise ConfigError(f"{name} is {show(value)}. Set it to 1 or 0.")
    return value in _TRUE


def new_id() -> str:
    """Return a unique id that sorts by creation time."""
    import secrets

    # milliseconds as hex of fixed length, so that ids sort by time as text
    return f"{int(time.time() * 1000):012x}{secrets.token_hex(10)}"
