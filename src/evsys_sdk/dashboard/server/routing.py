"""Routes that say which scope they need. One that does not is never mounted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.routing import APIRoute

from ..shapes import Problem, Scope
from .auth import Identity, require

_SCOPE_KEY = "x-evsys-scope"
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem} for status in (400, 401, 403, 404, 409, 413, 421, 422, 503)
}


def identity_of(request: Request) -> Identity:
    """Who asks; the guard has made sure of it."""
    return request.scope["evsys.identity"]


class GuardedRouter:
    """Adds routes together with the scope that each needs."""

    def __init__(self, tag: str) -> None:
        self.router = APIRouter(tags=[tag], responses=PROBLEMS)

    def add[F: Callable[..., Any]](self, method: str, path: str, scope: Scope, **options: Any) -> Callable[[F], F]:
        """Register a function for a method and a path."""

        def check(request: Request) -> None:
            require(identity_of(request), scope)

        def register(function: F) -> F:
            extra = {_SCOPE_KEY: scope, **options.pop("openapi_extra", {})}
            self.router.add_api_route(
                path, function, methods=[method], dependencies=[Depends(check)], openapi_extra=extra, **options
            )
            return function

        return register


def guarded_routes(app: FastAPI) -> list[tuple[str, str, Scope]]:
    """Method, path and scope of every route below the API; raises for one that declares none."""
    found: list[tuple[str, str, Scope]] = []
    for route in app.routes:
        if isinstance(route, APIRoute):
            scope = (route.openapi_extra or {}).get(_SCOPE_KEY)
            if scope is None:
                raise RuntimeError(f"the route {route.path} does not say which scope it needs")
            found += [(method, route.path, scope) for method in sorted(route.methods or ())]
    return found
