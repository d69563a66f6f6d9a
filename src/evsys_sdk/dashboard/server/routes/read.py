"""The routes of the read API, and those for notes, tags, requests and deletion."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any, Protocol

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response, StreamingResponse

from ....errors import EvsysError
from ....history.query import ARCHIVED, Filters
from ....redact import redact
from ...shapes.experiment import (
    ControlRequest,
    Curves,
    ExperimentDetail,
    Experiments,
    Items,
    NewControlRequest,
    NewNote,
    NewProjectRequest,
    Overview,
    PageSession,
    SavedNote,
    Tags,
)
from ...shapes.loops import ActionAnswer, Campaigns, CampaignState, LoopPage, Loops
from ...shapes.record import (
    ArmDetail,
    ComparedRuns,
    DataEntries,
    DataRows,
    Events,
    ExperimentLineage,
    JournalAnchor,
    RolloutDetail,
    Rollouts,
    SpendBreakdown,
)
from ...views import answers, curves, items
from ...views.source import LARGEST_PAGE, BadQuery, ExperimentQuery, RecordSource, RolloutQuery
from ..live import Signal, stream_changes
from .routing import GuardedRouter

type Sources = Callable[[Request], RecordSource]
type Limit = Annotated[int, Query(ge=1, le=LARGEST_PAGE)]
type Word = Annotated[str, Query(max_length=500)]
type Words = Annotated[list[str], Query(max_length=100)]
type Cursor = Annotated[str, Query(max_length=2000)]
type Offset = Annotated[int, Query(ge=0, le=1 << 31)]
type Number = Annotated[float | None, Query(allow_inf_nan=False)]
_NONE: list[str] = []
"""Default of repeatable query parameters; never mutated."""
type Step = Annotated[int | None, Query(ge=-(1 << 53), le=1 << 53)]


def add_read_routes(
    app: FastAPI, source: Sources, session: Callable[[Request], PageSession], signal: Signal, *, polled: bool
) -> None:
    """Add the routes of the read API."""
    routes = GuardedRouter(app, "read")

    @routes.add("GET", "/session", "read", response_model=PageSession)
    def read_session(request: Request) -> PageSession:
        """The session of the caller."""
        return session(request)

    _list_routes(routes, source)
    _experiment_routes(routes, source)
    _rollout_routes(routes, source)
    _data_routes(routes, source)
    _change_routes(routes, source)

    async def stream(request: Request) -> StreamingResponse:
        """Stream changes as server-sent events."""
        last_id = request.headers.get("last-event-id", "")
        since = int(last_id) if last_id.isdecimal() and len(last_id) < 18 else None
        # A browser that reconnects sends the last id, so it misses nothing. The header turns off the buffering of
        # proxies, which would delay events.
        body: AsyncIterator[bytes] = stream_changes(source(request), signal, since, polled=polled)
        return StreamingResponse(body, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    routes.add("GET", "/events", "read", response_class=StreamingResponse)(stream)


def _list_routes(routes: GuardedRouter, source: Sources) -> None:
    @routes.add("GET", "/overview", "read", response_model=Overview)
    def overview(request: Request) -> Overview:
        """The overview of the project."""
        return source(request).overview()

    @routes.add("GET", "/experiments", "read", response_model=Experiments)
    def list_experiments(
        request: Request,
        q: Word = "",
        status: Words = _NONE,
        verdict: Words = _NONE,
        tag: Words = _NONE,
        model: Word = "",
        algorithm: Word = "",
        parent: Word = "",
        sort: Word = "newest",
        limit: Limit = 50,
        cursor: Cursor = "",
        offset: Offset = 0,
    ) -> Experiments:
        """A page of the experiments that match all filters."""
        without = () if ARCHIVED in tag else (ARCHIVED,)
        filters = Filters(status, verdict, tag, algorithm, model, search=q, parent=parent, without=without)
        return source(request).list_experiments(ExperimentQuery(filters, sort, limit, cursor, offset))

    @routes.add("GET", "/compare", "read", response_model=ComparedRuns)
    def compare(request: Request, of: Words = _NONE, a: Word = "", b: Word = "") -> ComparedRuns:
        """Compare runs of any experiments with the first one; `a` and `b` are the first two."""
        return items.compare(source(request), [*filter(None, (a, b)), *of])


def _experiment_routes(routes: GuardedRouter, source: Sources) -> None:
    @routes.add("GET", "/experiments/{id}", "read", response_model=ExperimentDetail)
    def read_experiment(request: Request, id: str) -> ExperimentDetail:
        """The data of an experiment's page."""
        return answers.describe_experiment(source(request), id)

    @routes.add("GET", "/experiments/{id}/arms/{arm}", "read", response_model=ArmDetail)
    def read_arm(request: Request, id: str, arm: str) -> ArmDetail:
        """The details of an arm: one run with one seed."""
        return answers.describe_arm(source(request), id, arm)

    @routes.add("GET", "/experiments/{id}/curves", "read", response_model=Curves)
    def read_curves(
        request: Request,
        id: str,
        metric: Word = "",
        x: Word = "step",
        points: Annotated[int, Query(ge=1, le=curves.MOST_POINTS)] = 500,
        start: Number = None,
        end: Number = None,
        run: Words = _NONE,
        arm: Words = _NONE,
    ) -> Curves:
        """The training curves of one metric."""
        query = curves.CurveQuery(metric, x, points, start, end, run, arm)
        return curves.draw_curves(source(request), id, query)

    @routes.add("GET", "/experiments/{id}/items", "read", response_model=Items)
    def read_items(
        request: Request,
        id: str,
        metric: Word = "",
        a: Word = "",
        b: Word = "",
        limit: Limit = 200,
        cursor: Cursor = "",
    ) -> Items:
        """Compare two runs by task."""
        return items.list_items(source(request), id, metric=metric, a=a, b=b, limit=limit, cursor=cursor)

    @routes.add("GET", "/experiments/{id}/spend", "read", response_model=SpendBreakdown)
    def read_spend(request: Request, id: str) -> SpendBreakdown:
        """The spend in total, by arm and over time."""
        return answers.sum_spend(source(request), id)

    @routes.add("GET", "/experiments/{id}/lineage", "read", response_model=ExperimentLineage)
    def read_lineage(request: Request, id: str) -> ExperimentLineage:
        """The lineage graph of an experiment."""
        return answers.trace_lineage(source(request), id)

    @routes.add("GET", "/experiments/{id}/journal", "read", response_model=Events)
    def read_journal(request: Request, id: str, limit: Limit = 200, cursor: Cursor = "") -> Events:
        """The events of the journal, oldest first."""
        return source(request).events(id, cursor, limit)


