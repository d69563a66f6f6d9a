"""The application: routes, the guard around them, and the responses to errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy import Engine, select
from sqlalchemy.exc import DataError as DatabaseDataError
from starlette.exceptions import HTTPException

from ..._version import __version__
from ...errors import DataError, EvsysAuthError, EvsysError
from ...log import get_logger
from ...redact import redact_text
from ...server.operations import Operations
from ..shapes.experiment import PageSession, Scope
from ..views.source import BadQuery, NotFound, RecordSource
from .auth import SCOPES, AccessGate, KeyGate, LocalGate
from .ingest.ingest import GapError, Ingest
from .live import Signal
from .page import PageFiles
from .routes.admin import add_key_routes, add_session_routes
from .routes.read import ProjectPages, add_page_routes, add_read_routes
from .routes.routing import GuardedRouter, identity_of, list_routes
from .routes.sdk import add_sdk_routes
from .security import Guard
from .storage import schema
from .storage.pages import StoredPages
from .storage.records import StoredRecords
from .storage.views import ViewMaker
from .storage.writer import Busy, Writer


def local_app(
    source: RecordSource, gate: LocalGate, hosts: Iterable[str], *, name: str, pages: ProjectPages | None = None
) -> Operations:
    """The application of `evsys dashboard`: the record of one project on this disk, with its loops and campaigns."""

    def describe(request: Request) -> PageSession:
        return _session(request, "local", name)

    signal = Signal()
    app = _application(signal, None)
    add_session_routes(app, gate, describe)
    add_read_routes(app, lambda _: source, describe, signal, polled=True)
    if pages is not None:
        add_page_routes(app, lambda _: pages)
    return Operations(_guard(app, gate, hosts))


def server_app(engine: Engine, hosts: Iterable[str]) -> Operations:
    """The application of `evsys dashboard serve`: the records that clients sent, by project."""
    writer, ingest, signal = Writer(engine), Ingest(), Signal()
    views = ViewMaker(engine, writer)
    gate = KeyGate(engine, writer)
    writer.after_commit.append(signal.ring)  # after the commit, so that a page finds the change
    writer.after_rollback.append(ingest.forget)

    def source(request: Request) -> StoredRecords:
        return StoredRecords(engine, writer, views, identity_of(request).project)

    def describe(request: Request) -> PageSession:
        table = schema.project
        with engine.connect() as connection:
            name = connection.execute(select(table.c.name).where(table.c.id == identity_of(request).project)).scalar()
        return _session(request, "server", str(name or ""))

    app = _application(signal, writer)
    add_session_routes(app, gate, describe)
    add_read_routes(app, source, describe, signal, polled=False)
    add_page_routes(app, lambda request: StoredPages(engine, writer, identity_of(request).project))
    add_sdk_routes(app, engine, writer, ingest)
    add_key_routes(app, gate, writer)
    return Operations(_guard(app, gate, hosts), ready=lambda: _ready(engine))


def _ready(engine: Engine) -> str:
    try:
        with engine.connect() as connection:
            connection.execute(select(1))
    except Exception as error:  # drivers raise many types
        return f"database: {type(error).__name__}"
    return ""


def _session(request: Request, mode: Any, name: str) -> PageSession:
    identity = identity_of(request)
    scopes: list[Scope] = [scope for scope in SCOPES if scope in identity.scopes]
    return PageSession(
        mode=mode, project=identity.project, project_name=name, scopes=scopes, version=__version__, can_stop=True
    )


def _application(signal: Signal, writer: Writer | None) -> FastAPI:
    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncGenerator[None]:
        signal.bind(asyncio.get_running_loop())
        yield
        signal.close()
        if writer is not None:
            await asyncio.to_thread(writer.close)

    # FastAPI's schema route is off; the one below needs a key.
    app = FastAPI(
        title="evsys dashboard",
        version=__version__,
        lifespan=life,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for kind, answer in _ANSWERS.items():
        app.add_exception_handler(kind, answer)
    return app


def _guard(app: FastAPI, gate: AccessGate, hosts: Iterable[str]) -> Guard:
    routes = GuardedRouter(app, "schema")

    @routes.add("GET", "/openapi.json", "read", include_in_schema=False)
    def read_schema() -> dict[str, Any]:
        """The whole API as an OpenAPI schema."""
        return app.openapi()

    list_routes(app)  # raises for a route that declares no scope
    # Last, because it matches every path.
    app.add_route("/{path:path}", PageFiles().answer, methods=["GET", "HEAD"], include_in_schema=False)
    return Guard(app, gate, hosts)


def _problem(status: int, error: str, message: str, **more: Any) -> JSONResponse:
    return JSONResponse({"error": error, "message": message, **more}, status)


def _answer(status: int, error: str) -> Callable[[Request, Exception], JSONResponse]:
    return lambda _, problem: _problem(status, error, redact_text(str(problem)))


def _http_answer(_: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, HTTPException)
    names = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}
    return _problem(problem.status_code, names.get(problem.status_code, "bad_request"), str(problem.detail))


def _invalid(_: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, RequestValidationError)
    problems = [f"{'.'.join(str(step) for step in error['loc'])}: {error['msg']}" for error in problem.errors()[:5]]
    return _problem(422, "bad_request", f"{'; '.join(problems)}.")


def _gap(_: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, GapError)
    return _problem(409, "gap", str(problem), next=problem.next_seq)


def _answer_unexpected(_: Request, problem: Exception) -> JSONResponse:
    get_logger(__name__).error("a request failed: %s: %s", type(problem).__name__, redact_text(str(problem)))
    return _problem(500, "internal", "internal error; the server's log has the cause.")


# Starlette selects the nearest base class, so the order does not matter.
_ANSWERS: dict[Any, Callable[[Request, Exception], JSONResponse]] = {
    NotFound: _answer(404, "not_found"),
    BadQuery: _answer(400, "bad_request"),
    DataError: _answer(422, "bad_request"),
    EvsysAuthError: _answer(401, "unauthorized"),
    PermissionError: _answer(403, "forbidden"),
    Busy: _answer(503, "busy"),
    DatabaseDataError: lambda _, __: _problem(422, "bad_request", "the database cannot hold this text or number."),
    GapError: _gap,
    EvsysError: _answer(422, "bad_request"),
    HTTPException: _http_answer,
    RequestValidationError: _invalid,
    Exception: _answer_unexpected,
}
