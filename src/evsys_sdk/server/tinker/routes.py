"""The routing table of the server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ...errors import show
from ..answer import Refusal, answer_json
from ..openai import routes as openai
from ..service import Service
from ..state.futures import ResultReading
from ..weights import external
from ..weights.checkpoints import CheckpointPlace
from . import listing, requests, sampling
from .requests import read

ROOT: Final = "/api/v1"
_SMALL: Final = 1_000_000

type Result = dict[str, Any] | Response


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Parses a request, calls the handler, sends the response."""

    handler: Callable[..., Result | Awaitable[Result]]
    """Called with the service and the parsed request, else with the HTTP request and its body."""
    reads: type[requests.Strict] | None = None
    """The type of the JSON request, if the handler needs only that."""
    in_files: bool = False
    """Whether the handler accesses files, which runs off the event loop."""
    takes_work: bool = False
    """Whether it is refused during a shutdown."""
    large: bool = False
    """Whether requests may have the server's maximum length instead of a megabyte."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service: Service = scope["service"]
        if self.takes_work and service.draining:
            raise Refusal(503, "the server is shutting down and accepts no new work.", retry_after_s=5)
        request = Request(scope, receive)
        with ResultReading(service.memory, *self._longest(service)) as room:
            result = await self._query(service, request, await _read_body(request, service, room))
        answer = result if isinstance(result, Response) else answer_json(result)
        await answer(scope, receive, send)

    async def _query(self, service: Service, request: Request, body: bytes) -> Result:
        try:
            arguments = (request, body) if self.reads is None else (read(self.reads, body),)
        except Refusal as refusal:
            service.consume_number(body, refusal)
            raise
        if self.in_files:
            return await asyncio.to_thread(cast("Callable[..., Result]", self.handler), service, *arguments)
        result = self.handler(service, *arguments)
        return await result if isinstance(result, Awaitable) else result

    def _longest(self, service: Service) -> tuple[int, str]:
        most = service.settings.max_request_bytes
        if self.large or most < _SMALL:
            return most, "Send smaller batches, or raise --max-request-mb."
        return _SMALL, "No request of this kind needs to be that long."


class Unknown(Endpoint):
    """Handles every path that is not in the table."""

    def __init__(self) -> None:
        super().__init__(_refuse_unknown)


async def _read_body(request: Request, service: Service, room: ResultReading) -> bytes:
    headers = dict(request.scope["headers"])
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise Refusal(415, "compressed requests are not supported. Send the body uncompressed.")
    # An invalid Content-Length is ignored; received bytes are counted.
    announced = headers.get(b"content-length", b"0")
    room.check_announced(int(announced) if announced.isdigit() and len(announced) < 16 else 0)
    try:
        async with asyncio.timeout(service.settings.read_s):
            return await _receive_all(request, room)
    except TimeoutError:
        raise Refusal(408, f"the request did not arrive within {service.settings.read_s:g} s.") from None


async def _receive_all(request: Request, room: ResultReading) -> bytes:
    message = await request.receive()
    # Avoid a copy for requests that arrive in one piece.
    if message["type"] == "http.request" and not message["more_body"]:
        room.grow(len(message["body"]))
        return message["body"]
    body = bytearray()
    while message["type"] == "http.request":
        body += message["body"]
        room.grow(len(body))
        if not message["more_body"]:
            return bytes(body)
        message = await request.receive()
    raise Refusal(400, "the connection was closed before the request was complete.")


def _refuse_unknown(service: Service, request: Request, body: bytes) -> Result:
    """Refuse an unknown request; one with a model's number consumes the number."""
    path = show(request.scope["path"])
    refusal = Refusal(404, f"this server does not answer {request.method} {path}. docs/serve.md lists what it does.")
    service.consume_number(body, refusal)
    raise refusal


def _page(request: Request, default: int) -> dict[str, int]:
    """`limit` and `offset` of a listing."""
    page: dict[str, int] = {}
    for name, fallback, most in (("limit", default, 1000), ("offset", 0, 10**9)):
        text = request.query_params.get(name, str(fallback))
        if not re.fullmatch("[0-9]{1,10}", text) or int(text) > most:
            raise Refusal(400, f"{name} must be a whole number between 0 and {most} (got {show(text)}).")
        page[name] = int(text)
    return page


async def _forward_backward(service: Service, request: Request, body: bytes) -> Result:
    return service.forward_backward(*await service.read_training(body), size=len(body))


def _end_session(service: Service, request: Request, body: bytes) -> Result:
    # Not awaited, because it waits for all operations of the session.
    service.follow(service.end_session(service.sessions.get(request.path_params["session_id"])))
    return {}


def _heartbeat(service: Service, request: requests.SessionOnly) -> Result:
    service.sessions.get(request.session_id)
    return {"type": "session_heartbeat"}


async def _retrieve(service: Service, request: requests.Retrieve) -> Result:
    service.sessions.touch(request.request_id)
    return await service.futures.fetch(request.request_id, service.settings.poll_s)


