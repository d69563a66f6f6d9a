"""What is asked of the record: which metric, on which tasks, which way is better, against what.

A metric may be a plain name (`pass@1`), the full name of one benchmark's score (`test/tools/pass@1`), or a number that
a run reports itself (`eval/exact_match`, `final_loss`). Choosing uses val, reporting uses test, wherever both exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...config.metadata import BASE_MODEL
from ...config.search import success_of
from ..hypothesis import Claim, find_claim, is_rate
from .evidence import BASELINE, Evidence, Scoring, SetKey

TRAIN_FIT = "train_fit/"
"""How scores on the training rows begin; they are never chosen by."""
_REPORT_ORDER = ("test", "eval", "val")
_BOOKKEEPING = ("/stderr", "/tasks", "/failed_samples", "/unscored_tasks")


@dataclass(frozen=True, slots=True)
class Question:
    """One metric on its sets."""

    metric: str
    """Plain name where it belongs to a benchmark, else the full name in a run's result."""
    sign: int
    """1 where more of it is asked for, -1 where less is."""
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

    @property
    def title(self) -> str:
        return self.metric if self.report is None else full_name(self.report, self.metric)


@dataclass(frozen=True, slots=True)
class Baseline:
    """What runs are compared with."""

    kind: Literal["run", "model", "level"]
    name: str
    how: str
    """Why this one, for the reader."""
    level: float | None = None
    """The score that a claim of an absolute level asks for."""


def full_name(key: SetKey, metric: str) -> str:
    """The name under which a benchmark's score is logged."""
    split, label = key
    return f"{split}/{metric}" if label == "" else f"{split}/{label}/{metric}"


def claim_question(evidence: Evidence, claim: Claim | None) -> Question | None:
    """The metric that the claim is about; without one, that of success."""
    if claim is None or claim.metric is None:
        return success_question(evidence)
    return ask(evidence, claim.metric, claim.sign)


def success_question(evidence: Evidence) -> Question | None:
    """The metric that decides which run is best."""
    success = success_of(evidence.metadata)
    if success is not None:
        return ask(evidence, success.name, 1 if success.mode == "max" else -1)
    claim = find_claim(evidence.metadata)
    if claim is not None and claim.metric is not None:
        return ask(evidence, claim.metric, claim.sign)
    name = _default_metric(evidence)
    return None if name is None else ask(evidence, name, -1 if name.endswith("loss") else 1)


def ask(evidence: Evidence, name: str, sign: int) -> Question | None:
    """The question about a metric; None where nothing in the record has it."""
    scored = _sets_with(evidence, name)
    if scored:
        planned = [key for key in evidence.planned_sets if key[0] == "test"]
        skipped = planned[0] if planned and not any(key[0] == "test" for key in scored) else None
        report = min(scored, key=lambda key: _rank(key[0]))
        return Question(name, sign, report, _selection(scored, report), skipped)
    for key in evidence.planned_sets:
        prefix = full_name(key, "")
        metric = name.removeprefix(prefix)
        if name.startswith(prefix) and key in (sets := _sets_with(evidence, metric)):
            return Question(metric, sign, key, _selection(sets, key))
    reported = {metric for arm in evidence.arms for metric in arm.metrics}
    found = next((candidate for candidate in (name, f"eval/{name}") if candidate in reported), None)
    return None if found is None else Question(found, sign)


def find_baseline(evidence: Evidence, question: Question, claim: Claim | None) -> Baseline | None:
    """What to compare with, if there is anything; a name that was asked for is taken even if it is not there."""
    if claim is not None and claim.level is not None:
        return Baseline("level", f"{claim.level:g}", "the claim names this level", claim.level)
    wanted = claim.baseline if claim is not None else None
    has_base = bool(base_model_keys(evidence, question))
    if wanted is not None:
        known = evidence.run(wanted) is not None
        if not known and wanted == BASE_MODEL and has_base:
            return Baseline("model", BASE_MODEL, "the hypothesis names it")
        return Baseline("run", wanted, "the hypothesis names it")
    named = evidence.run(BASELINE) or next((run for run in evidence.runs if BASELINE in run.tags), None)
    if named is not None:
        how = "it is called so" if named.name == BASELINE else "it is tagged so"
        return Baseline("run", named.name, how)
    if has_base:
        return Baseline("model", BASE_MODEL, "the model before training was scored on the same tasks")
    if evidence.parent is not None:
        return Baseline("run", evidence.parent.name, "this experiment goes on from it")
    left = [run.name for run in evidence.runs if not run.eliminated]
    if len(left) > 1:
        return Baseline("run", left[0], "it is the first run, and none is called or tagged `baseline`")
    return None


def base_model_keys(evidence: Evidence, question: Question, of: SetKey | None = None) -> list[SetKey]:
    """Where the scores of the model before training stand, for the set of the question."""
    wanted = of or question.report
    if wanted is None:
        return []
    key = (BASELINE, f"{wanted[0]}/{wanted[1]}/{BASE_MODEL}")
    return [key] if any(_has(arm.scorings, key, question.metric) for arm in evidence.arms) else []


def _has(scorings: Mapping[SetKey, Scoring], key: SetKey, metric: str) -> bool:
    return key in scorings and metric in scorings[key].scores


def _sets_with(evidence: Evidence, metric: str) -> list[SetKey]:
    return [key for key in evidence.planned_sets if any(_has(arm.scorings, key, metric) for arm in evidence.arms)]


def _selection(scored: Sequence[SetKey], report: SetKey) -> SetKey:
    return next((key for key in scored if key[0] == "val"), report)


def _rank(split: str) -> int:
    return _REPORT_ORDER.index(split) if split in _REPORT_ORDER else len(_REPORT_ORDER)


def _default_metric(evidence: Evidence) -> str | None:
    """What a reader would look at first: a benchmark's first metric, the run's own evaluation, the loss."""
    for key in sorted(evidence.planned_sets, key=lambda key: _rank(key[0])):
        for arm in evidence.arms:
            if key in arm.scorings and arm.scorings[key].scores:
                return next(iter(arm.scorings[key].scores))
    reported = sorted({metric for arm in evidence.arms for metric in arm.metrics})
    return next(_first(reported), None)


def _first(names: Sequence[str]) -> Iterator[str]:
    yield from (name for name in names if name.startswith("eval/") and not name.endswith(_BOOKKEEPING))
    yield from (name for name in ("final_loss",) if name in names)
