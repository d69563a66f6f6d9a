"""Signing in and out, and the keys of a project."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from ...client.connection import API_PREFIX
from ...shapes.experiment import ApiProblem, ApiShape, PageSession, Scope
from ...views.source import NotFound
from ..auth import AccessGate, KeyGate, list_keys, make_key, revoke_key
from ..security import COOKIE, session_cookie
from ..storage.writer import Writer
from .routing import PROBLEMS, GuardedRouter, identity_of

type Object = dict[str, Any]


class Token(ApiShape):
    """What somebody signs in with."""

    token: str = Field(min_length=1, max_length=500)


class NewKey(ApiShape):
    """A key to make."""

    name: str = Field(default="", max_length=200)
    scopes: list[Literal["read", "write", "admin"]] = Field(min_length=1, max_length=3)
    expires: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class ApiKey(ApiShape):
    """A key, without the key."""

    id: str
    project_id: str
    name: str
    scopes: list[Scope]
    created: float
    expires: float | None
    last_used: float | None
    revoked: bool


class MadeKey(ApiShape):
    """A new key; this is the only time it is shown."""

    id: str
    key: str


def add_session_routes(app: FastAPI, gate: AccessGate, describe: Callable[[Request], PageSession]) -> None:
    """Signing in is the one thing that needs no key: it is how a browser shows that it has one."""

    def sign_in(request: Request, body: Token) -> Response:
        """Exchange the token of the address, or an API key, for a cookie."""
        cookie = gate.open_session(body.token)
        identity = None if cookie is None else gate.identify_session(cookie)
        if cookie is None or identity is None:
            problem = ApiProblem(error="unauthorized", message="this token is not valid. Start the dashboard again.")
            return JSONResponse(problem.model_dump(), 401)
        request.scope["evsys.identity"] = identity
        answer = JSONResponse(describe(request).model_dump())
        # Out of reach of scripts and of requests from other pages; on plain HTTP a browser would not send a secure one.
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", secure=secure, path=API_PREFIX)
        return answer

    app.add_api_route(
        f"{API_PREFIX}/session",
        sign_in,
        methods=["POST"],
        response_model=PageSession,
        responses=PROBLEMS,
        tags=["session"],
        openapi_extra={"x-evsys-scope": "none"},
    )
    routes = GuardedRouter(app, "session")

    @routes.add("DELETE", "/session", "read")
    def sign_out(request: Request) -> Response:
        """Forget this session."""
        gate.close_session(session_cookie(request.headers.get("cookie", "")))
        answer = Response(status_code=204)
        answer.delete_cookie(COOKIE, path=API_PREFIX)
        return answer


def add_key_routes(app: FastAPI, gate: KeyGate, writer: Writer) -> None:
    """The keys of the project that is asking; scope admin."""
    routes = GuardedRouter(app, "admin")

    @routes.add("GET", "/keys", "admin", response_model=list[ApiKey])
    def read_keys(request: Request) -> list[Object]:
        """The keys of this project."""
        project = identity_of(request).project
        return writer.call(lambda connection: list_keys(connection, project))

    @routes.add("POST", "/keys", "admin", response_model=MadeKey)
    def create_key(request: Request, body: NewKey) -> MadeKey:
        """Make a key."""
        project = identity_of(request).project
        id, key = writer.call(
            lambda connection: make_key(connection, project, body.scopes, name=body.name, expires=body.expires)
        )
        return MadeKey(id=id, key=key)

    @routes.add("DELETE", "/keys/{id}", "admin")
    def end_key(request: Request, id: str) -> Response:
        """End a key and the sessions it opened, at once."""
        project = identity_of(request).project
        if not writer.call(lambda connection: revoke_key(connection, project, id)):
            raise NotFound("key", id)
        gate.forget()
        return Response(status_code=204)
