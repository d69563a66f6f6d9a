"""The closed loops of a project: of this disk, as who starts the application says how to read them, or as sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from sqlalchemy import Engine, select

from ...redact import redact
from ..shapes import LoopPage, Loops
from . import schema
from .routing import GuardedRouter
from .stored_rows import read_object

type ReadLoops = Callable[[], Sequence[dict[str, Any]]]


def read_loops(engine: Engine, project: str) -> list[dict[str, Any]]:
    """What clients sent of the loops of a project."""
    table = schema.loop
    query = select(table.c.page).where(table.c.project_id == project).order_by(table.c.system)
    with engine.connect() as connection:
        return [read_object(page) for page in connection.execute(query).scalars()]


def add_loop_routes(app: FastAPI, read: Callable[[Request], Sequence[dict[str, Any]]]) -> None:
    """What can be read of loops."""
    routes = GuardedRouter(app, "read")

    @routes.add("GET", "/loops", "read", response_model=Loops)
    def list_loops(request: Request) -> Loops:
        """Every loop with its rounds, decisions, verdicts and deployments."""
        return Loops(items=[LoopPage.model_validate(redact(one)) for one in read(request)])
