"""An OTLP/HTTP receiver: writes what instrumented systems export into a store of traces while they run.

    with Receiver(ReceiverSettings(), LiveStore("support")) as receiver:
        receiver.url     # OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=<url>/v1/traces

It takes JSON and protobuf, plain or gzipped, and log records where conversations are events. A response with status 200
means that the traces are in the file. Starlette routes the requests, uvicorn speaks HTTP, opentelemetry-proto decodes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from pydantic import ValidationError
from pydantic_core import from_json

from ...errors import ConfigError, EvsysError, MissingExtraError, show
from ...server.run import listen
from ...server.settings import is_loopback
from .feedback import GivenFeedback
from .feedback_log import FeedbackLog
from .formats import otel
from .store import ImportReport, LiveStore
from .trace import BadRecord, as_list, as_object

PATH: Final = "/v1/traces"
LOGS: Final = "/v1/logs"
_LANGFUSE: Final = "/api/public/otel/v1/traces"
"""Where Langfuse's SDK sends spans."""
_JSON, _PROTOBUF = "application/json", "application/x-protobuf"
_CODES: Final = {400: 3, 401: 16, 403: 7, 404: 5, 405: 12, 408: 4, 413: 8, 415: 3, 500: 13}
"""HTTP status -> gRPC status code."""


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    """Settings of one receiver."""

    host: str = "127.0.0.1"
    port: int = 4318
    api_key: str | None = None
    allow_anyone: bool = False
    max_request_mb: float = 16.0
    """Longest request, before and after decompression."""
    max_connections: int = 1024
    """Open connections; beyond, clients get status 503 and try again."""
    read_s: float = 120.0
    """Time limit for the head of a connection's first request, and for each body."""

    def __post_init__(self) -> None:
        if not self.api_key and not self.allow_anyone and not is_loopback(self.host):
            raise ConfigError(
                f"--host {self.host} lets other machines in, and there is no key. Name a file with --api-key-file, "
                "bind to 127.0.0.1, or allow everyone with --allow-anyone."
            )


