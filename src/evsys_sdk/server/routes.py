"""Which path is answered by what. The whole surface of the server is this table."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from . import listing, requests, sampling
from .answer import Answer, Refusal
from .checkpoints import Place
from .requests import read
from .service import Service


@dataclass(frozen=True, slots=True)
class Request:
    """What a handler may look at."""

    body: bytes
    query: Mapping[str, str]
    path: Mapping[str, str]
    """The named parts of the path."""

    def page(self, default: int) -> dict[str, int]:
        """`limit` and `offset` of a listing."""
        found: dict[str, int] = {}
        for name, fallback, most in (("limit", default, 1000), ("offset", 0, 10**9)):
            text = self.query.get(name, str(fallback))
            if not text.isdecimal() or not int(text) <= most:
                raise Refusal(400, f"{name} must be a whole number between 0 and {most} (got {text!r}).")
            found[name] = int(text)
        return found


type Result = dict[str, Any] | Answer
type Handler = Callable[[Service, Request], Awaitable[Result]]


@dataclass(frozen=True, slots=True)
class Route:
    """One handler."""

    handler: Handler
    takes_work: bool = False
    """Whether it is refused while the server shuts down."""
    open: bool = False
    """Whether it needs no key."""


def _at_once[R: requests.Strict](
    kind: type[R], answer: Callable[[Service, R], Result | Awaitable[Result]], *, takes_work: bool = True
) -> Route:
    """A route for a JSON request."""

    async def handler(service: Service, request: Request) -> Result:
        found = answer(service, read(kind, request.body))
        return await found if isinstance(found, Awaitable) else found

    return Route(handler, takes_work=takes_work)


def _told(answer: Callable[[Service, Request], Result]) -> Route:
    """A route that only looks something up, in files perhaps."""

    async def handler(service: Service, request: Request) -> Result:
        return await asyncio.to_thread(answer, service, request)

    return Route(handler)


def _known(answer: Callable[[Service, Request], Result], *, open: bool = False) -> Route:
    """A route that looks something up in memory, on the event loop that owns it."""

    async def handler(service: Service, request: Request) -> Result:
        return answer(service, request)

    return Route(handler, open=open)


def _in_turn[R: requests.Numbered](kind: type[R], answer: Callable[[Service, R], Result]) -> Route:
    """A route for a JSON request that has its place among the requests of a model."""

    async def handler(service: Service, request: Request) -> Result:
        try:
            found = read(kind, request.body)
        except Refusal as refusal:
            service.use_up(request.body, refusal)
            raise
        return answer(service, found)

    return Route(handler, takes_work=True)


async def _forward_backward(service: Service, request: Request) -> Result:
    return service.forward_backward(*await service.read_training(request.body))


async def _retrieve(service: Service, request: Request) -> Result:
    request_id = read(requests.Retrieve, request.body).request_id
    service.sessions.touch(request_id)
    return await service.futures.fetch(request_id, service.settings.poll_s)


async def _heartbeat(service: Service, request: Request) -> Result:
    service.sessions.get(read(requests.SessionOnly, request.body).session_id)
    return {"type": "session_heartbeat"}


async def _finish_session(service: Service, request: Request) -> Result:
    service.follow(service.end_session(service.sessions.get(request.path["session"])))
    return {}


def _set_ttl(service: Service, request: Request) -> Result:
    place = Place.of(request.path["run"], request.path["checkpoint"])
    service.checkpoints.set_ttl(place, read(requests.Ttl, request.body).ttl_seconds)
    return {}


def _delete(service: Service, request: Request) -> Result:
    service.checkpoints.delete(Place.of(request.path["run"], request.path["checkpoint"]))
    return {}


def _weights_info(service: Service, request: Request) -> Result:
    return listing.weights_info(service, read(requests.WeightsInfo, request.body).tinker_path)


def _model_info(service: Service, request: Request) -> Result:
    return listing.model_info(service, read(requests.ModelOnly, request.body).model_id)


FIXED: Final[dict[tuple[str, str], Route]] = {
    ("GET", "healthz"): _known(lambda service, _: listing.health(service), open=True),
    ("POST", "client/config"): _known(lambda service, _: listing.client_config(service)),
    ("POST", "client/dynamic_config"): _known(lambda service, _: {}),
    ("POST", "telemetry"): _known(lambda service, _: {"status": "accepted"}),
    ("GET", "get_server_capabilities"): _known(lambda service, _: listing.capabilities(service)),
    ("GET", "evsys/model"): _known(lambda service, r: listing.evsys_model(service, r.query.get("base_model"))),
    ("POST", "create_session"): _at_once(requests.CreateSession, Service.create_session),
    ("POST", "session_heartbeat"): Route(_heartbeat),
    ("POST", "create_model"): _at_once(requests.CreateModel, Service.create_model),
    ("POST", "get_info"): _known(_model_info),
    ("POST", "forward_backward"): Route(_forward_backward, takes_work=True),
    ("POST", "optim_step"): _in_turn(requests.OptimStep, Service.optim_step),
    ("POST", "save_weights"): _in_turn(requests.SaveWeights, Service.save_weights),
    ("POST", "save_weights_for_sampler"): _in_turn(requests.SaveForSampler, Service.save_for_sampler),
    ("POST", "load_weights"): _in_turn(requests.LoadWeights, Service.load_weights),
    ("POST", "create_sampling_session"): _at_once(requests.CreateSamplingSession, sampling.create_sampling_session),
    ("POST", "asample"): _at_once(requests.Sample, sampling.sample),
    ("POST", "retrieve_future"): Route(_retrieve),
    ("POST", "weights_info"): _told(_weights_info),
    ("GET", "training_runs"): _told(lambda service, r: listing.training_runs(service, **r.page(20))),
    ("GET", "checkpoints"): _told(lambda service, r: listing.checkpoints(service, None, **r.page(100))),
    ("GET", "sessions"): _known(
        lambda service, _: {"sessions": [found.session_id for found in service.sessions.all()]}
    ),
}
"""Method and path below `/api/v1/`."""

PATTERNS: Final[list[tuple[str, re.Pattern[str], Route]]] = [
    (method, re.compile(pattern), route)
    for method, pattern, route in [
        (
            "GET",
            r"training_runs/(?P<run>[^/]+)/checkpoints",
            _told(lambda service, r: listing.checkpoints(service, r.path["run"], **r.page(1000))),
        ),
        (
            "GET",
            r"training_runs/(?P<run>[^/]+)",
            _told(lambda service, r: listing.training_run(service, r.path["run"])),
        ),
        ("PUT", r"training_runs/(?P<run>[^/]+)/checkpoints/(?P<checkpoint>.+)/ttl", _told(_set_ttl)),
        ("DELETE", r"training_runs/(?P<run>[^/]+)/checkpoints/(?P<checkpoint>[^/]+/[^/]+)", _told(_delete)),
        ("GET", r"sessions/(?P<session>[^/]+)", _known(lambda service, r: listing.session(service, r.path["session"]))),
        ("POST", r"sessions/(?P<session>[^/]+)/finish", Route(_finish_session)),
        ("GET", r"samplers/(?P<sampler>[^/]+)", _known(lambda service, r: listing.sampler(service, r.path["sampler"]))),
    ]
]


def find(method: str, path: str) -> tuple[Route, dict[str, str]]:
    """The route of a path and its named parts; raises `Refusal` where there is none."""
    name = path.removeprefix("/api/v1/")
    if route := FIXED.get((method, name)):
        return route, {}
    for allowed, pattern, route in PATTERNS:
        if allowed == method and (match := pattern.fullmatch(name)):
            return route, match.groupdict()
    raise Refusal(404, f"this server does not answer {method} {path}. docs/serve.md lists what it does.")
