"""The client of the dashboard: it records experiments, runs, metrics, scores and predictions, and sends them.

    client = DashboardClient()                               # EVSYS_API_URL, EVSYS_API_KEY, EVSYS_PROJECT_ID
    experiment = client.create_experiment("routing", hypothesis="rank 8 is enough")
    run = client.create_run(experiment, name="rank8", recipe_kind="sft", run_config={"lora_rank": 8})
    client.log_step_metric(run, 1, {"loss": 2.3})
    client.close()

Every record is on this disk when a call returns (`mirror.py`) and is sent in the background (`sender.py`). If the
server cannot be reached, the client prints a warning; `evsys sync` sends the rest later. A record that the server
refuses (4xx) raises DashboardClientError: immediately for rare records, at a later call for steps.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ...errors import DashboardClientError, DataError, show
from ...log import get_logger
from ...record.jsonable import jsonable
from ...record.jsonl_file import count_forks
from ...redact import redact, redact_text
from ..records import check_fields, check_id
from .connection import Connection, new_id
from .mirror import BATCH_BYTES, Mirror, StepLines, encode_record
from .sender import FLUSH_S, RequestHandler, Sender

_CALL_S = 5.0
"""Longest time that a call with a rare record waits for the server."""


class DashboardClient:
    """Reports to one project of one dashboard; thread-safe."""

    def __init__(
        self,
        api_url: str | None = None,
        api_key: str | None = None,
        project_id: str | None = None,
        *,
        log_dir: str | Path | None = None,
        offline: bool | None = None,
        on_request: RequestHandler | None = None,
        raise_refusals: bool = True,
    ) -> None:
        """Create a client; arguments override the environment variables.

        `on_request` is called on another thread with each request for a stop or an approval. Without `raise_refusals`,
        refused records cause a warning, and no call waits for the server.
        """
        self.connection = Connection.from_environment(
            url=api_url, api_key=api_key, project=project_id, log_dir=log_dir, offline=offline
        )
        self._on_request, self._raise = on_request, raise_refusals
        self._steps = StepLines()
        self._mirror: Mirror | None = None
        self._sender: Sender | None = None
        self._opening = threading.Lock()
        self._forks = 0
        self._warned: DashboardClientError | None = None

    # -- experiments and runs ------------------------------------------------------------------------------------------

    def create_experiment(
        self,
        name: str,
        *,
        hypothesis: str = "",
        description: str = "",
        recipe_kind: str = "",
        config: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
        parent_experiment_id: str | None = None,
        experiment_id: str | None = None,
    ) -> str:
        """Report a new experiment; return its id. An existing id updates that experiment."""
        id = check_id(experiment_id) if experiment_id is not None else new_id()
        fields: dict[str, Any] = {"name": _text("the experiment's name", name), "status": "running"}
        optional: dict[str, Any] = {"hypothesis": hypothesis, "description": description, "recipe_kind": recipe_kind}
        optional |= {"config": dict(config or {}), "tags": list(tags), "parent_id": parent_experiment_id or ""}
        # Only given values are sent, so that an existing experiment keeps its other fields.
        fields |= {name: value for name, value in optional.items() if value}
        self._report({"kind": "experiment", "id": id, "set": {"started": time.time(), **fields}})
        return id

    def update_experiment(self, experiment_id: str, **fields: Any) -> None:
        """Update fields of an experiment: `status`, `best_score`, `conclusion`, ... (`records.py`)."""
        if isinstance(fields.get("conclusion"), str):
            fields["conclusion_text"] = fields.pop("conclusion")
        changes = check_fields("experiment", jsonable(fields))
        self._report({"kind": "experiment", "id": check_id(experiment_id), "set": changes})

    def create_run(
        self,
        experiment_id: str,
        *,
        name: str = "run",
        recipe_kind: str = "",
        run_config: Mapping[str, Any] | None = None,
        seed: int | None = None,
        run: str = "",
        run_id: str | None = None,
    ) -> str:
        """Report a run of an experiment; return its id. Seeds of one run share the name `run`."""
        id = check_id(run_id) if run_id is not None else new_id()
        fields: dict[str, Any] = {"name": _text("the run's name", name), "run": run or name, "seed": seed}
        fields |= {"status": "started", "started": time.time()}
        fields |= {"recipe_kind": recipe_kind, "config": dict(run_config or {})}
        self._report({"kind": "run", "id": id, "experiment": check_id(experiment_id), "set": fields})
        return id

    def update_run(self, run_id: str, *, experiment_id: str | None = None, **fields: Any) -> None:
        """Update fields of a run: `status`, `metrics`, `error`, ... (`records.py`).

        With `experiment_id`, an unknown run is created.
        """
        changes = check_fields("run", jsonable(fields))
        owner = {} if experiment_id is None else {"experiment": check_id(experiment_id)}
        self._report({"kind": "run", "id": check_id(run_id), **owner, "set": changes})

    create_generation = create_run
    """Former name."""
    update_generation = update_run
    """Former name."""

    # -- during a run --------------------------------------------------------------------------------------------------

    def log_step_metric(
        self, run_id: str, step: int, metrics: Mapping[str, float] | None = None, **more: float
    ) -> None:
        """Report the metrics of one step; does not wait for the server."""
        # Training waits for this call, so nothing is copied in the usual case that one of the two is empty.
        all_metrics = {**metrics, **more} if metrics and more else metrics or more
        self._append(self._steps.encode(run_id, step, all_metrics))

    def log_eval_run(
        self,
        run_id: str,
        *,
        metrics: Mapping[str, Any],
        benchmark_id: str | None = None,
        name: str = "",
        split: str = "test",
        step: int = 0,
        **details: Any,
    ) -> str:
        """Report a scoring; a metric is a number or an object as in `scores.jsonl` (value, stderr, per_task, ...)."""
        id = new_id()
        line = {"split": split, "name": name, "step": int(step), "metrics": {**metrics}, **details}
        line |= {} if benchmark_id is None else {"benchmark_id": benchmark_id}
        self._report({"kind": "score", "id": id, "run": check_id(run_id), "line": _clean(line)})
        return id

    def log_score_line(self, run_id: str, line: Mapping[str, Any]) -> None:
        """Report a line of `scores.jsonl`; it replaces an earlier one of the same set and step."""
        self._report({"kind": "score", "id": new_id(), "run": check_id(run_id), "line": dict(line)}, wait=False)

    def rewind_run(self, run_id: str, next_step: int) -> None:
        """Report that a run resumes at `next_step`: the server deletes its records from this step on."""
        self._report({"kind": "rewind", "run": check_id(run_id), "next_step": int(next_step)}, wait=False)

    def log_predictions(
        self,
        run_id: str,
        predictions: Sequence[Mapping[str, Any]],
        *,
        name: str = "",
        split: str = "test",
        step: int = 0,
    ) -> None:
        """Report predictions or rollouts: `task_id`, `sample`, `reward`, `prediction`, `messages`, ..."""
        base: dict[str, Any] = {"kind": "rollouts", "run": check_id(run_id), "split": split, "name": name}
        base["step"] = int(step)
        rows: list[Any] = []
        size = 0
        for position, prediction in enumerate(predictions):
            row = {"task_id": str(position), **_clean(dict(prediction))}
            length = len(encode_record(row, f"a prediction of task {show(row.get('task_id'))}"))
            if rows and size + length > BATCH_BYTES:  # the size of a record is limited
                self._report({**base, "rows": rows}, wait=False)
                rows, size = [], 0
            rows.append(row)
            size += length
        if rows:
            self._report({**base, "rows": rows}, wait=False)

    def record_benchmark(self, name: str, *, benchmark_id: str | None = None, **metadata: Any) -> str:
        """Report a benchmark and return its id; `evsys benchmark upload` uploads its tasks."""
        id = check_id(benchmark_id) if benchmark_id is not None else new_id()
        self._report({"kind": "benchmark", "id": id, "name": _text("the benchmark's name", name), "metadata": metadata})
        return id

    # -- journal, ledger, notes, loops ---------------------------------------------------------------------------------

    def log_event(self, experiment_id: str, event: Mapping[str, Any]) -> None:
        """Report one line of an experiment's journal; an event is stored once per `id`."""
        self._report({"kind": "event", "experiment": check_id(experiment_id), "event": dict(event)}, wait=False)

    def log_spend(self, experiment_id: str, line: Mapping[str, Any], number: int) -> None:
        """Report line `number` of an experiment's ledger."""
        record = {"kind": "spend", "experiment": check_id(experiment_id), "number": number, "line": dict(line)}
        self._report(record, wait=False)

    def add_note(self, experiment_id: str, text: str, *, author: str = "") -> str:
        """Add a note to an experiment."""
        id = new_id()
        note = {"id": id, "time": time.time(), "kind": "note", "text": _text("the note", text), "author": author}
        self.log_event(experiment_id, note)
        return id

    def anchor(self, chain_head: str, *, experiment_id: str | None = None, events: int = 0) -> None:
        """Report the current length and last hash of a journal, so that the server can witness them."""
        head = _text("the chain's head", chain_head)
        self._report({"kind": "anchor", "experiment": experiment_id, "events": events, "head": head})

    def log_loop(self, system: str, page: Mapping[str, Any]) -> None:
        """Report the state of a closed loop, as printed by `evsys loop --status --json`."""
        record = {"kind": "loop", "system": check_id(system, "the loop's system"), "at": time.time()}
        self._report({**record, "page": dict(page)}, wait=False)

    def answer_request(self, request_id: str, state: str, answer: str = "") -> None:
        """Report the outcome of a request: `taken`, `done` or `refused`."""
        self._report({"kind": "answer", "request": request_id, "state": state, "answer": answer}, wait=False)

    # -- flush and close -----------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until the server has all records; return False if it has not. They remain on disk.

        By default, waits at most half a second for a server that does not answer; with `timeout_s`, for that time.
        """
        mirror, sender = self._mirror, self._sender
        if mirror is None or sender is None:
            return mirror is None
        wait_s = FLUSH_S if timeout_s is None else timeout_s
        arrived = sender.wait_for(mirror.length, wait_s, stubborn=timeout_s is not None)
        self._report_refusals(sender)
        return arrived

    def close(self, timeout_s: float | None = None) -> bool:
        """Flush and stop; return whether the server has all records."""
        # Detached first, so that later records, e.g. from another thread, open a new stream.
        with self._opening:
            mirror, sender, self._mirror, self._sender = self._mirror, self._sender, None, None
        if mirror is None:
            return True
        atexit.unregister(self.close)
        arrived = sender.close(timeout_s) if sender is not None else False
        mirror.close()
        if sender is not None:
            self._report_refusals(sender)
        return arrived

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _report(self, record: dict[str, Any], *, wait: bool = True) -> None:
        """Record without secrets; by default wait for the server, so that refusals raise immediately."""
        line = encode_record(_clean(record), f"this {record['kind']}")
        self._append(line, wait=wait and self._raise)

    def _append(self, line: bytes, *, wait: bool = False) -> None:
        # Checked without the lock, because every step passes here; `_open` checks again with it.
        if self._mirror is None or self._forks != count_forks():
            self._open()
        mirror, sender = self._mirror, self._sender
        assert mirror is not None
        length = mirror.append(line)
        if sender is None:
            return
        if length >= sender.wakes_at:  # takes the lock only if the sender waits for this record
            sender.wake()
        if wait:
            sender.wait_for(length, _CALL_S)
        if sender.refusal is not None or sender.has_rejections:
            self._report_refusals(sender)

    def _open(self) -> None:
        """Open the stream of this process; a forked child opens a new one, because it has no sender thread."""
        with self._opening:
            if self._mirror is not None and self._forks == count_forks():  # another thread was faster
                return
            self._mirror = mirror = Mirror(self.connection.mirror_dir, self.connection.project)
            self._forks = count_forks()
            self._sender = None
            if not self.connection.offline:
                self._sender = Sender(self.connection, mirror, self._on_request)
            atexit.register(self.close)

    def _report_refusals(self, sender: Sender) -> None:
        """Raise for what the server refused, or without `raise_refusals` print one warning."""
        rejected = sender.take_rejections()
        error = sender.refusal
        if rejected:
            reasons = "; ".join(rejected[:3])
            error = DashboardClientError(f"the dashboard quarantined {len(rejected)} records: {reasons}", 422)
        if error is None:
            return
        if self._raise:  # a new exception, because one raised in several threads would collect all tracebacks
            raise DashboardClientError(str(error), error.status)
        if self._warned is None or str(self._warned) != str(error):
            self._warned = error
            get_logger(__name__).warning("%s The run continues; its record: %s.", error, self.connection.mirror_dir)


def _text(what: str, value: str) -> str:
    if not isinstance(value, str) or not value.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DataError(f"{what} is {show(value)}. Give it some text.")
    return value


def _clean(record: dict[str, Any]) -> dict[str, Any]:
    """Convert to JSON values and redact secrets."""
    cleaned = redact(jsonable(record))
    return {key: redact_text(value) if isinstance(value, str) else value for key, value in cleaned.items()}
