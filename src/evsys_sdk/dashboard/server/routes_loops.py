"""The closed loops of a project; who starts the application says how they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI

from ...redact import redact
from ..shapes import LoopPage, Loops
from .routing import GuardedRouter

type ReadLoops = Callable[[], Sequence[dict[str, Any]]]


def add_loop_routes(app: FastAPI, read: ReadLoops) -> None:
    """What can be read of loops."""
    routes = GuardedRouter(app, "read")

    @routes.add("GET", "/loops", "read", response_model=Loops)
    def list_loops() -> Loops:
        """Every loop with its rounds, decisions, verdicts and deployments."""
        return Loops(items=[LoopPage.model_validate(redact(one)) for one in read()])
