"""The loops and campaigns of a project that clients reported, and the requests for them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Engine, insert, select

from ....errors import show
from ...client.connection import new_id
from ...shapes.experiment import NewProjectRequest
from ...views.source import BadQuery
from ..ingest.ingest import open_requests
from . import schema
from .store import CAMPAIGN, page_id
from .views import read_object
from .writer import Writer


class StoredPages:
    """The loops and campaigns of a project in the database."""

    def __init__(self, engine: Engine, writer: Writer, project: str) -> None:
        self._engine, self._writer, self._project = engine, writer, project

    def loops(self) -> Sequence[dict[str, Any]]:
        return self._pages(schema.loop.c.system.not_like(f"{CAMPAIGN}%"), "state")

    def campaigns(self) -> Sequence[dict[str, Any]]:
        return self._pages(schema.loop.c.system.like(f"{CAMPAIGN}%"), "why")

    def _pages(self, condition: Any, status: str) -> list[dict[str, Any]]:
        """The pages that match a condition; open requests are appended to the text of the key `status`."""
        table = schema.loop
        query = select(table.c.system, table.c.page).where(table.c.project_id == self._project, condition)
        pages: list[dict[str, Any]] = []
        with self._engine.connect() as connection:
            for system, stored in connection.execute(query.order_by(table.c.system)).all():
                page = read_object(stored)
                requested = [
                    f"{entry['kind']} requested" for entry in open_requests(connection, self._project, page_id(system))
                ]
                pages.append(page | {status: "; ".join(filter(None, [str(page.get(status, "")), *requested]))})
        return pages

    def carry_out(self, project_kind: str, name: str, request: NewProjectRequest) -> str:
        """Store a request for the process that runs the campaign or loop."""
        system = f"{CAMPAIGN}{name}" if project_kind == "campaign" else name
        table, fields = schema.loop, request.model_dump(exclude={"hours"})
        if request.kind == "extend":
            fields["subject"] = f"{request.hours:g}"
        values = {"id": new_id(), "time": time.time(), "state": "open", "answer": "", **fields}

        def write(connection: Connection) -> bool:
            mine = (table.c.project_id == self._project, table.c.system == system)
            if connection.execute(select(table.c.system).where(*mine)).first() is None:
                return False
            about = {"project_id": self._project, "experiment_id": page_id(system)}
            connection.execute(insert(schema.request).values(**about, **values))
            return True

        if not self._writer.call(write):
            raise BadQuery(f"this project has no {project_kind} {show(name)}.")
        return "requested: the process that runs it carries it out"