def _rollout_routes(routes: GuardedRouter, source: Sources) -> None:
    @routes.add("GET", "/experiments/{id}/rollouts", "read", response_model=Rollouts)
    def list_rollouts(
        request: Request,
        id: str,
        arm: Word = "",
        split: Word = "",
        name: Word = "",
        step: Step = None,
        task: Word = "",
        outcome: Word = "",
        min_reward: Number = None,
        max_reward: Number = None,
        q: Word = "",
        limit: Limit = 50,
        cursor: Cursor = "",
        offset: Offset = 0,
    ) -> Rollouts:
        """A page of the rollouts that match all filters."""
        query = RolloutQuery(arm, split, name, step, task, outcome, min_reward, max_reward, q, limit, cursor, offset)
        return source(request).rollouts(id, query)

    @routes.add("GET", "/experiments/{id}/rollouts/{rollout}", "read", response_model=RolloutDetail)
    def read_rollout(request: Request, id: str, rollout: str) -> RolloutDetail:
        """One complete rollout."""
        return source(request).rollout(id, rollout)


def _data_routes(routes: GuardedRouter, source: Sources) -> None:
    def add(kind: Any) -> None:
        @routes.add("GET", f"/{kind}s", "read", response_model=DataEntries, name=f"list_{kind}s")
        def list_entries(request: Request, name: Word = "", limit: Limit = 50, cursor: Cursor = "") -> DataEntries:
            """A page of datasets or benchmarks by name, newest version first."""
            return source(request).data_entries(kind, name, limit, cursor)

        @routes.add("GET", f"/{kind}s/{{id}}/rows", "read", response_model=DataRows, name=f"read_{kind}_rows")
        def read_rows(request: Request, id: str, limit: Limit = 50, cursor: Cursor = "") -> DataRows:
            """A page of rows, in order."""
            return source(request).data_rows(kind, id, limit, cursor)

    add("dataset")
    add("benchmark")