class Receiver:
    """Serves from a thread until it is closed."""

    def __init__(self, settings: ReceiverSettings, store: LiveStore) -> None:
        try:
            import uvicorn

            app = _make_app(settings, store)
            _messages(is_log=False)
        except ImportError:
            raise MissingExtraError("evsys traces listen", "traces") from None
        self._socket = listen(settings.host, settings.port)
        self._socket.listen()
        config: Any = uvicorn.Config(
            app,
            http=_limit_heads(settings.read_s),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=settings.max_connections,
            timeout_keep_alive=75,  # longer than exporters keep an idle connection
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)

    @property
    def url(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


def _limit_heads(seconds: float) -> Any:
    """uvicorn's protocol, closing connections that send no complete head in time."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class LimitedProtocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.loop.call_later(seconds, lambda: None if self.cycle else transport.abort())

    return LimitedProtocol


def _make_app(settings: ReceiverSettings, store: LiveStore) -> Any:
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from ...server.answer import Refusal, check_caller, check_key

    feedback = FeedbackLog(store, rules=store.rules)

    async def export(request: Request) -> Response:
        if settings.api_key:
            check_key(_read_key(request.headers), [settings.api_key])
        else:
            check_caller(request.scope, settings.host)
        if (kind := _read_kind(request)) not in (_JSON, _PROTOBUF):
            raise Refusal(415, f"the content type {show(kind)} is not {_JSON} or {_PROTOBUF}.")
        body = await _read_body(request, settings)
        return await run_in_threadpool(take, body, kind, request.url.path == LOGS)

    def take(body: bytes, kind: str, is_log: bool) -> Response:
        data = _read_json(body) if kind == _JSON else read_protobuf(body, is_log=is_log)
        report = _take_logs(data, store, feedback) if is_log else store.add(_split_spans(data), otel.NAME)
        if not report.counts.bad:
            return Response(b"{}" if kind == _JSON else b"", media_type=kind)
        reason = next(iter(report.counts.reasons), "")
        name = "rejectedLogRecords" if is_log else "rejectedSpans"
        partial = {"partialSuccess": {name: str(report.counts.bad), "errorMessage": reason}}
        return Response(json.dumps(partial) if kind == _JSON else _write_partial(partial, is_log), media_type=kind)

    def refuse(request: Request, error: Exception) -> Response:
        status, message = 500, str(error)
        if isinstance(error, Refusal):
            status = error.status
        elif isinstance(error, BadRecord):
            status, message = 400, f"{message}. Send an OTLP request to export traces."
        elif not isinstance(error, EvsysError):  # Starlette's 404 and 405
            status = getattr(error, "status_code", 500)
            message = f"POST traces to {PATH} and log records to {LOGS}; {show(request.url.path)} is neither."
        is_json = _read_kind(request) != _PROTOBUF
        code = _CODES.get(status, 13)
        answer = json.dumps({"code": code, "message": message}) if is_json else _write_status(code, message)
        return Response(answer, status, {"connection": "close"}, _JSON if is_json else _PROTOBUF)

    routes = [Route(path, export, methods=["POST"]) for path in (PATH, LOGS, _LANGFUSE)]
    handlers: Any = dict.fromkeys((Refusal, BadRecord, EvsysError, 404, 405), refuse)
    return Starlette(routes=routes, exception_handlers=handlers)


def _read_kind(request: Any) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _read_body(request: Any, settings: ReceiverSettings) -> bytes:
    from ...server.answer import Refusal

    most, body = int(settings.max_request_mb * 1e6), bytearray()
    too_long = Refusal(413, f"the request is longer than {most / 1e6:g} MB. Export smaller batches.")
    try:
        async with asyncio.timeout(settings.read_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise too_long
    except TimeoutError:
        raise Refusal(408, f"the request did not arrive within {settings.read_s:g} s.") from None
    match request.headers.get("content-encoding", "identity").strip().lower():
        case "identity":
            return bytes(body)
        case "gzip":
            if (unpacked := _unpack(bytes(body), most)) is None:
                raise too_long
            return unpacked
        case other:
            raise Refusal(415, f"the content encoding {show(other)} is not gzip.")


def _unpack(body: bytes, most: int) -> bytes | None:
    """The decompressed body; None if it is too long. It is never decompressed beyond the limit."""
    stream = zlib.decompressobj(16 + zlib.MAX_WBITS)  # 16: with the header of gzip
    try:
        found = stream.decompress(body, most + 1)
    except zlib.error as error:
        raise BadRecord(f"the request is not gzip ({error})") from None
    if len(found) > most:
        return None
    if not stream.eof:
        raise BadRecord("the gzip data is cut off")
    return found


def _read_key(headers: Mapping[str, str]) -> bytes:
    """The key of a request: `x-api-key`, a bearer token, or the password (Langfuse's SDK sends its secret key so)."""
    value = headers.get("x-api-key") or headers.get("authorization", "")
    kind, _, rest = value.partition(" ")
    if kind.lower() != "basic":
        return value.removeprefix("Bearer ").encode("utf-8", "replace")
    try:
        return base64.b64decode(rest, validate=True).partition(b":")[2]
    except ValueError:
        return b""


def _read_json(body: bytes) -> Mapping[str, Any]:
    try:
        found = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise BadRecord(f"the request is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise BadRecord("the request is no object")
    return as_object(found)


def read_protobuf(body: bytes, *, is_log: bool) -> Mapping[str, Any]:
    """The request as OTLP's JSON has it, but with ids in base64, which `otel` reads too."""
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message import DecodeError

    try:
        return MessageToDict(_messages(is_log)[0].FromString(body))
    except DecodeError:
        raise BadRecord("the request is not protobuf of OTLP") from None


def _write_partial(partial: dict[str, Any], is_log: bool) -> bytes:
    from google.protobuf.json_format import ParseDict

    return ParseDict(partial, _messages(is_log)[1]()).SerializeToString()


def _write_status(code: int, message: str) -> bytes:
    # google.rpc.Status has the same two fields with the same numbers, and is in a package of its own.
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTracePartialSuccess

    return ExportTracePartialSuccess(rejected_spans=code, error_message=message).SerializeToString()


def _messages(is_log: bool) -> tuple[Any, Any]:
    """The protocol's classes of a request and of its response."""
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
        ExportLogsServiceRequest,
        ExportLogsServiceResponse,
    )
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceRequest,
        ExportTraceServiceResponse,
    )

    if is_log:
        return ExportLogsServiceRequest, ExportLogsServiceResponse
    return ExportTraceServiceRequest, ExportTraceServiceResponse


def _split_spans(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each span as a request, so that a bad one does not spoil the others."""
    for batch in as_list(request.get("resourceSpans")):
        for scope in as_list(as_object(batch).get("scopeSpans")):
            for span in as_list(as_object(scope).get("spans")):
                yield {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


def _split_logs(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The log records of each span as a request."""
    found: dict[tuple[str, ...], list[Any]] = {}
    for batch in as_list(request.get("resourceLogs")):
        for scope in as_list(as_object(batch).get("scopeLogs")):
            for record in as_list(as_object(scope).get("logRecords")):
                ids = tuple(str(as_object(record).get(name) or "") for name in ("traceId", "spanId"))
                key = ids if all(ids) else ("", str(len(found)))  # a record without a span is a group
                found.setdefault(key, []).append(record)
    for records in found.values():
        yield {"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}


def _take_logs(request: Mapping[str, Any], store: LiveStore, feedback: FeedbackLog) -> ImportReport:
    """Add conversations in log records, and evaluations of those in the store."""
    records, given, bad = list[dict[str, Any]](), list[GivenFeedback](), list[str]()
    for record in _split_logs(request):
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
    # Conversations before their evaluations: both may be in one request.
    report = store.add(records, otel.NAME)
    unknown = feedback.add(given, via="otlp").unknown if given else []
    bad += ["an evaluation is of a span that is not among the traces" for _ in unknown]
    for reason in bad:
        report.counts.spoil("log records", reason)
    return report
