"""Answers computed from recorded data: the page of an experiment, its lineage and its spend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ...history.query import Filters
from ...record.runs import config_runs
from ...record.values import items, number, part, text, whole
from ...record.view.model import ExperimentView, RunView
from ...record.view.question import is_score
from ..shapes.experiment import ExperimentDetail, InterimLook, RegisteredClaim
from ..shapes.record import ArmDetail, Edge, ExperimentLineage, Node, SpendBreakdown, SpendPart
from .source import ExperimentData, ExperimentQuery, NotFound, Object, RecordSource

_MOST_CHILDREN = 200


def describe_experiment(source: RecordSource, id: str) -> ExperimentDetail:
    """The data of an experiment's page."""
    data = source.experiment(id)
    conclusion, experiment = data.conclusion, data.experiment
    metrics = {name: None for arm in experiment.arms for name in arm.metrics}
    return ExperimentDetail(
        experiment=experiment,
        claim=_claim(data),
        metrics=sorted(metrics, key=lambda name: (not is_score(name), name)),
        threats=_texts(conclusion.get("threats")),
        next=_texts(conclusion.get("next")),
        not_scored={key: text(value) for key, value in part(conclusion, "not_scored").items()},
        looks=_object(conclusion.get("looks")),
        interim=_interim_analyses(data),
        noise_floor=_object(conclusion.get("noise_floor")),
        smallest_detectable=number(conclusion.get("smallest_detectable")),
        commands=dict(data.commands),
        conclusion_text=data.conclusion_text,
        requests=list(data.requests),
        log=data.log,
        config=data.config,
        conclusion=conclusion,
    )


def describe_arm(source: RecordSource, id: str, arm: str) -> ArmDetail:
    """The data of the page of an arm."""
    return detail_of_arm(source, source.experiment(id), arm)


def detail_of_arm(source: RecordSource, data: ExperimentData, arm: str) -> ArmDetail:
    """Like `describe_arm`, for an experiment that was already read."""
    view = next((arm_view for arm_view in data.experiment.arms if arm_view.arm == arm), None)
    if view is None:
        raise NotFound("arm", arm)
    files = source.arm_files(data.experiment.id, [arm])[arm]
    configs = {text(run.get("name")): run for run in config_runs(data.config)}
    return ArmDetail(
        arm=view,
        config=dict(configs.get(view.run, {})),
        checkpoints=list(files.checkpoints),
        datasets=list(files.datasets),
        benchmarks=list(files.benchmarks),
        examples=files.examples,
        story=files.story,
    )


def baseline_of(view: ExperimentView) -> str:
    """The run that others are compared with: the baseline, or the first run if the baseline has no arm."""
    runs = dict.fromkeys(arm.run for arm in view.arms)
    return view.baseline if view.baseline in runs else next(iter(runs), "")


def runs_of(view: ExperimentView) -> list[RunView]:
    """The runs with arms: the baseline first, then the others in the order of the conclusion."""
    return sorted((run for run in view.runs if run.n_arms), key=lambda run: run.run != baseline_of(view))


def _claim(data: ExperimentData) -> RegisteredClaim:
    hypothesis = part(data.conclusion, "hypothesis")
    return RegisteredClaim(
        text=text(hypothesis.get("claim")) or data.experiment.hypothesis,
        metric=text(hypothesis.get("metric")),
        direction=text(hypothesis.get("direction")),
        min_effect=number(hypothesis.get("min_effect")),
        baseline=text(hypothesis.get("baseline")),
        registered=data.conclusion.get("registered") is True,
        registered_at=data.registered_at,
        sha256=text(data.conclusion.get("hypothesis_sha256")),
    )


