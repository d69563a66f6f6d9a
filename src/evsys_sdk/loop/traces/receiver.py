"""An OTLP/HTTP receiver: what instrumented systems export arrives in a store of traces while they run.

    with Receiver(ReceiverSettings(), LiveStore("support")) as receiver:
        receiver.url     # OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=<url>/v1/traces

JSON and protobuf, plain or gzipped; log records too, where conversations are events. An answer of 200 means that the
traces are in the file. Every limit is finite.
"""

from __future__ import annotations

import base64
import hmac
import io
import json
import socket
import threading
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self, override
from urllib.parse import SplitResult, urlsplit

from pydantic import ValidationError

from ...errors import ConfigError, EvsysError, show
from ...log import get_logger
from ...server.settings import is_loopback
from .feedback import GivenFeedback
from .feedback_log import FeedbackLog
from .formats import otel
from .otlp import read_json, read_protobuf, split_logs, split_spans, write_partial_success, write_status
from .store import ImportReport, LiveStore
from .trace import BadRecord

PATH: Final = "/v1/traces"
LOGS: Final = "/v1/logs"
_LANGFUSE: Final = "/api/public/otel/v1/traces"
"""Where Langfuse's SDK sends spans."""
_JSON, _PROTOBUF = "application/json", "application/x-protobuf"
_CODES: Final = {400: 3, 401: 16, 403: 7, 404: 5, 405: 12, 411: 3, 413: 8, 415: 3, 500: 13, 503: 14}
"""HTTP's numbers of errors -> those of the protocol."""


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    """One receiver."""

    host: str = "127.0.0.1"
    port: int = 4318
    api_key: str | None = None
    allow_anyone: bool = False
    max_request_mb: float = 16.0
    """Longest request, as it is sent and as it is once it is unpacked."""
    max_connections: int = 64
    """Requests that are taken at once."""
    max_open: int = 1024
    """Connections, also those that send nothing: exporters keep theirs open between two requests."""
    idle_s: float = 30.0
    """A client that is silent for so long is let go."""
    read_s: float = 120.0
    """And so is one that takes longer to send a request, however little by little."""

    def __post_init__(self) -> None:
        if not self.api_key and not self.allow_anyone and not is_loopback(self.host):
            raise ConfigError(
                f"--host {self.host} lets other machines in, and there is no key. Name a file with --api-key-file, "
                "bind to 127.0.0.1, or allow everyone with --allow-anyone."
            )


class Refusal(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Receiver:
    """Listens in threads of its own until it is closed."""

    def __init__(self, settings: ReceiverSettings, store: LiveStore) -> None:
        self.settings, self.store, self.feedback = settings, store, FeedbackLog(store, rules=store.rules)
        self._room = threading.BoundedSemaphore(settings.max_connections)
        try:
            self._server = _Server((settings.host, settings.port), self)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {settings.host}:{settings.port} ({error.strerror or error}). Choose another --port "
                "(0 takes a free one) or --host."
            ) from None
        # 0.1 s is how long `shutdown` may take to be noticed.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    @property
    def room(self) -> threading.BoundedSemaphore:
        """Who holds it is being answered."""
        return self._room

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a silent client must not keep it from ending

    def __init__(self, address: tuple[str, int], receiver: Receiver) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.receiver = receiver
        self._open = threading.BoundedSemaphore(receiver.settings.max_open)
        super().__init__(address, _Handler)

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._open.acquire(blocking=False):  # each would hold a thread
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._open.release()
            raise

    @override
    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.release()

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        get_logger(__name__).debug("a client went away", exc_info=True)


