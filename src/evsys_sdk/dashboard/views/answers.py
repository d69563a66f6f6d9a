"""What follows from a record: the experiment's page, its lineage and its bill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ...record.flat_config import find_varied_paths, scalars
from ...record.runs import SPEND, add_spend, config_runs
from ...record.values import items, number, part, text
from ...record.view.question import is_score, resolve_metric, wanted_metric
from ..shapes import (
    Arm,
    ArmDetail,
    Claim,
    Difference,
    Edge,
    ExperimentDetail,
    Lineage,
    Look,
    Node,
    Run,
    Spend,
    SpendLine,
)
from .source import ArmData, ExperimentData, ExperimentQuery, NotFound, Object, RecordSource

_MOST_CHILDREN = 200


def describe_experiment(source: RecordSource, id: str) -> ExperimentDetail:
    """Everything the experiment's page shows at once."""
    data = source.experiment(id)
    conclusion, experiment = data.conclusion, data.experiment
    varied = find_varied_paths(config_runs(data.config))
    metrics = {name: None for arm in data.arms for name in arm.metrics}
    return ExperimentDetail(
        experiment=experiment,
        description=data.description,
        claim=_claim(data),
        runs=_runs(data, varied),
        varied=varied,
        baseline=baseline_of(data),
        metrics=sorted(metrics, key=lambda name: (not is_score(name), name)),
        threats=_texts(conclusion.get("threats")),
        next=_texts(conclusion.get("next")),
        not_scored={key: text(value) for key, value in part(conclusion, "not_scored").items()},
        looks=_object(conclusion.get("looks")),
        interim=_looks(data),
        noise_floor=_object(conclusion.get("noise_floor")),
        smallest_detectable=number(conclusion.get("smallest_detectable")),
        failures=[{"arm": arm.arm, "reason": arm.problem} for arm in data.arms if arm.problem],
        commands=dict(data.commands),
        conclusion_text=data.conclusion_text,
        notes=list(data.notes),
        requests=list(data.requests),
        config=data.config,
        conclusion=conclusion,
    )


def describe_arm(source: RecordSource, id: str, arm: str) -> ArmDetail:
    """Everything the page of one run with one seed shows at once."""
    return detail_of_arm(source, source.experiment(id), arm)


def detail_of_arm(source: RecordSource, data: ExperimentData, arm: str) -> ArmDetail:
    """The same for who has read the experiment already."""
    found = next((one for one in data.arms if one.arm == arm), None)
    if found is None:
        raise NotFound("arm", arm)
    files = source.arm_files(data.experiment.id, arm)
    configs = {text(run.get("name")): run for run in config_runs(data.config)}
    return ArmDetail(
        arm=_arm(found, decisive_metric(data)),
        config=dict(configs.get(found.run, {})),
        checkpoints=list(files.checkpoints),
        datasets=list(found.datasets),
        benchmarks=list(found.benchmarks),
        examples=files.examples,
        story=files.story,
    )


def baseline_of(data: ExperimentData) -> str:
    """The run that the others are compared with, as the conclusion says; else the first one."""
    told = text(data.conclusion.get("baseline"))
    return told or next((arm.run for arm in data.arms), "")


def decisive_metric(data: ExperimentData) -> str:
    """The full name of the metric that decides."""
    if data.experiment.metric:
        return data.experiment.metric
    name, _ = wanted_metric(part(data.config, "metadata"))
    return resolve_metric(name, (metric for arm in data.arms for metric in arm.metrics))


def _claim(data: ExperimentData) -> Claim:
    told = part(data.conclusion, "hypothesis")
    return Claim(
        text=text(told.get("claim")) or data.experiment.hypothesis,
        metric=text(told.get("metric")),
        direction=text(told.get("direction")),
        min_effect=number(told.get("min_effect")),
        baseline=text(told.get("baseline")),
        registered=data.conclusion.get("registered") is True,
        registered_at=data.registered_at,
        sha256=text(data.conclusion.get("hypothesis_sha256")),
    )


def _looks(data: ExperimentData) -> list[Look]:
    """Every look that was noted, and the one that the conclusion rests on; a look that was taken again counts once."""
    found = {_whole(row.get("look")) or 0: row for row in data.looks}
    last = part(data.conclusion, "sequential")
    if last and (place := _whole(last.get("look"))) is not None and place not in found:
        told = {"of": len(items(last.get("looks"))), "verdict": data.conclusion.get("verdict"), "ends": True}
        found[place] = {**last, **told, "why": last.get("outcome")}
    return [
        Look(
            look=at,
            of=_whole(row.get("of")) or 0,
            seeds=_whole(row.get("seeds")) or 0,
            verdict=text(row.get("verdict")),
            error=number(row.get("error")),
            chance=number(row.get("chance")),
            ends=row.get("ends") is True,
            why=text(row.get("why")),
        )
        for at, row in sorted(found.items())
    ]


