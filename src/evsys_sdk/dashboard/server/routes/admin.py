"""Routes for sessions and the keys of a project."""

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
    """The token to sign in with."""

    token: str = Field(min_length=1, max_length=500)


class NewKey(ApiShape):
    """The request for a new key."""

    name: str = Field(default="", max_length=200)
    scopes: list[Literal["read", "write", "admin"]] = Field(min_length=1, max_length=3)
    expires: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class ApiKey(ApiShape):
    """The metadata of a key, without its secret."""

    id: str
    project_id: str
    name: str
    scopes: list[Scope]
    created: float
    expires: float | None
    last_used: float | None
    revoked: bool


class MadeKey(ApiShape):
    """A new key with its secret, which is not shown again."""

    id: str
    key: str


def add_session_routes(app: FastAPI, gate: AccessGate, describe: Callable[[Request], PageSession]) -> None:
    """Add the routes to sign in, which needs no key, and to sign out."""

    def sign_in(request: Request, body: Token) -> Response:
        """Exchange the token of the URL, or an API key, for a session cookie."""
        cookie = gate.open_session(body.token)
        identity = None if cookie is None else gate.identify_session(cookie)
        if cookie is None or identity is None:
            problem = ApiProblem(error="unauthorized", message="this token is not valid. Start the dashboard again.")
            return JSONResponse(problem.model_dump(), 401)
        request.scope["evsys.identity"] = identity
        answer = JSONResponse(describe(request).model_dump())
        # Not accessible to scripts or other sites; `secure` only with HTTPS, else a browser would not send it.
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
        """End this session."""
        gate.close_session(session_cookie(request.headers.get("cookie", "")))
        answer = Response(status_code=204)
        answer.delete_cookie(COOKIE, path=API_PREFIX)
        return answer


def add_key_routes(app: FastAPI, gate: KeyGate, writer: Writer) -> None:
    """Add the routes for the keys of the caller's project; they need the scope `admin`."""
    routes = GuardedRouter(app, "admin")

    @routes.add("GET", "/keys", "admin", response_model=list[ApiKey])
    def read_keys(request: Request) -> list[Object]:
        """List the keys of this project."""
        project = identity_of(request).project
        return writer.call(lambda connection: list_keys(connection, project))

    @routes.add("POST", "/keys", "admin", response_model=MadeKey)
    def create_key(request: Request, body: NewKey) -> MadeKey:
        """Create a key."""
        project = identity_of(request).project
        id, key = writer.call(
            lambda connection: make_key(connection, project, body.scopes, name=body.name, expires=body.expires)
        )
        return MadeKey(id=id, key=key)

    @routes.add("DELETE", "/keys/{id}", "admin")
    def end_key(request: Request, id: str) -> Response:
        """Revoke a key and its sessions."""
        project = identity_of(request).project
        if not writer.call(lambda connection: revoke_key(connection, project, id)):
            raise NotFound("key", id)
        gate.forget()
        return Response(status_code=204)