def _change_routes(routes: GuardedRouter, source: Sources) -> None:
    @routes.add("GET", "/experiments/{id}/notes", "read", response_model=list[SavedNote])
    def read_notes(request: Request, id: str) -> list[SavedNote]:
        """The notes of an experiment."""
        return list(source(request).experiment(id).notes)

    @routes.add("GET", "/experiments/{id}/anchors", "read", response_model=list[JournalAnchor])
    def read_anchors(request: Request, id: str) -> list[JournalAnchor]:
        """The anchors of an experiment's journal; `evsys audit` compares them with the journal."""
        return source(request).anchors(id)

    @routes.add("POST", "/experiments/{id}/notes", "write", response_model=SavedNote)
    def add_note(request: Request, id: str, note: NewNote) -> SavedNote:
        """Add a note to an experiment."""
        return source(request).add_note(id, note)

    @routes.add("PUT", "/experiments/{id}/tags", "write", response_model=Tags)
    def set_tags(request: Request, id: str, tags: Tags) -> Tags:
        """Replace the tags of an experiment; `archived` hides it from lists."""
        return source(request).set_tags(id, tags)

    @routes.add("DELETE", "/experiments/{id}", "admin")
    def delete_experiment(request: Request, id: str) -> Response:
        """Delete an experiment: on a server its rows; of a project its folder, which is moved to `.evsys/deleted`."""
        source(request).delete(id)
        return Response(status_code=204)

    @routes.add("GET", "/experiments/{id}/requests", "read", response_model=list[ControlRequest])
    def read_requests(request: Request, id: str) -> list[ControlRequest]:
        """The requests for an experiment."""
        return list(source(request).experiment(id).requests)

    @routes.add("POST", "/experiments/{id}/requests", "write", response_model=ControlRequest)
    def add_request(request: Request, id: str, body: NewControlRequest) -> ControlRequest:
        """Request a stop of a running experiment, or approve or reject one that waits."""
        return source(request).add_request(id, body)


# Loops and campaigns, read from this disk or from the database.


class ProjectPages(Protocol):
    """The loops and campaigns of a project."""

    def loops(self) -> Sequence[dict[str, Any]]: ...
    def campaigns(self) -> Sequence[dict[str, Any]]: ...
    def carry_out(self, project_kind: str, name: str, request: NewProjectRequest) -> str:
        """Approve, stop or extend a loop or a campaign; return the outcome."""
        ...


def add_page_routes(app: FastAPI, pages: Callable[[Request], ProjectPages]) -> None:
    """Add the routes of loops and campaigns."""
    routes = GuardedRouter(app, "read")

    @routes.add("GET", "/loops", "read", response_model=Loops)
    def list_loops(request: Request) -> Loops:
        """Every loop with its rounds, decisions, verdicts and deployments."""
        return Loops(items=[LoopPage.model_validate(redact(page)) for page in pages(request).loops()])

    @routes.add("GET", "/campaigns", "read", response_model=Campaigns)
    def list_campaigns(request: Request) -> Campaigns:
        """Every campaign with its question, state, budget and candidates."""
        return Campaigns(
            items=[CampaignState.model_validate(redact(campaign)) for campaign in pages(request).campaigns()]
        )

    def add(what: str) -> None:
        @routes.add("POST", f"/{what}s/{{name}}/requests", "write", response_model=ActionAnswer, name=f"ask_{what}")
        def add_request(request: Request, name: str, body: NewProjectRequest) -> ActionAnswer:
            """Approve or stop a loop or campaign, or extend a campaign."""
            try:
                return ActionAnswer(answer=pages(request).carry_out(what, name, body))
            except EvsysError as error:
                raise BadQuery(str(error)) from None

    add("loop")
    add("campaign")