def _runs(data: ExperimentData, varied: Sequence[str]) -> list[Run]:
    """The baseline first, then the others as the conclusion ranks them."""
    concluded = {text(row.get("name")): row for row in _rows(data.conclusion.get("runs"))}
    compared = {text(row.get("run")): row for row in _rows(data.conclusion.get("comparisons"))}
    configs = {text(run.get("name")): scalars(run) for run in config_runs(data.config)}
    metric, baseline = decisive_metric(data), baseline_of(data)
    by_run: dict[str, list[ArmData]] = {}
    for arm in data.arms:
        by_run.setdefault(arm.run, []).append(arm)
    # A conclusion may name runs that have no arms, and be older than some that have: each run once, as first named.
    order = [*([baseline] if baseline in by_run else []), *(run for run in concluded if run in by_run), *by_run]
    found: list[Run] = []
    for run in dict.fromkeys(order):
        told, arms = concluded.get(run, {}), by_run[run]
        scores = [arm.metrics[metric] for arm in arms if metric in arm.metrics and not arm.problem]
        mean = number(told.get("mean"))
        found.append(
            Run(
                run=run,
                is_baseline=run == baseline,
                is_best=run == data.experiment.best_run,
                varied={path: configs.get(run, {}).get(path) for path in varied},
                score=mean if mean is not None or not scores else sum(scores) / len(scores),
                low=number(told.get("low")),
                high=number(told.get("high")),
                selection_score=number(told.get("selection_score")),
                seed_scores=scores,
                n_seeds=len(arms),
                n_tasks=_whole(told.get("n_tasks")),
                n_samples=_whole(told.get("n_samples")),
                failures=sum(bool(arm.problem) for arm in arms),
                spend=_total(arms),
                difference=_difference(compared.get(run)),
                arms=[_arm(arm, metric) for arm in arms],
            )
        )
    return found


def _arm(arm: ArmData, metric: str) -> Arm:
    return Arm(
        arm=arm.arm,
        run=arm.run,
        seed=arm.seed,
        status=arm.status,
        problem=arm.problem,
        metrics=dict(arm.metrics),
        spend=dict(arm.spend),
        step=arm.step,
        total_steps=arm.total_steps,
        checkpoints=len(arm.checkpoints),
        score=arm.metrics.get(metric),
    )


def _difference(row: Object | None) -> Difference | None:
    value = number((row or {}).get("difference"))
    if row is None or value is None:
        return None
    return Difference(value=value, low=number(row.get("low")), high=number(row.get("high")), p=number(row.get("p")))


def sum_spend(source: RecordSource, id: str) -> Spend:
    """Where the money went."""
    data, lines = source.experiment(id), source.spend_lines(id)
    works: dict[str, dict[str, float]] = {}
    times: list[float] = []
    usd: list[float] = []
    tokens: list[float] = []
    for line in sorted(lines, key=lambda line: number(line.get("at")) or 0.0):
        what = text(line.get("what")) or "train"
        works[what] = add_spend(works.get(what, {}), line)
        times.append(number(line.get("at")) or 0.0)
        usd.append((usd[-1] if usd else 0.0) + (number(line.get("usd")) or 0.0))
        more = sum(number(line.get(name)) or 0.0 for name in ("tokens_trained", "tokens_sampled"))
        tokens.append((tokens[-1] if tokens else 0.0) + more)
    return Spend(
        total=dict(data.experiment.spend),
        by_arm=[SpendLine(name=arm.arm, spend=dict(arm.spend)) for arm in data.arms],
        by_work=[SpendLine(name=what, spend=spend) for what, spend in works.items()],
        times=times,
        usd=usd,
        tokens=tokens,
    )


def trace_lineage(source: RecordSource, id: str) -> Lineage:
    """Where an experiment comes from and what came of it."""
    data = source.experiment(id)
    nodes: dict[str, Node] = {}
    edges: dict[tuple[str, str, str], None] = {}

    def add(kind: Any, key: str, name: str, detail: str) -> str:
        nodes.setdefault(f"{kind}:{key}", Node(id=f"{kind}:{key}", kind=kind, name=name, detail=detail))
        return f"{kind}:{key}"

    own = add("experiment", data.experiment.id, data.experiment.name, data.experiment.verdict or data.experiment.status)
    for parent in source.experiments([data.experiment.parent_id]) if data.experiment.parent_id else ():
        edges[add("experiment", parent.id, parent.name, parent.verdict or parent.status), own, "led to"] = None
    children = source.list_experiments(ExperimentQuery(parent=data.experiment.id, limit=_MOST_CHILDREN))
    for child in children.items:
        edges[own, add("experiment", child.id, child.name, child.verdict or child.status), "led to"] = None
    for model in data.experiment.models:
        edges[add("model", model, model, ""), own, "trained from"] = None
    for arm in data.arms:
        for row in arm.datasets:
            key = text(row.get("id")) or text(row.get("sha256")) or text(row.get("source"))
            edges[add("dataset", key, text(row.get("source")) or key, text(row.get("sha256"))), own, "trained on"] = (
                None
            )
        for row in arm.benchmarks:
            key = text(row.get("id")) or text(row.get("sha256")) or text(row.get("name"))
            split = text(row.get("split")) or "test"
            name = f"{split}/{text(row.get('name'))}"
            edges[add("benchmark", key, name, text(row.get("sha256"))), own, "scored on"] = None
        for row in arm.checkpoints:
            if row.get("final") is True and text(row.get("path")):
                target = add("checkpoint", f"{data.experiment.id}/{arm.arm}", arm.arm, text(row.get("path")))
                edges[own, target, "made"] = None
    return Lineage(
        nodes=list(nodes.values()),
        edges=[Edge(source=source, target=target, kind=kind) for source, target, kind in edges],
    )


def _total(arms: Sequence[ArmData]) -> dict[str, float]:
    total: dict[str, float] = {}
    for arm in arms:
        total = add_spend(total, {name: arm.spend[name] for name in SPEND if name in arm.spend})
    return total


def _rows(value: Any) -> list[Object]:
    return [cast(Object, row) for row in items(value) if isinstance(row, dict)]


def _texts(value: Any) -> list[str]:
    return [one for one in items(value) if isinstance(one, str)]


def _object(value: Any) -> Object | None:
    return dict(cast(Mapping[str, Any], value)) if isinstance(value, dict) else None


def _whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None else int(found)