def _set_ttl(service: Service, request: Request, body: bytes) -> Result:
    service.checkpoints.set_ttl(_place(request), read(requests.Ttl, body).ttl_seconds)
    return {}


def _delete(service: Service, request: Request, body: bytes) -> Result:
    service.checkpoints.delete(_place(request))
    return {}


def _place(request: Request) -> CheckpointPlace:
    parts = request.path_params
    return CheckpointPlace.of(parts["run_id"], f"{parts['kind']}/{parts['name']}")


def _addresses(service: Service, request: Request, body: bytes) -> Result:
    return external.addresses(service.checkpoints, service.signer, _place(request), str(request.base_url))


def _download(service: Service, request: Request, body: bytes) -> Result:
    return external.download(service.checkpoints, service.signer, request)


type _Row = tuple[str, str, Endpoint]
type _Answer = Callable[[Service, Request], Result]


def _work(path: str, reads: type[requests.Strict], handler: Callable[..., Any], *, large: bool = False) -> _Row:
    """A route that is refused during a shutdown."""
    return "POST", path, Endpoint(handler, reads, takes_work=True, large=large)


def _query(path: str, answer: _Answer, method: str = "GET", *, in_files: bool = False) -> _Row:
    """A route for a read-only query."""

    def handler(service: Service, request: Request, body: bytes) -> Result:
        return answer(service, request)

    return method, path, Endpoint(handler, in_files=in_files)


def _checkpoints(service: Service, request: Request) -> Result:
    run_id = request.path_params.get("run_id")
    return listing.checkpoints(service, run_id, **_page(request, 100 if run_id is None else 1000))


_CHECKPOINT: Final = "training_runs/{run_id}/checkpoints/{kind}/{name}"
# Starlette searches from the top, so the most frequent routes come first.
_TABLE: Final[list[_Row]] = [
    ("POST", "retrieve_future", Endpoint(_retrieve, requests.Retrieve)),
    _work("asample", requests.AsampleRequest, sampling.sample, large=True),
    ("POST", "forward_backward", Endpoint(_forward_backward, takes_work=True, large=True)),
    _work("optim_step", requests.OptimStep, Service.optim_step),
    ("POST", "session_heartbeat", Endpoint(_heartbeat, requests.SessionOnly)),
    _query("healthz", lambda service, _: listing.health(service)),
    _work("save_weights", requests.SaveWeights, Service.save_weights),
    _work("save_weights_for_sampler", requests.SaveForSampler, Service.save_for_sampler),
    _work("save_weights_external", requests.SaveExternal, Service.save_external),
    _work("load_weights", requests.LoadWeights, Service.load_weights),
    _query("client/config", lambda service, _: listing.client_config(service), "POST"),
    _query("client/dynamic_config", lambda service, _: {}, "POST"),
    _query("telemetry", lambda service, _: {"status": "accepted"}, "POST"),
    _work("create_session", requests.CreateSession, Service.create_session),
    _work("create_model", requests.CreateModel, Service.create_model),
    ("POST", "get_info", Endpoint(listing.model_info, requests.ModelOnly)),
    _work("create_sampling_session", requests.CreateSamplingSession, sampling.create_sampling_session),
    _query("get_server_capabilities", lambda service, _: listing.capabilities(service)),
    _query("evsys/model", lambda service, r: listing.evsys_model(service, r.query_params.get("base_model"))),
    ("POST", "weights_info", Endpoint(listing.weights_info, requests.WeightsInfo, in_files=True)),
    _query("training_runs", lambda service, r: listing.list_runs(service, **_page(r, 20)), in_files=True),
    _query("training_runs/{run_id}", lambda service, r: listing.describe_run(service, **r.path_params), in_files=True),
    _query("training_runs/{run_id}/checkpoints", _checkpoints, in_files=True),
    ("PUT", f"{_CHECKPOINT}/ttl", Endpoint(_set_ttl, in_files=True)),
    ("DELETE", _CHECKPOINT, Endpoint(_delete, in_files=True)),
    ("GET", f"{_CHECKPOINT}/external_weights_urls", Endpoint(_addresses, in_files=True)),
    ("GET", "external_weights/{permission}/{run_id}/{name}/{file:path}", Endpoint(_download, in_files=True)),
    _query("checkpoints", _checkpoints, in_files=True),
    _query("sessions", lambda service, _: listing.sessions(service)),
    _query("sessions/{session_id}", lambda service, r: listing.session(service, **r.path_params)),
    ("POST", "sessions/{session_id}/finish", Endpoint(_end_session)),
    _query("samplers/{sampler_id}", lambda service, r: listing.sampler(service, **r.path_params)),
]

ROUTES: Final = [
    *(Route(f"{ROOT}/{path}", endpoint, methods=[method]) for method, path, endpoint in _TABLE),
    *(
        Route(path, Endpoint(handler, takes_work=method == "POST", large=path != openai.FEEDBACK), methods=[method])
        for method, path, handler in openai.TABLE
    ),
]