class _TimelyReader(io.RawIOBase):
    """What a client sends, until it is silent for too long or its request has taken too long."""

    def __init__(self, connection: socket.socket, settings: ReceiverSettings) -> None:
        super().__init__()
        self._connection, self._settings = connection, settings
        self.begin()

    def begin(self) -> None:
        """The time of a request begins."""
        self._until = time.monotonic() + self._settings.read_s

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any) -> int:
        if (left := self._until - time.monotonic()) <= 0:
            raise TimeoutError("the request took too long to arrive")
        self._connection.settimeout(min(left, self._settings.idle_s))
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(self._settings.idle_s)  # for the answer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]

    @override
    def setup(self) -> None:
        super().setup()
        self.rfile.close()  # a timeout of the socket is for one piece, and a request can come in any number of them
        self._reader = _TimelyReader(self.connection, self.server.receiver.settings)
        self.rfile = io.BufferedReader(self._reader)

    @override
    def handle_one_request(self) -> None:
        self._reader.begin()
        super().handle_one_request()

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass  # who sent what is no matter of the log

    def do_GET(self) -> None:
        """Whoever looks is told what this is."""
        self._refuse(Refusal(405, f"this receives traces: POST {PATH}, in JSON or protobuf."))

    def do_POST(self) -> None:
        """Take the spans of a request."""
        room = self.server.receiver.room
        # Refused, not queued: exporters try again by themselves, and each one that waited would hold a thread.
        if not room.acquire(blocking=False):
            self.close_connection = True
            self._refuse(Refusal(503, "too many clients send at once. Try again."))
            return
        try:
            # Who may send is settled before a byte of the body is read.
            self._admit()
            self._take(self._read_body())
        except Refusal as error:
            self.close_connection = True  # what is left of the request was not read
            self._refuse(error)
        except BadRecord as error:
            self._refuse(Refusal(400, f"{error}. Send an OTLP request to export traces."))
        except EvsysError as error:
            self._refuse(Refusal(500, str(error)))
        finally:
            room.release()

    def _admit(self) -> None:
        settings = self.server.receiver.settings
        if settings.api_key:
            given = self.headers.get("x-api-key") or _read_authorization(self.headers.get("authorization", ""))
            # Compared in constant time: how long it takes must not tell how much of a key is right.
            if not hmac.compare_digest(given.encode("utf-8", "replace"), settings.api_key.encode()):
                raise Refusal(401, "the key is missing or wrong. Send it as x-api-key, or as a bearer token.")
        else:  # a page in a browser on this machine could send, too; it would say so
            host, origin = self.headers.get("host", ""), self.headers.get("origin")
            if is_loopback(settings.host) and not is_loopback(_read_url(f"//{host}").hostname or ""):
                raise Refusal(403, f"without a key this answers only to its own address, not to {show(host)}.")
            if origin is not None:
                raise Refusal(403, f"without a key this takes nothing from a page of {show(origin)}.")
        if _read_url(self.path).path not in (PATH, LOGS, _LANGFUSE):
            raise Refusal(404, f"there is no {show(self.path)} here, only {PATH} and {LOGS}.")
        if self._kind not in (_JSON, _PROTOBUF):
            raise Refusal(415, f"the content type {show(self._kind)} is not {_JSON} or {_PROTOBUF}.")

    @property
    def _kind(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def _read_body(self) -> bytes:
        most = int(self.server.receiver.settings.max_request_mb * 1e6)
        length = self.headers.get("content-length", "")
        if not length.isdecimal():
            raise Refusal(411, "the request does not say how long it is. Send Content-Length.")
        if len(length) > 15 or int(length) > most:  # of thousands of digits, Python makes no number
            raise Refusal(413, f"the request is longer than {most / 1e6:g} MB. Export smaller batches.")
        body = self.rfile.read(int(length))
        match self.headers.get("content-encoding", "identity").strip().lower():
            case "identity":
                return body
            case "gzip":
                return _unpack(body, most)
            case other:
                raise Refusal(415, f"the content encoding {show(other)} is not gzip.")

    def _take(self, body: bytes) -> None:
        is_log = _read_url(self.path).path == LOGS
        request = read_json(body) if self._kind == _JSON else read_protobuf(body, logs=is_log)
        store = self.server.receiver.store
        report = self._take_logs(request) if is_log else store.add(split_spans(request), otel.NAME)
        if not report.counts.bad:
            self._answer(200, b"{}" if self._kind == _JSON else b"")
            return
        reason = next(iter(report.counts.reasons), "")
        if self._kind == _JSON:
            name = "rejectedLogRecords" if is_log else "rejectedSpans"
            partial = {name: str(report.counts.bad), "errorMessage": reason}
            self._answer(200, json.dumps({"partialSuccess": partial}).encode())
        else:
            self._answer(200, write_partial_success(report.counts.bad, reason))

    def _take_logs(self, request: Mapping[str, Any]) -> ImportReport:
        """Conversations in log records, and what was thought of such as are in the store."""
        receiver = self.server.receiver
        records, given, bad = list[dict[str, Any]](), list[GivenFeedback](), list[str]()
        for record in split_logs(request):
            [span] = otel.group_logs(record)
            judged = otel.read_evaluations(span)
            if judged is None:
                records.append(record)
            for one in judged or ():
                told = {"name": one.name[:64], "value": one.value, "comment": one.comment[:4000]}
                try:
                    given.append(GivenFeedback(response_id=f"{span['traceId']}/{span['spanId']}", **told))
                except ValidationError:
                    bad.append("an evaluation has neither a number nor a word as its score")
        # Conversations before what was thought of them: both may come in one request.
        report = receiver.store.add(records, otel.NAME)
        unknown = receiver.feedback.add(given, via="otlp").unknown if given else []
        bad += ["an evaluation is of a span that is not among the traces" for _ in unknown]
        for reason in bad:
            report.counts.spoil("log records", reason)
        return report

    def _refuse(self, error: Refusal) -> None:
        code, message = _CODES[error.status], str(error)
        is_protobuf = self._kind == _PROTOBUF
        body = write_status(code, message) if is_protobuf else json.dumps({"code": code, "message": message}).encode()
        self._answer(error.status, body)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", _PROTOBUF if self._kind == _PROTOBUF else _JSON)
        self.send_header("Content-Length", str(len(body)))
        if status == 503:
            self.send_header("Retry-After", "1")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def _read_url(url: str) -> SplitResult:
    """The parts of an address; what is none has none."""
    try:
        return urlsplit(url)
    except ValueError:  # a bracket that is not closed, for one
        return urlsplit("")


def _read_authorization(value: str) -> str:
    """The key in a header: a bearer token, or the password that Langfuse's SDK sends its secret key as."""
    kind, _, rest = value.partition(" ")
    if kind.lower() != "basic":
        return value.removeprefix("Bearer ")
    try:
        return base64.b64decode(rest, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _unpack(body: bytes, most: int) -> bytes:
    stream = zlib.decompressobj(16 + zlib.MAX_WBITS)  # 16: with the header of gzip
    try:
        # One byte more than is allowed tells that it is too long: what a small request unpacks to is never held whole.
        found = stream.decompress(body, most + 1)
    except zlib.error as error:
        raise BadRecord(f"the request is not gzip ({error})") from None
    if len(found) > most:
        raise Refusal(413, f"the request is longer than {most / 1e6:g} MB once it is unpacked. Export smaller batches.")
    if not stream.eof:
        raise BadRecord("the gzip data is cut off")
    return found
