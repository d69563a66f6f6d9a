"""Which path is answered by what. The whole surface of the server is this table."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

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
type Handler = Callable[[Service, Request, bytes], Awaitable[Result]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Reads a request, asks the handler, sends the answer."""

    handler: Handler
    takes_work: bool = False
    """Whether it is refused while the server shuts down."""
    large: bool = False
    """Whether requests may be as long as the server allows; otherwise a megabyte is too much."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service: Service = scope["service"]
        if self.takes_work and service.draining:
            raise Refusal(503, "the server is shutting down and takes no new work.", retry_after_s=5)
        request = Request(scope, receive)
        with ResultReading(service.memory, *self._longest(service)) as room:
            result = await self.handler(service, request, await _read_body(request, service, room))
        answer = result if isinstance(result, Response) else answer_json(result)
        await answer(scope, receive, send)

    def _longest(self, service: Service) -> tuple[int, str]:
        most = service.settings.max_request_bytes
        if self.large or most < _SMALL:
            return most, "Send smaller batches, or raise --max-request-mb."
        return _SMALL, "No request of this kind needs to be that long."


class Unknown(Endpoint):
    """Answers every path that is not in the table."""

    def __init__(self) -> None:
        super().__init__(_refuse_unknown)


async def _read_body(request: Request, service: Service, room: ResultReading) -> bytes:
    headers = dict(request.scope["headers"])
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise Refusal(415, "compressed requests are not taken. Send the body as it is.")
    # What cannot be read as a number announces nothing; what really comes is counted as it comes.
    announced = headers.get(b"content-length", b"0")
    room.check_announced(int(announced) if announced.isdigit() and len(announced) < 16 else 0)
    try:
        async with asyncio.timeout(service.settings.read_s):
            return await _receive_all(request, room)
    except TimeoutError:
        raise Refusal(408, f"the request did not arrive within {service.settings.read_s:g} s.") from None


async def _receive_all(request: Request, room: ResultReading) -> bytes:
    message = await request.receive()
    # Most requests come in one piece, which need not be copied.
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


async def _refuse_unknown(service: Service, request: Request, body: bytes) -> Result:
    """A request that has a number among those of its model uses it up, also when no one here knows what it asks."""
    path = show(request.scope["path"])
    refusal = Refusal(404, f"this server does not answer {request.method} {path}. docs/serve.md lists what it does.")
    service.use_up(body, refusal)
    raise refusal


def _page(request: Request, default: int) -> dict[str, int]:
    """`limit` and `offset` of a listing."""
    found: dict[str, int] = {}
    for name, fallback, most in (("limit", default, 1000), ("offset", 0, 10**9)):
        text = request.query_params.get(name, str(fallback))
        if not re.fullmatch("[0-9]{1,10}", text) or int(text) > most:
            raise Refusal(400, f"{name} must be a whole number between 0 and {most} (got {show(text)}).")
        found[name] = int(text)
    return found


def _at_once[R: requests.Strict](
    kind: type[R],
    answer: Callable[[Service, R], Result | Awaitable[Result]],
    *,
    takes_work: bool = True,
    large: bool = False,
) -> Endpoint:
    """For a JSON request."""

    async def handler(service: Service, request: Request, body: bytes) -> Result:
        found = answer(service, read(kind, body))
        return await found if isinstance(found, Awaitable) else found

    return Endpoint(handler, takes_work, large)


def _in_turn[R: requests.Numbered](kind: type[R], answer: Callable[[Service, R], Result]) -> Endpoint:
    """For a JSON request that has its place among the requests of a model."""

    async def handler(service: Service, request: Request, body: bytes) -> Result:
        try:
            found = read(kind, body)
        except Refusal as refusal:
            service.use_up(body, refusal)
            raise
        return answer(service, found)

    return Endpoint(handler, takes_work=True)


def _in_files(answer: Callable[[Service, Request, bytes], Result]) -> Endpoint:
    """For what is looked up or changed in files, away from the event loop."""

    async def handler(service: Service, request: Request, body: bytes) -> Result:
        return await asyncio.to_thread(answer, service, request, body)

    return Endpoint(handler)


def _in_memory(answer: Callable[[Service, Request], Result]) -> Endpoint:
    """For what is looked up in memory, on the event loop that owns it."""

    async def handler(service: Service, request: Request, body: bytes) -> Result:
        return answer(service, request)

    return Endpoint(handler)


async def _forward_backward(service: Service, request: Request, body: bytes) -> Result:
    return service.forward_backward(*await service.read_training(body), size=len(body))


def _end_session(service: Service, request: Request) -> Result:
    # Not awaited: it waits for everything that the session has submitted.
    service.follow(service.end_session(service.sessions.get(request.path_params["session_id"])))
    return {}


def _sign_of_life(service: Service, request: requests.SessionOnly) -> Result:
    service.sessions.get(request.session_id)
    return {"type": "session_heartbeat"}


async def _retrieve(service: Service, request: requests.Retrieve) -> Result:
    service.sessions.touch(request.request_id)
    return await service.futures.fetch(request.request_id, service.settings.poll_s)


def _evsys_model(service: Service, request: Request) -> Result:
    return listing.evsys_model(service, request.query_params.get("base_model"))


def _weights_info(service: Service, request: Request, body: bytes) -> Result:
    return listing.weights_info(service, read(requests.WeightsInfo, body))


def _set_ttl(service: Service, request: Request, body: bytes) -> Result:
    service.checkpoints.set_ttl(_place(request), read(requests.Ttl, body).ttl_seconds)
    return {}


def _delete(service: Service, request: Request, body: bytes) -> Result:
    service.checkpoints.delete(_place(request))
    return {}


def _place(request: Request) -> CheckpointPlace:
    return CheckpointPlace.of(
        request.path_params["run_id"], f"{request.path_params['kind']}/{request.path_params['name']}"
    )


def _addresses(service: Service, request: Request, body: bytes) -> Result:
    return external.addresses(service.checkpoints, service.signer, _place(request), str(request.base_url))


def _download(service: Service, request: Request, body: bytes) -> Result:
    return external.download(service.checkpoints, service.signer, request)


def _checkpoints_of_run(service: Service, request: Request, body: bytes) -> Result:
    return listing.checkpoints(service, request.path_params["run_id"], **_page(request, 1000))


# Starlette looks from the top, so what is asked most often stands there.
_TABLE: Final[list[tuple[str, str, Endpoint]]] = [
    ("POST", "retrieve_future", _at_once(requests.Retrieve, _retrieve, takes_work=False)),
    ("POST", "asample", _at_once(requests.AsampleRequest, sampling.sample, large=True)),
    ("POST", "forward_backward", Endpoint(_forward_backward, takes_work=True, large=True)),
    ("POST", "optim_step", _in_turn(requests.OptimStep, Service.optim_step)),
    ("POST", "session_heartbeat", _at_once(requests.SessionOnly, _sign_of_life, takes_work=False)),
    ("GET", "healthz", _in_memory(lambda service, _: listing.health(service))),
    ("POST", "save_weights", _in_turn(requests.SaveWeights, Service.save_weights)),
    ("POST", "save_weights_for_sampler", _in_turn(requests.SaveForSampler, Service.save_for_sampler)),
    ("POST", "save_weights_external", _in_turn(requests.SaveExternal, Service.save_external)),
    ("POST", "load_weights", _in_turn(requests.LoadWeights, Service.load_weights)),
    ("POST", "client/config", _in_memory(lambda service, _: listing.client_config(service))),
    ("POST", "client/dynamic_config", _in_memory(lambda service, _: {})),
    ("POST", "telemetry", _in_memory(lambda service, _: {"status": "accepted"})),
    ("POST", "create_session", _at_once(requests.CreateSession, Service.create_session)),
    ("POST", "create_model", _at_once(requests.CreateModel, Service.create_model)),
    ("POST", "get_info", _at_once(requests.ModelOnly, listing.model_info, takes_work=False)),
    ("POST", "create_sampling_session", _at_once(requests.CreateSamplingSession, sampling.create_sampling_session)),
    ("GET", "get_server_capabilities", _in_memory(lambda service, _: listing.capabilities(service))),
    ("GET", "evsys/model", _in_memory(_evsys_model)),
    ("POST", "weights_info", _in_files(_weights_info)),
    ("GET", "training_runs", _in_files(lambda service, r, _: listing.list_runs(service, **_page(r, 20)))),
    ("GET", "training_runs/{run_id}", _in_files(lambda service, r, _: listing.describe_run(service, **r.path_params))),
    ("GET", "training_runs/{run_id}/checkpoints", _in_files(_checkpoints_of_run)),
    ("PUT", "training_runs/{run_id}/checkpoints/{kind}/{name}/ttl", _in_files(_set_ttl)),
    ("DELETE", "training_runs/{run_id}/checkpoints/{kind}/{name}", _in_files(_delete)),
    ("GET", "training_runs/{run_id}/checkpoints/{kind}/{name}/external_weights_urls", _in_files(_addresses)),
    ("GET", "external_weights/{permission}/{run_id}/{name}/{file:path}", _in_files(_download)),
    ("GET", "checkpoints", _in_files(lambda service, r, _: listing.checkpoints(service, None, **_page(r, 100)))),
    ("GET", "sessions", _in_memory(lambda service, _: listing.sessions(service))),
    ("GET", "sessions/{session_id}", _in_memory(lambda service, r: listing.session(service, **r.path_params))),
    ("POST", "sessions/{session_id}/finish", _in_memory(_end_session)),
    ("GET", "samplers/{sampler_id}", _in_memory(lambda service, r: listing.sampler(service, **r.path_params))),
]

ROUTES: Final = [
    *(Route(f"{ROOT}/{path}", endpoint, methods=[method]) for method, path, endpoint in _TABLE),
    *(
        Route(path, Endpoint(handler, takes_work=method == "POST", large=path != openai.FEEDBACK), methods=[method])
        for method, path, handler in openai.TABLE
    ),
]
