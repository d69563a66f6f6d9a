"""Write experiments, runs, scores, rollouts and events to the tables; only on the writer's thread."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from sqlalchemy import Connection, Table, bindparam, delete, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as insert_postgres
from sqlalchemy.dialects.sqlite import insert as insert_sqlite

from ....errors import DataError, show
from ....record.values import number
from ...records import FIELD_TYPES, check_fields
from ...shapes.loops import CampaignState, LoopPage
from ...views.rollouts import LONGEST_PREVIEW, text_of
from ..ingest.wire import LARGEST_NUMBER, Object, check_ids, whole
from . import schema

_LONGEST_TEXT = 1_000_000
# Module constants, because building a statement takes longer than running it.
_FIND_EXPERIMENT = select(schema.experiment.c.id).where(
    schema.experiment.c.project_id == bindparam("of"), schema.experiment.c.id == bindparam("named")
)
_FIND_RUN = select(schema.run.c.no, schema.run.c.experiment_id).where(
    schema.run.c.project_id == bindparam("of"), schema.run.c.id == bindparam("named")
)
_ARMS_OF_RUN = select(schema.run.c.arm).where(
    schema.run.c.project_id == bindparam("of"),
    schema.run.c.experiment_id == bindparam("within"),
    schema.run.c.name == bindparam("named"),
)
_NEXT_VERSION = (
    update(schema.project)
    .where(schema.project.c.id == bindparam("of"))
    .values(version=schema.project.c.version + 1)
    .returning(schema.project.c.version)
)
_MARK_CHANGED = (
    update(schema.experiment)
    .where(schema.experiment.c.project_id == bindparam("of"), schema.experiment.c.id == bindparam("changed"))
    .values(version=bindparam("now"), heard=bindparam("at"))
)


@dataclass(frozen=True, slots=True)
class RunRef:
    """The row number of a run, and its experiment."""

    no: int
    experiment_id: str
    """Empty until the experiment of the run is reported."""


def put_experiment(connection: Connection, project: str, id: str, fields: Mapping[str, Any]) -> None:
    """Create an experiment, or update the given fields."""
    check_ids(id)
    changed = {name: _fit("experiment", name, value) for name, value in check_fields("experiment", fields).items()}
    table = schema.experiment
    where = table.c.project_id == project, table.c.id == id
    present = connection.execute(select(table.c.told).where(*where)).scalar()
    before: Object = {"name": id, "status": "running"} if present is None else json.loads(present)
    merged = _json({name: value for name, value in {**before, **changed}.items() if value is not None})
    if present is None:
        now = time.time()
        values = {"project_id": project, "id": id, "version": 0, "received": now, "heard": now, "told": merged}
        connection.execute(insert(table).values(**values))
    else:
        connection.execute(update(table).where(*where).values(told=merged))


def ensure_experiment(connection: Connection, project: str, id: str) -> None:
    """Create an experiment if it does not exist."""
    check_ids(id)
    if connection.execute(_FIND_EXPERIMENT, {"of": project, "named": id}).first() is None:
        put_experiment(connection, project, id, {})


def put_run(connection: Connection, project: str, id: str, experiment: str | None, fields: Mapping[str, Any]) -> RunRef:
    """Create a run, or update the given fields; the experiment may be reported later."""
    check_ids(id, experiment)
    columns = _run_columns(fields)
    existing, table = find_run(connection, project, id), schema.run
    if existing is not None and experiment and existing.experiment_id not in ("", experiment):
        raise DataError(f"run {show(id)} belongs to experiment {show(existing.experiment_id)}, not {show(experiment)}.")
    if existing is None or (experiment and not existing.experiment_id):
        name = columns.get("name") or id
        columns = {"name": name, "run": name, "status": "started"} | columns | {"experiment_id": experiment or ""}
        if experiment:
            ensure_experiment(connection, project, experiment)  # its record may arrive later in another stream
        columns["arm"] = _free_arm(connection, project, experiment, name) if experiment else id
    if existing is None:
        values = {"project_id": project, "id": id, **columns}
        no = connection.execute(insert(table).values(**values).returning(table.c.no)).scalar_one()
        return RunRef(int(no), experiment or "")
    if columns:
        connection.execute(update(table).where(table.c.no == existing.no).values(**columns))
    return RunRef(existing.no, experiment or existing.experiment_id)


def find_run(connection: Connection, project: str, id: str) -> RunRef | None:
    """Find a run by its id, or None."""
    row = connection.execute(_FIND_RUN, {"of": project, "named": id}).first()
    return RunRef(int(row[0]), str(row[1])) if row else None


class UnknownRun(DataError):
    """A record refers to a run that was not reported."""

    def __init__(self, id: str) -> None:
        super().__init__(f"run {show(id)} is not known. Report it first, with the experiment it belongs to.")


def put_score(connection: Connection, run: RunRef, id: str, line: Object) -> dict[str, float | None]:
    """Store a scoring, replacing an earlier one of the same set and step; return its metrics by full name."""
    split, name = _name(line.get("split") or "test", 100), _name(line.get("name") or "", 300)
    step = whole(line.get("step", 0))
    metrics: Any = line.get("metrics")
    if step is None or not isinstance(metrics, dict):
        raise DataError(f"a scoring has step {show(line.get('step'))} and metrics {show(metrics)}.")
    values = {"run_no": run.no, "split": split, "name": name, "step": step, "id": id, "line": _json(line)}
    upsert(connection, schema.score, [values], ("run_no", "split", "name", "step"))
    scores: dict[str, float | None] = {}
    for short, raw in metrics.items():  # pyright: ignore[reportUnknownVariableType]
        value: Any = raw.get("value") if isinstance(raw, dict) else raw  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        scores[metric_name(split, name, str(short))[:500]] = number(value)  # pyright: ignore[reportUnknownArgumentType]
    return scores


def put_rollouts(connection: Connection, run: RunRef, split: str, name: str, step: int, rows: Sequence[Object]) -> None:
    """Store rollouts; a later one replaces an earlier one of the same task and sample."""
    split, name = _name(split, 100), _name(name, 300)
    # Keyed by the unique columns, because one statement may not change a row twice.
    by_key: dict[tuple[str, int], Object] = {}
    for position, row in enumerate(rows):
        task = _name(str(row.get("task_id") or row.get("task") or position), 500)
        sample = whole(row.get("sample")) or 0
        # The column has 32 bits in PostgreSQL; checked for SQLite too, so that both refuse the same values.
        if abs(sample) >= 1 << 31:
            raise DataError(f"a prediction has sample {show(sample)}.")
        by_key[task, sample] = {
            **{"run_no": run.no, "split": split, "name": name, "step": step, "task": task, "sample": sample},
            "status": str(row.get("status") or ("ok" if number(row.get("reward")) is not None else "")),
            "reward": number(row.get("reward")),
            "tokens": whole(row.get("tokens")),
            "turns": min(whole(row.get("turns")) or 0, 1 << 30) or None,
            "preview": text_of(row)[:LONGEST_PREVIEW],
            "body": _json(row),
        }
    upsert(connection, schema.rollout, list(by_key.values()), ("run_no", "split", "name", "step", "task", "sample"))


def put_event(connection: Connection, project: str, experiment: str, event: Object) -> None:
    """Store a journal event, once per id."""
    id = event.get("id")
    check_ids(id if isinstance(id, str) else "")
    ensure_experiment(connection, project, experiment)
    kind = event.get("kind")
    if not isinstance(kind, str) or not kind:
        raise DataError(f"an event has kind {show(kind)}. It should be text.")
    data = {key: value for key, value in event.items() if key not in ("id", "time", "kind")}
    values = {"project_id": project, "experiment_id": experiment, "id": id, "kind": kind}
    values |= {"time": number(event.get("time")), "data": _json(data)}
    insert_new(connection, schema.event, values, ("project_id", "experiment_id", "id"))


def put_spend(connection: Connection, project: str, experiment: str, at: int, line: Object) -> None:
    """Store one line of a ledger."""
    ensure_experiment(connection, project, experiment)
    values = {"project_id": project, "experiment_id": experiment, "number": at, "line": _json(line)}
    upsert(connection, schema.spend_line, [values], ("project_id", "experiment_id", "number"))


def put_benchmark(connection: Connection, project: str, id: str, name: str, metadata: Object) -> None:
    """Store a benchmark whose tasks were not uploaded."""
    check_ids(id, name)
    table = schema.data_entry
    same_name = (table.c.project_id == project, table.c.kind == "benchmark", table.c.name == name)
    version = (connection.execute(select(func.max(table.c.version)).where(*same_name)).scalar() or 0) + 1
    values = {"project_id": project, "id": id, "kind": "benchmark", "name": name, "version": version, "split": "test"}
    values |= {"rows": None, "bytes": None, "format": "", "sha256": "", "created": time.time(), "complete": True}
    values["metadata"] = _json(metadata)
    insert_new(connection, table, values, ("project_id", "id"))


def put_anchor(connection: Connection, project: str, experiment: str | None, events: int, head: str) -> None:
    """Store the length and last hash of a journal, with the time of this server, not of the client."""
    check_ids(experiment)
    values: Object = {"project_id": project, "experiment_id": experiment, "at": time.time()}
    values |= {"events": max(0, min(events, 2**53)), "head": head[:500]}
    connection.execute(insert(schema.anchor).values(**values))


def delete_experiment(connection: Connection, project: str, id: str) -> None:
    """Delete every row of an experiment except its anchors."""
    runs = select(schema.run.c.no).where(schema.run.c.project_id == project, schema.run.c.experiment_id == id)
    for table in (schema.metric_point, schema.metric_latest, schema.score, schema.rollout):
        connection.execute(delete(table).where(table.c.run_no.in_(runs)))
    for table, column in (
        (schema.run, schema.run.c.experiment_id),
        (schema.event, schema.event.c.experiment_id),
        (schema.spend_line, schema.spend_line.c.experiment_id),
        (schema.request, schema.request.c.experiment_id),
        (schema.experiment_view, schema.experiment_view.c.folder),
        (schema.experiment_detail, schema.experiment_detail.c.folder),
        (schema.experiment, schema.experiment.c.id),
    ):
        connection.execute(delete(table).where(table.c.project_id == project, column == id))


CAMPAIGN: Final = "campaign:"
"""Prefix of campaign names in the table of loops."""


def page_id(system: str) -> str:
    """The id of a campaign or loop in the table of requests."""
    return system if system.startswith(CAMPAIGN) else f"loop:{system}"


def put_page(connection: Connection, project: str, system: str, at: float, page: Object) -> None:
    """Store the latest state of a closed loop or a campaign; raise if it is invalid."""
    check_ids(system)
    try:
        checked = (CampaignState if system.startswith(CAMPAIGN) else LoopPage).model_validate(page)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(step) for step in problem["loc"])
        raise DataError(f"{show(system)} cannot be shown: {where}: {problem['msg']}.") from None
    table = schema.loop
    same_system = (table.c.project_id == project, table.c.system == system)
    stored_at = connection.execute(select(table.c.at).where(*same_system)).scalar()
    if stored_at is None or stored_at <= at:  # an older state may arrive later
        values = {"project_id": project, "system": system, "at": at, "page": checked.model_dump_json()}
        upsert(connection, table, [values], ("project_id", "system"))


def answer_request(connection: Connection, project: str, id: str, state: str, answer: str) -> str | None:
    """Store the outcome of a request; return the id of its experiment."""
    if state not in ("taken", "done", "refused"):
        raise DataError(f"the state of a request is {show(state)}. It should be taken, done or refused.")
    table = schema.request
    where = (table.c.project_id == project, table.c.id == id)
    experiment = connection.execute(select(table.c.experiment_id).where(*where)).scalar()
    connection.execute(update(table).where(*where).values(state=state, answer=answer[:2000]))
    return None if experiment is None else str(experiment)


def rewind(connection: Connection, run: RunRef, next_step: int) -> None:
    """Delete what a run reported from `next_step` on, because it resumes there."""
    for table in (schema.metric_point, schema.score, schema.rollout):
        connection.execute(delete(table).where(table.c.run_no == run.no, table.c.step >= next_step))
    # The latest values may have been deleted, so they are recomputed.
    points, latest = schema.metric_point, schema.metric_latest
    connection.execute(delete(latest).where(latest.c.run_no == run.no))
    last = select(points.c.key_id, func.max(points.c.step)).where(points.c.run_no == run.no).group_by(points.c.key_id)
    for key, step in connection.execute(last).all():
        same = (points.c.run_no == run.no, points.c.key_id == key, points.c.step == step)
        value = connection.execute(select(points.c.value).where(*same)).scalar()
        connection.execute(insert(latest).values(run_no=run.no, key_id=key, step=step, last=value))
    furthest = select(func.max(points.c.step)).where(points.c.run_no == run.no).scalar_subquery()
    ahead = (schema.run.c.no == run.no, schema.run.c.step >= next_step)
    connection.execute(update(schema.run).where(*ahead).values(step=furthest))


def touch(connection: Connection, project: str, experiments: Sequence[str]) -> int:
    """Give changed experiments a new version, so that pages are notified; return it."""
    version = int(connection.execute(_NEXT_VERSION, {"of": project}).scalar_one())
    if experiments:
        now = {"of": project, "now": version, "at": time.time()}
        connection.execute(_MARK_CHANGED, [{**now, "changed": id} for id in experiments])
    return version


def upsert(connection: Connection, table: Table, rows: Sequence[Object], keys: Sequence[str]) -> None:
    """Insert rows, replacing those with the same keys."""
    if not rows:
        return
    statement = _insert(connection, table)
    changed = {name: statement.excluded[name] for name in rows[0] if name not in keys}
    connection.execute(statement.on_conflict_do_update(index_elements=list(keys), set_=changed), list(rows))


def insert_new(connection: Connection, table: Table, row: Object, keys: Sequence[str]) -> bool:
    """Insert a row if it does not exist; return whether it was inserted."""
    statement = _insert(connection, table).values(**row).on_conflict_do_nothing(index_elements=list(keys))
    return connection.execute(statement.returning(table.c[keys[0]])).first() is not None


def metric_name(split: str, name: str, metric: str) -> str:
    """The full name of a scoring's metric: `test/routing/pass@1`."""
    if metric.startswith(f"{split}/"):
        return metric
    return f"{split}/{metric}" if name in ("", split) else f"{split}/{name}/{metric}"


