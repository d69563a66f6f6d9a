"""Routes for clients: streams of records, single records, and uploads of datasets and benchmarks.

`/sdk/generations/...` is the former name of `/sdk/runs/...`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, Path, Query, Request
from fastapi.responses import Response
from pydantic import Field
from sqlalchemy import Connection, Engine

from ....errors import DataError
from ...client.connection import new_id
from ...records import check_id
from ...shapes.experiment import ApiShape
from ...shapes.record import DataEntry
from ...views.source import DataKind, NotFound
from ..ingest import wire
from ..ingest.ingest import Ingest, open_requests
from ..storage import datasets
from ..storage.writer import Writer
from .routing import GuardedRouter, identity_of

type Object = dict[str, Any]
type Id = Annotated[str, Path(min_length=1, max_length=200)]
type Seq = Annotated[int, Query(ge=0, le=1 << 53)]
type Piece = Annotated[int, Path(ge=0, le=1_000_000)]
type Whole = Annotated[int, Field(ge=-(1 << 53), le=1 << 53)]
_RAW: Object = {"requestBody": {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}, "required": True}}


class Fields(ApiShape):
    """Fields of an experiment or a run (`dashboard/records.py` lists them)."""

    id: str | None = Field(default=None, max_length=200)
    experiment_id: str | None = Field(default=None, max_length=200)
    fields: dict[str, Any] = {}


class Steps(ApiShape):
    """Metrics of one step."""

    step: Whole
    metrics: dict[str, float | None]


class SentScoring(ApiShape):
    """One scoring of a run."""

    metrics: dict[str, Any]
    benchmark_id: str | None = None
    name: str = Field(default="", max_length=300)
    split: str = Field(default="test", max_length=100)
    step: Whole = 0


class Predictions(ApiShape):
    """Predictions of one scoring."""

    rows: list[dict[str, Any]] = Field(max_length=10_000)
    name: str = Field(default="", max_length=300)
    split: str = Field(default="test", max_length=100)
    step: Whole = 0


class Announced(ApiShape):
    """The announcement of rows to upload."""

    name: str = Field(max_length=80)
    split: str = Field(max_length=32)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    version: int | None = Field(default=None, ge=1, le=1_000_000_000)
    format: str = Field(default="", max_length=100)
    metadata: dict[str, Any] = {}


class Made(ApiShape):
    """The id of a created object."""

    id: str


def add_sdk_routes(app: FastAPI, engine: Engine, writer: Writer, ingest: Ingest) -> None:
    """Add the routes for clients."""
    routes = GuardedRouter(app, "sdk")
    _stream_routes(routes, engine, writer, ingest)
    _record_routes(routes, writer, ingest)
    _upload_routes(routes, engine, writer)


def _stream_routes(routes: GuardedRouter, engine: Engine, writer: Writer, ingest: Ingest) -> None:
    @routes.add("POST", "/sdk/streams/{stream}/", "write", response_class=Response, openapi_extra=_RAW)
    async def take_batch(request: Request, stream: Id, seq: Seq) -> Response:
        """Store records of a stream from number `seq` on, one JSON object per line; each is stored exactly once."""
        check_id(stream, "the stream's id")
        project = identity_of(request).project
        body = await request.body()
        # Not `splitlines`, which also splits at carriage returns: the client counts line feeds.
        lines = body.removesuffix(b"\n").split(b"\n") if body else []

        def store(connection: Connection) -> Any:
            return ingest.take(connection, project, stream, seq, lines)

        # Awaited instead of blocking a thread, because many clients would use up the thread pool.
        result = await asyncio.wrap_future(writer.submit(store))
        answer = {"next": result.next, "rejected": result.rejected, "requests": result.requests}
        return Response(msgspec.json.encode(answer), media_type="application/json")

    @routes.add("GET", "/sdk/experiments/{id}/requests/", "write")
    def poll_requests(request: Request, id: Id) -> list[Object]:
        """The open requests for an experiment."""
        with engine.connect() as connection:
            return open_requests(connection, identity_of(request).project, id)


def _record_routes(routes: GuardedRouter, writer: Writer, ingest: Ingest) -> None:
    def apply(request: Request, record: wire.Record) -> None:
        project = identity_of(request).project
        writer.call(lambda connection: ingest.apply(connection, project, record))

    @routes.add("POST", "/sdk/experiments/", "write", response_model=Made)
    def create_experiment(request: Request, body: Fields) -> Made:
        """Report an experiment."""
        if not body.fields.get("name"):
            raise DataError('an experiment needs a name. Send {"fields": {"name": ...}}.')
        id = body.id or new_id()
        apply(request, wire.ExperimentSet(id, body.fields))
        return Made(id=id)

    @routes.add("PATCH", "/sdk/experiments/{id}/", "write", response_model=Made)
    def update_experiment(request: Request, id: Id, body: Fields) -> Made:
        """Update fields of an experiment."""
        apply(request, wire.ExperimentSet(id, body.fields))
        return Made(id=id)

    def add(noun: str) -> None:
        @routes.add("POST", f"/sdk/{noun}/", "write", response_model=Made, name=f"create_{noun}")
        def create_run(request: Request, body: Fields) -> Made:
            """Report a run of an experiment."""
            id = body.id or new_id()
            if body.experiment_id is None:
                raise DataError("a run needs experiment_id, the experiment it belongs to.")
            apply(request, wire.RunSet(id, body.fields, body.experiment_id))
            return Made(id=id)

        @routes.add("PATCH", f"/sdk/{noun}/{{id}}/", "write", response_model=Made, name=f"update_{noun}")
        def update_run(request: Request, id: Id, body: Fields) -> Made:
            """Update fields of a run."""
            apply(request, wire.RunSet(id, body.fields, body.experiment_id))
            return Made(id=id)

        @routes.add("POST", f"/sdk/{noun}/{{id}}/step/", "write", response_model=Made, name=f"step_{noun}")
        def log_step(request: Request, id: Id, body: Steps) -> Made:
            """Report the metrics of one step."""
            apply(request, wire.StepRecord(id, {**body.metrics, "step": body.step}, time.time()))
            return Made(id=id)

        @routes.add("POST", f"/sdk/{noun}/{{id}}/eval/", "write", response_model=Made, name=f"eval_{noun}")
        def log_eval(request: Request, id: Id, body: SentScoring) -> Made:
            """Report a scoring."""
            score = new_id()
            apply(request, wire.ScoreRecord(score, id, body.model_dump(exclude_none=True)))
            return Made(id=score)

        @routes.add("POST", f"/sdk/{noun}/{{id}}/predictions/", "write", response_model=Made, name=f"predict_{noun}")
        def log_predictions(request: Request, id: Id, body: Predictions) -> Made:
            """Report predictions of a scoring."""
            apply(request, wire.RolloutRows(id, body.split, body.name, body.step, body.rows))
            return Made(id=id)

    add("runs")
    add("generations")


def _upload_routes(routes: GuardedRouter, engine: Engine, writer: Writer) -> None:
    def add(kind: DataKind) -> None:
        base = f"/sdk/{kind}s"

        @routes.add("POST", f"{base}/", "write", name=f"announce_{kind}")
        def announce(request: Request, body: Announced) -> Object:
            """Announce rows; return their id and the number of the next piece."""
            project = identity_of(request).project
            return writer.call(lambda c: datasets.begin_upload(c, project, kind, body.model_dump()))

        @routes.add("PUT", f"{base}/{{id}}/pieces/{{piece}}", "write", openapi_extra=_RAW, name=f"put_{kind}_piece")
        async def put_piece(request: Request, id: Id, piece: Piece) -> Object:
            """Store one piece of the rows as JSONL; pieces must come in order."""
            project, data = identity_of(request).project, await request.body()
            future = writer.submit(lambda c: datasets.add_piece(c, project, kind, id, piece, data))
            return {"next_piece": await asyncio.wrap_future(future)}

        @routes.add("POST", f"{base}/{{id}}/finish", "write", response_model=DataEntry, name=f"finish_{kind}")
        def finish(request: Request, id: Id) -> DataEntry:
            """Check the rows against their hash and make them readable."""
            project = identity_of(request).project
            entry = writer.call(lambda c: datasets.finish_upload(c, project, kind, id))
            if entry is None:
                raise DataError(f"the rows of {kind} {id} do not have the announced hash. Send them again.")
            return entry

        @routes.add("GET", f"{base}/{{id}}", "read", response_model=DataEntry, name=f"describe_{kind}")
        def describe(request: Request, id: Id) -> DataEntry:
            """The entry with this id."""
            with engine.connect() as connection:
                return datasets.entry_of(connection, identity_of(request).project, kind, id)

        @routes.add("GET", f"{base}/{{id}}/pieces/{{piece}}", "read", name=f"get_{kind}_piece", response_class=Response)
        def get_piece(request: Request, id: Id, piece: Piece) -> Response:
            """One piece of the rows as JSONL; 404 after the last."""
            with engine.connect() as connection:
                body = datasets.read_lines(connection, identity_of(request).project, kind, id, piece)
            if not body:
                raise NotFound(f"piece {piece} of {kind}", id)
            return Response(body, media_type="application/x-ndjson", headers={"content-disposition": "attachment"})

    add("dataset")
    add("benchmark")
