"""Routes with the scope that they need; a route without a scope is refused."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from ...client.connection import API_PREFIX
from ...shapes.experiment import ApiProblem, ApiShape, Scope
from ..auth import Caller, require

_SCOPE_KEY = "x-evsys-scope"
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": ApiProblem} for status in (400, 401, 403, 404, 409, 413, 421, 422, 503)
}


def identity_of(request: Request) -> Caller:
    """The caller of a request, set by the guard."""
    return request.scope["evsys.identity"]


class GuardedRouter:
    """Adds routes with their scopes below the API prefix of an application.

    Routes are added directly instead of by an included router, so that `app.routes` lists every one.
    """

    def __init__(self, app: FastAPI, tag: str) -> None:
        self._app, self._tag = app, tag

    def add[F: Callable[..., Any]](self, method: str, path: str, scope: Scope, **options: Any) -> Callable[[F], F]:
        """Register a function for a method and a path."""

        async def check(request: Request) -> None:  # async, because a plain function would run on another thread
            require(identity_of(request), scope)

        def register(function: F) -> F:
            extra = {_SCOPE_KEY: scope, **options.pop("openapi_extra", {})}
            model = options.get("response_model")
            is_shape = isinstance(model, type) and issubclass(model, ApiShape)
            self._app.add_api_route(
                f"{API_PREFIX}{path}",
                _write_json(function) if is_shape else function,
                methods=[method],
                dependencies=[Depends(check)],
                openapi_extra=extra,
                tags=[self._tag],
                responses=PROBLEMS,
                **options,
            )
            return function

        return register


def _write_json(function: Callable[..., Any]) -> Callable[..., Response]:
    """Wrap a route so that it returns JSON: serialized on its thread, without a second validation by FastAPI."""

    @functools.wraps(function)
    def answer(*args: Any, **named: Any) -> Response:
        return Response(function(*args, **named).model_dump_json(), media_type="application/json")

    # FastAPI reads the signature; its annotations must be resolved in the function's module, not in this one.
    answer.__dict__["__signature__"] = inspect.signature(function, eval_str=True)
    return answer


def list_routes(app: FastAPI) -> list[tuple[str, str, Scope]]:
    """List method, path and scope of every route of an application; raise if a route declares no scope."""
    routes: list[tuple[str, str, Scope]] = []
    for route in app.routes:
        declared = route.openapi_extra if isinstance(route, APIRoute) else None
        scope = (declared or {}).get(_SCOPE_KEY)
        if scope is None or not isinstance(route, APIRoute):
            raise RuntimeError(f"the route {getattr(route, 'path', route)} declares no scope")
        routes += [(method, route.path, scope) for method in sorted(route.methods or ())]
    return routes