def _insert(connection: Connection, table: Table) -> Any:
    return (insert_postgres if connection.dialect.name == "postgresql" else insert_sqlite)(table)


def _run_columns(fields: Mapping[str, Any]) -> Object:
    """Convert the fields of a run to column values; null becomes the empty value of its type."""
    columns: Object = {}
    for name, value in check_fields("run", fields).items():
        if isinstance(value, (list, dict)):
            columns[name] = _json(value)
        elif value is None:
            type_: Any = FIELD_TYPES["run"][name]
            columns[name] = {str: "", list: "[]", dict: "{}"}.get(type_)
        else:
            columns[name] = _fit("run", name, value)
    return columns


def _fit(kind: str, name: str, value: Any) -> Any:
    """Truncate text to the limit; raise if a number is too large for a column or a browser."""
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    too_large = isinstance(value, int) and abs(value) > LARGEST_NUMBER
    if too_large or (isinstance(value, float) and number(value) is None):
        raise DataError(f"{name} of a {kind} is {show(value)}, which is too large.")
    return value


def _free_arm(connection: Connection, project: str, experiment: str, name: str) -> str:
    """Return `name`, or `name#2`, `name#3`, ... if the experiment has an arm with that name."""
    used = set(connection.execute(_ARMS_OF_RUN, {"of": project, "within": experiment, "named": name}).scalars())
    count = 1
    while (arm := name if count == 1 else f"{name}#{count}") in used:
        count += 1
    return arm


def _name(value: Any, longest: int) -> str:
    if not isinstance(value, str) or len(value) > longest:
        raise DataError(f"{show(value)} is not a name of at most {longest} characters.")
    return value


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
