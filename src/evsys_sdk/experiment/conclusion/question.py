"""The question of a conclusion: its metric, tasks, direction and baseline.

A metric may be a plain name (`pass@1`), the full name of one benchmark's score (`test/tools/pass@1`), or a value in the
result of a run (`eval/exact_match`, `final_loss`). Selection uses val and the report uses test, if both exist.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...config.metadata import BASE_MODEL
from ...config.search import success_of
from ...record.run_files.scores import metric_name
from ...record.view.question import REPORTED, resolve_metric
from ..hypothesis import Claim, find_claim, is_rate
from .evidence import BASELINE, Evidence, Score, ScoredSet, SetKey

TRAIN_FIT = "train_fit/"
"""Prefix of scores on the training rows; they are not used for selection."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A metric with its direction, and the scored sets for selection and report."""

    title: str
    """Full name of the metric."""
    sign: int
    """1 if a higher value is claimed or better, -1 if a lower one is."""
    metric: str
    """Plain name for a metric of a benchmark, else the full name in a run's result."""
    report: SetKey | None = None
    """The benchmark whose scores are reported; None for a metric of the result."""
    selection: SetKey | None = None
    """The benchmark for selection among runs."""
    skipped: SetKey | None = None
    """A planned test set without scores, so that another set is reported."""

    @property
    def shared(self) -> bool:
        """Whether selection uses the reported scores."""
        return self.report == self.selection

    @property
    def is_rate(self) -> bool:
        """Whether the metric lies between 0 and 1."""
        return is_rate(self.metric)

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and highest possible value."""
        return (0.0, 1.0) if self.is_rate else (-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Baseline:
    """The reference for comparisons: a run, the model before training, or a claimed level."""

    kind: Literal["run", "model", "level"]
    name: str
    how: str
    """Why this baseline, as text."""
    level: float | None = None
    """The claimed absolute score."""

    @property
    def run(self) -> str | None:
        """Name of the baseline run; None for a model or a level."""
        return self.name if self.kind == "run" else None


def claim_question(evidence: Evidence, claim: Claim | None) -> Asked:
    """The question about the metric of the claim, or else about the success metric."""
    if claim is None or claim.metric is None:
        return success_question(evidence) or Asked("any metric", 1, "")
    return ask(evidence, claim.metric, claim.sign) or Asked(claim.metric, claim.sign, claim.metric)


def success_question(evidence: Evidence) -> Asked | None:
    """The question about the metric that decides which run is best."""
    success = success_of(evidence.metadata)
    if success is not None:
        return ask(evidence, success.name, 1 if success.mode == "max" else -1)
    claim = find_claim(evidence.metadata)
    if claim is not None and claim.metric is not None:
        return ask(evidence, claim.metric, claim.sign)
    return ask(evidence, "", 1) or ask(evidence, "final_loss", -1)


def ask(evidence: Evidence, name: str, sign: int) -> Asked | None:
    """Resolve a metric name with `resolve_metric`; return None if no arm has this metric."""
    scored = {
        metric_name(*key, metric): (key, metric)
        for key in evidence.planned_sets
        for arm in evidence.arms
        if key in arm.scorings
        for metric in arm.scorings[key].scores
    }
    reported = {metric for arm in evidence.arms for metric in arm.metrics}
    full = resolve_metric(name, [*scored, *sorted(reported)], REPORTED)
    if full not in scored:
        return Asked(full, sign, full) if full in reported else None
    report, metric = scored[full]
    others = [key for key, plain in scored.values() if plain == metric]
    selection = next((key for key in others if key[0] == "val"), report)
    planned = [key for key in evidence.planned_sets if key[0] == "test"]
    skipped = planned[0] if name != full and planned and report[0] != "test" else None
    return Asked(full, sign, metric, report, selection, skipped)


def find_baseline(evidence: Evidence, asked: Asked, claim: Claim | None) -> Baseline | None:
    """Choose the baseline; None if there is none. A baseline named in the claim is returned even if it is missing."""
    if claim is not None and claim.level is not None:
        return Baseline("level", f"{claim.level:g}", "the claim names this level", claim.level)
    has_base = bool(base_model_scores(evidence, asked, asked.report))
    if claim is not None and (wanted := claim.baseline) is not None:
        is_model = wanted == BASE_MODEL and has_base and evidence.run(wanted) is None
        return Baseline("model" if is_model else "run", wanted, "the hypothesis names it")
    if evidence.run(BASELINE) is not None:
        return Baseline("run", BASELINE, "it is called so")
    if tagged := [run.name for run in evidence.runs if BASELINE in run.tags]:
        return Baseline("run", tagged[0], "it is tagged so")
    if has_base:
        return Baseline("model", BASE_MODEL, "the model before training was scored on the same tasks")
    if evidence.parent is not None:
        return Baseline("run", evidence.parent.name, "this experiment continues from it")
    if len(evidence.runs) > 1:
        return Baseline("run", evidence.runs[0].name, "it is the first run, and none is called or tagged `baseline`")
    return None


def base_model_scores(evidence: Evidence, asked: Asked, of: SetKey | None) -> list[tuple[Score, ScoredSet]]:
    """The scores of the model before training on a set, from every arm that scored it."""
    key = (BASELINE, "" if of is None else f"{of[0]}/{of[1]}/{BASE_MODEL}")
    scorings = [arm.scorings[key] for arm in evidence.arms if key in arm.scorings]
    return [(one.scores[asked.metric], one) for one in scorings if asked.metric in one.scores]