def _interim_analyses(data: ExperimentData) -> list[InterimLook]:
    """The interim analyses in the journal and that of the conclusion, each number once."""
    rows = {whole(row.get("look")) or 0: row for row in data.looks}
    last = part(data.conclusion, "sequential")
    if last and (look := whole(last.get("look"))) is not None and look not in rows:
        summary = {"of": len(items(last.get("looks"))), "verdict": data.conclusion.get("verdict"), "ends": True}
        rows[look] = {**last, **summary, "why": last.get("outcome")}
    return [
        InterimLook(
            look=at,
            of=whole(row.get("of")) or 0,
            seeds=whole(row.get("seeds")) or 0,
            verdict=text(row.get("verdict")),
            error=number(row.get("error")),
            chance=number(row.get("chance")),
            ends=row.get("ends") is True,
            why=text(row.get("why")),
        )
        for at, row in sorted(rows.items())
    ]


def sum_spend(source: RecordSource, id: str) -> SpendBreakdown:
    """The spend in total, by arm and over time."""
    data, lines = source.experiment(id), source.spend_lines(id)
    times: list[float] = []
    usd: list[float] = []
    tokens: list[float] = []
    for line in sorted(lines, key=lambda line: number(line.get("at")) or 0.0):
        times.append(number(line.get("at")) or 0.0)
        usd.append((usd[-1] if usd else 0.0) + (number(line.get("usd")) or 0.0))
        more = sum(number(line.get(name)) or 0.0 for name in ("tokens_trained", "tokens_sampled"))
        tokens.append((tokens[-1] if tokens else 0.0) + more)
    return SpendBreakdown(
        total=dict(data.experiment.spend),
        by_arm=[SpendPart(name=arm.arm, spend=dict(arm.spend)) for arm in data.experiment.arms],
        times=times,
        usd=usd,
        tokens=tokens,
    )


def trace_lineage(source: RecordSource, id: str) -> ExperimentLineage:
    """The lineage graph of an experiment: parents, children, models, data and checkpoints."""
    data = source.experiment(id)
    nodes: dict[str, Node] = {}
    edges: dict[tuple[str, str, str], None] = {}

    def add(kind: Any, key: str, name: str, detail: str) -> str:
        nodes.setdefault(f"{kind}:{key}", Node(id=f"{kind}:{key}", kind=kind, name=name, detail=detail))
        return f"{kind}:{key}"

    root = add(
        "experiment", data.experiment.id, data.experiment.name, data.experiment.verdict or data.experiment.status
    )
    for parent in source.experiments([data.experiment.parent_id]) if data.experiment.parent_id else ():
        edges[add("experiment", parent.id, parent.name, parent.verdict or parent.status), root, "led to"] = None
    children = source.list_experiments(ExperimentQuery(Filters(parent=data.experiment.id), limit=_MOST_CHILDREN))
    for child in children.items:
        edges[root, add("experiment", child.id, child.name, child.verdict or child.status), "led to"] = None
    for model in data.experiment.models:
        edges[add("model", model, model, ""), root, "trained from"] = None
    for name, files in source.arm_files(id, [arm.arm for arm in data.experiment.arms]).items():
        for row in files.datasets:
            key = text(row.get("id")) or text(row.get("sha256")) or text(row.get("source"))
            edges[add("dataset", key, text(row.get("source")) or key, text(row.get("sha256"))), root, "trained on"] = (
                None
            )
        for row in files.benchmarks:
            key = text(row.get("id")) or text(row.get("sha256")) or text(row.get("name"))
            split = text(row.get("split")) or "test"
            label = f"{split}/{text(row.get('name'))}"
            edges[add("benchmark", key, label, text(row.get("sha256"))), root, "scored on"] = None
        for row in files.checkpoints:
            if row.get("final") is True and text(row.get("path")):
                target = add("checkpoint", f"{data.experiment.id}/{name}", name, text(row.get("path")))
                edges[root, target, "made"] = None
    return ExperimentLineage(
        nodes=list(nodes.values()),
        edges=[Edge(source=source, target=target, kind=kind) for source, target, kind in edges],
    )


def _texts(value: Any) -> list[str]:
    return [item for item in items(value) if isinstance(item, str)]


def _object(value: Any) -> Object | None:
    return dict(cast(Mapping[str, Any], value)) if isinstance(value, dict) else None
