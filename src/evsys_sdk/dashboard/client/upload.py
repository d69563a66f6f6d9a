"""Report a recorded experiment to a dashboard.

All ids are derived from the record, so reporting the same folder again changes nothing.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ...history.detail import Detail, checkpoints, commands, read_detail
from ...record.anchors import make_anchor
from ...record.events import Kind
from ...record.layout import ExperimentFiles, RunFiles
from ...record.runs import RunRecord
from ...record.values import read_lines, text
from ..local.records import LocalRecords, read_list, read_text
from ..views.source import NotFound, RolloutQuery
from .client import DashboardClient

_PAGE = 500


def experiment_id_of(folder: Path) -> str:
    """The id of an experiment from its journal; without a journal, an id derived from its path."""
    events = read_lines(ExperimentFiles(folder).journal)
    started = next((event for event in events if event.get("kind") == Kind.STARTED), dict[str, Any]())
    experiment_id = text(started.get("experiment_id"))
    # the hash of the path distinguishes folders with the same name
    return experiment_id or f"{folder.name}-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]}"


def run_id_of(experiment_id: str, arm: str) -> str:
    """The id of an arm, the same on every dashboard."""
    return hashlib.sha256(f"{experiment_id}/{arm}".encode()).hexdigest()[:32]


def report_experiment(client: DashboardClient, folder: Path, *, complete: bool = False) -> str:
    """Report the results of an experiment, with `complete` also every step and rollout; return its id."""
    detail = read_detail(folder)
    id = experiment_id_of(folder)
    # The server derives the view from these fields, except the status, which depends on the local process.
    client.update_experiment(
        id,
        name=detail.view.name,
        status=detail.view.status,
        config=detail.config,
        conclusion=detail.conclusion,
        commands=commands(detail),
        conclusion_text=read_text(ExperimentFiles(folder).conclusion_page),
    )
    for event in read_lines(ExperimentFiles(folder).journal):
        client.log_event(id, event)
    for position, line in enumerate(read_lines(ExperimentFiles(folder).spend)):
        client.log_spend(id, line, position)
    anchor_journal(client, folder)
    for arm in detail.arms:
        report_arm(client, id, detail, arm)
    if complete:
        _report_details(client, id, folder, detail)
    return id


def anchor_journal(client: DashboardClient, folder: Path) -> None:
    """Report the current length and hash of the journal, so that the audit can detect later edits."""
    anchor = make_anchor(folder)
    client.anchor(anchor["head"], experiment_id=experiment_id_of(folder), events=anchor["events"])


def report_arm(client: DashboardClient, id: str, detail: Detail, arm: RunRecord) -> None:
    """Report one arm and its scorings."""
    folder, run_id = arm.folder, run_id_of(id, arm.name)
    # Not `create_run`, which would reset the start time and the config reported during training.
    started = {"started": arm.starts[0]} if arm.starts else {}
    client.update_run(
        run_id,
        experiment_id=id,
        name=arm.name,
        run=arm.run,
        seed=arm.seed,
        **started,
        status=arm.status,
        error=arm.error,
        unscored=arm.unscored,
        metrics=arm.metrics,
        spend=arm.spend,
        artifacts=arm.artifacts,
        checkpoints=checkpoints(arm),
        datasets=read_list(arm.files.datasets),
        benchmarks=read_list(arm.files.benchmarks),
    )
    report_scores(client, run_id, folder)


def report_scores(client: DashboardClient, run_id: str, run_dir: Path) -> None:
    """Report every scoring of a run with the score of each task."""
    for line in read_lines(RunFiles(run_dir).scores):
        client.log_score_line(run_id, line)


def _report_details(client: DashboardClient, id: str, folder: Path, detail: Detail) -> None:
    """Report every step and every rollout."""
    records = LocalRecords([folder.parent], folder.parent)
    for arm in detail.arms:
        run_id = run_id_of(id, arm.name)
        for step, metrics in records.metrics.read_steps(folder / arm.name):
            client.log_step_metric(run_id, step, metrics)
        cursor: str | None = ""
        while cursor is not None:
            try:
                page = records.rollouts(detail.view.id, RolloutQuery(arm=arm.name, limit=_PAGE, cursor=cursor))
            except NotFound:
                break
            for line in page.items:
                raw = records.rollout(detail.view.id, line.id).raw
                row = {**raw, "task_id": line.task, "sample": line.sample}
                client.log_predictions(run_id, [row], name=line.name, split=line.split, step=line.step)
            cursor = page.next
