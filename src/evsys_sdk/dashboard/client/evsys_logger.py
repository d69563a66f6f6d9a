"""Send the record of a run to the dashboard during training.

    callbacks:
      - { kind: evsys_logger }

The environment sets the server and the key (`connection.py`). Everything is written to the local mirror first. If the
server cannot be reached, the run continues with a warning, and `evsys sync` sends the rest later.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...config.base import Strict
from ...errors import EvsysError
from ...experiment.jobs.background import cancel
from ...history.views.answers import with_prompts
from ...protocols import RunResult
from ...record.events import Journal, Kind, read_events
from ...record.jsonable import jsonable
from ...record.layout import ExperimentFiles, RunFiles
from ...record.reader import ExperimentRecord
from ...record.values import read_object
from ...redact import redact, redact_text
from ...training.callback import STOPPED_ON_DASHBOARD, Callback, EvalRecord, RunControl, RunInfo
from ..local.records import read_list
from .client import DashboardClient
from .remote_record import read_requests
from .upload import experiment_id_of, report_experiment, report_scores, run_id_of


class EvsysLoggerConfig(Strict):
    """Params of the `evsys_logger` callback."""

    predictions: bool = True
    """Whether to send the predictions of each scoring."""
    obey_stop: bool = True
    """Whether a stop request on the dashboard stops the run."""


class EvsysLogger(Callback):
    """Sends metrics, scores, predictions, hypothesis and conclusion to the dashboard."""

    name = "evsys_logger"
    Config = EvsysLoggerConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = EvsysLoggerConfig(**params)
        self._client: DashboardClient | None = None
        self._control = RunControl()
        self._run_id = ""
        self._run_dir = Path()
        self._checkpoints: list[dict[str, Any]] = []

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        """Report the run; raise if no API key is set, unless offline."""
        self._control, self._run_dir = control, info.run_dir
        # Refused records cause a warning only: they must not end a run.
        self._client = client = DashboardClient(raise_refusals=False, on_request=self._take_request)
        experiment_id = experiment_id_of(info.run_dir.parent)
        self._run_id = run_id_of(experiment_id, info.run_id)
        # Every arm sends this, possibly at the same time; the first one creates the experiment.
        client.update_experiment(
            experiment_id, name=info.experiment, hypothesis=info.hypothesis or "", status="running"
        )
        seed = info.config.get("seed")
        client.create_run(
            experiment_id,
            name=info.run_id,
            run=str(info.config.get("name") or info.run_id),
            run_config=redact(jsonable(info.config)),
            seed=seed if isinstance(seed, int) else None,
            run_id=self._run_id,
        )
        if info.total_steps is not None:
            client.update_run(self._run_id, total_steps=info.total_steps)
        if info.next_step:  # a resumed run repeats some steps
            client.rewind_run(self._run_id, info.next_step)

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._client is not None:
            self._client.log_step_metric(self._run_id, step, metrics)

    def on_eval(self, record: EvalRecord) -> None:
        if self._client is None:
            return
        where: dict[str, Any] = {"name": record.name, "split": record.split, "step": record.step}
        self._client.log_eval_run(self._run_id, metrics=record.metrics, **where)
        if self.cfg.predictions and record.predictions:
            config = read_object(ExperimentFiles(self._run_dir.parent).config) or {}
            rows = with_prompts(config, record.predictions, record.split, record.name)
            self._client.log_predictions(self._run_id, rows, **where)

    def on_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        row = {"step": checkpoint.get("next_step"), "path": checkpoint.get("sampler") or checkpoint.get("state")}
        self._checkpoints.append({**row, "final": checkpoint.get("final") is True})
        if self._client is not None:
            self._client.update_run(self._run_id, checkpoints=self._checkpoints)

    def on_run_end(self, result: RunResult) -> None:
        """Report the result, and every scoring with the score of each task."""
        if self._client is None:
            return
        report_scores(self._client, self._run_id, self._run_dir)
        self._client.update_run(
            self._run_id,
            status=result.status,
            error=redact_text(result.error or ""),
            unscored=result.notes.unscored or "",
            metrics=result.metrics,
            artifacts=result.artifacts,
            spend=result.notes.spend or {},
            datasets=read_list(RunFiles(self._run_dir).datasets),
            benchmarks=read_list(RunFiles(self._run_dir).benchmarks),
            ended=time.time(),
        )

    def read_decision(self, folder: Path) -> tuple[bool, str, str] | None:
        """Report that the experiment waits for an approval, and read the decision from the dashboard."""
        id = experiment_id_of(folder)
        with DashboardClient(raise_refusals=False) as client:
            # The events are sent first, because the dashboard can only approve an experiment that it knows.
            client.update_experiment(id, name=folder.name, status="running")
            for event in read_events(folder):
                client.log_event(id, event.to_dict())
            client.flush()
            for request in read_requests(id):
                if request["kind"] in ("approve", "reject") and request["state"] == "open":
                    client.answer_request(str(request["id"]), "taken", "it was received")
                    return request["kind"] == "approve", str(request["reason"]), str(request["author"])
        return None

    def on_experiment_end(self, folder: Path) -> None:
        """Report the conclusion, journal and ledger; called once, in the process that started the experiment."""
        client = DashboardClient(raise_refusals=False)
        try:
            report_experiment(client, folder)
        finally:
            client.close()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _take_request(self, request: Mapping[str, Any]) -> None:
        """Handle a request from the dashboard; runs on the sender's thread."""
        if request.get("kind") != "stop" or self._client is None:
            return
        if self.cfg.obey_stop:
            self._stop(request)
        state, answer = (
            ("taken", "it finishes its steps and stops") if self.cfg.obey_stop else ("refused", "obey_stop is off")
        )
        self._client.answer_request(str(request.get("id")), state, answer)

    def _stop(self, request: Mapping[str, Any]) -> None:
        """Stop the whole experiment, like `evsys cancel`; every arm receives the request, and only the first acts."""
        folder, id = self._run_dir.parent, str(request.get("id"))
        reason = redact_text(str(request.get("reason") or "no reason was given"))
        author = redact_text(str(request.get("author") or ""))
        with suppress(EvsysError):  # e.g. run by another machine: only this arm can be stopped from here
            if ExperimentRecord(folder).is_experiment:
                with Journal.of(folder) as journal:
                    event_id = journal.append(Kind.STOP_REQUESTED, subject=id, reason=reason, author=author)
                requests = [event for event in read_events(folder) if event.kind == Kind.STOP_REQUESTED]
                first = next(event.id for event in requests if event.text("subject") == id)
                if first != event_id or cancel(folder, patience_s=0.0)["was_running"]:
                    return
        self._control.stop(f"{STOPPED_ON_DASHBOARD}{reason}", interrupted=True)
