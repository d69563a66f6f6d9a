"""What is asked of the record: which metric, on which tasks, which way is better, against what.

A metric may be a plain name (`pass@1`), the full name of one benchmark's score (`test/tools/pass@1`), or a number that
a run reports itself (`eval/exact_match`, `final_loss`). Choosing uses val, reporting uses test, wherever both exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...config.metadata import BASE_MODEL
from ...config.search import success_of
from ...record.run_files.scores import metric_name
from ...record.view.question import REPORTED, resolve_metric
from ..hypothesis import Claim, find_claim, is_rate
from .evidence import BASELINE, Evidence, Score, ScoredSet, SetKey

TRAIN_FIT = "train_fit/"
"""How scores on the training rows begin; they are never chosen by."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked, and where the record answers it."""

    title: str
    """Full name of the metric."""
    sign: int
    """1 where more of it is asked for, -1 where less is."""
    metric: str
    """Plain name where it belongs to a benchmark, else the full name in a run's result."""
    report: SetKey | None = None
    """The benchmark whose scores are reported; None for a number of the result."""
    selection: SetKey | None = None
    """The benchmark that chooses among runs."""
    skipped: SetKey | None = None
    """A test set that was planned and that no run was scored on, so that another one had to stand in."""

    @property
    def shared(self) -> bool:
        """Whether the runs are chosen by the very scores that are reported."""
        return self.report == self.selection

    @property
    def is_rate(self) -> bool:
        """Whether it is a share of something, so that no interval reaches beyond 0 and 1."""
        return is_rate(self.metric)


@dataclass(frozen=True, slots=True)
class Baseline:
    """What runs are compared with."""

    kind: Literal["run", "model", "level"]
    name: str
    how: str
    """Why this one, for the reader."""
    level: float | None = None
    """The score that a claim of an absolute level asks for."""

    @property
    def run(self) -> str | None:
        """The run that it is, if it is one."""
        return self.name if self.kind == "run" else None


def claim_question(evidence: Evidence, claim: Claim | None) -> Asked | None:
    """The metric that the claim is about; without one, that of success."""
    if claim is None or claim.metric is None:
        return success_question(evidence)
    return ask(evidence, claim.metric, claim.sign)


def success_question(evidence: Evidence) -> Asked | None:
    """The metric that decides which run is best."""
    success = success_of(evidence.metadata)
    if success is not None:
        return ask(evidence, success.name, 1 if success.mode == "max" else -1)
    claim = find_claim(evidence.metadata)
    if claim is not None and claim.metric is not None:
        return ask(evidence, claim.metric, claim.sign)
    return ask(evidence, "", 1) or ask(evidence, "final_loss", -1)


def ask(evidence: Evidence, name: str, sign: int) -> Asked | None:
    """The question about a metric, as `resolve_metric` finds it; None where nothing in the record has it."""
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
    """What to compare with, if there is anything; a name that was asked for is taken even if it is not there."""
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
    """What the model before training scored on a set; every arm may have asked it anew."""
    key = (BASELINE, "" if of is None else f"{of[0]}/{of[1]}/{BASE_MODEL}")
    scorings = [arm.scorings[key] for arm in evidence.arms if key in arm.scorings]
    return [(one.scores[asked.metric], one) for one in scorings if asked.metric in one.scores]
