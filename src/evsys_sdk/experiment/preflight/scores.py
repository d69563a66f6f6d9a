"""Check that the runs report the success metric, the metric of the hypothesis and its baseline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ...algorithms.base import BaseAlgorithm
from ...config import ExperimentConfig, Hypothesis, RunConfig, SuccessMetric
from ...config.metadata import BASE_MODEL
from ...errors import EvsysError, Problem, closest
from ...eval.benchmark import ScoreSettings
from ...protocols import Algorithm, traits_of
from ...training.callback import EvalRecord
from ..benchmark_plan import list_reported_metrics

_RESULTS = (
    "final_loss",
    "final_grad_norm",
    "steps",
    "tokens",
    "tokens_sampled",
    "epoch",
    "learning_rate",
    "supervised_tokens",
    "grad_clipped",
)
"""Metrics in the result of every run."""
_FAMILIES = ("reward/", "rollouts/", "groups/", "policy/", "teacher/", "dpo/", "retention/", "baseline/", "info/")
"""Prefixes of metrics that recipes report."""
_SCORES = ("val/", "test/", "eval/", "train_fit/")
_OWN = __name__.partition(".")[0]


@dataclass(slots=True)
class Reported:
    """The names of the metrics that the runs of an experiment report."""

    names: set[str] = field(default_factory=set[str])
    """Full names, e.g. `val/tools/pass@1`."""
    plain: set[str] = field(default_factory=set[str])
    """Names without the task set, e.g. `pass@1`."""
    is_open: bool = False
    """Whether a user-defined recipe may report other metrics."""

    def has(self, name: str) -> bool:
        return self.is_open or name in self.names or name in self.plain or name.startswith(_FAMILIES)

    def nearest(self, name: str) -> str:
        """A hint, as a sentence, with the name to use instead."""
        if name == "loss":
            return "Write 'final_loss', which is what a run ends with."
        scores = sorted(one for one in self.names if one.startswith(_SCORES))
        if guess := closest(name, [*self.plain, *self.names]):
            return f"Did you mean '{guess}'?"
        if scores:
            return f"The runs report {', '.join(scores[:6])} and final_loss; name one of them."
        return "The runs are scored on nothing: add metadata.benchmark, or run.eval with eval_data, or name final_loss."


def collect_reported(config: ExperimentConfig, algorithms: list[Algorithm]) -> Reported:
    """Collect the metrics that the runs of a config will report, as far as they are known before the run."""
    found = Reported(set(_RESULTS), set(), any(_is_own(algorithm) for algorithm in algorithms))
    found.names |= {traits_of(algorithm).selection_metric for algorithm in algorithms} - {"loss"}
    for entry in config.metadata.benchmark:
        metrics = list_reported_metrics(entry, config.metadata)
        found.plain |= set(metrics)
        found.names |= set(
            EvalRecord(entry.label or "", entry.role or "eval", 0, dict.fromkeys(metrics, 0.0)).named_metrics
        )
    seen: set[str] = set()
    for run in config.all_runs():
        key = repr((run.eval.metrics, run.eval.eval_data is None, run.continual is None))
        if run.eval.enabled and run.eval.metrics and key not in seen:
            seen.add(key)
            _add_evaluation(found, run)
    return found


def _add_evaluation(found: Reported, run: RunConfig) -> None:
    try:
        labels = list(ScoreSettings(metrics=run.eval.metrics).build_metrics())
    except EvsysError:  # reported with the metrics
        found.is_open = True
        return
    held_out = run.eval.eval_data is not None
    found.names |= {f"{'eval' if held_out else 'train_fit'}/{label}" for label in labels}
    found.plain |= set(labels) if held_out else set()


def _is_own(algorithm: Any) -> bool:
    """Whether code outside of the SDK reports metrics."""
    if stages := traits_of(algorithm).stages:
        return any(map(_is_own, stages))
    methods = ("build_batch", "step_metrics") if isinstance(algorithm, BaseAlgorithm) else ("train",)
    kind: Any = type(algorithm)  # pyright: ignore[reportUnknownVariableType]
    return any(getattr(kind, name).__module__.partition(".")[0] != _OWN for name in methods)


def score_problems(config: ExperimentConfig, reported: Reported) -> Iterator[Problem]:
    """Yield problems that prevent the conclusion: unknown metrics, baselines and selection metrics."""
    yield from _metric_problems(config, reported)
    yield from _baseline_problems(config)
    yield from _selection_problems(config, reported)


def _metric_problems(config: ExperimentConfig, reported: Reported) -> Iterator[Problem]:
    metadata = config.metadata
    success, claim = metadata.success_metric, metadata.hypothesis
    asked: list[tuple[str, str | None]] = []
    if isinstance(success, SuccessMetric):
        asked.append(("metadata.success_metric.name", success.name))
    else:
        asked.append(("metadata.success_metric", success))
    asked.append(("metadata.hypothesis.metric", claim.metric if isinstance(claim, Hypothesis) else None))
    for place, name in asked:
        if name is not None and not reported.has(name):
            yield Problem("no run will report this metric", place, name, reported.nearest(name))


def _baseline_problems(config: ExperimentConfig) -> Iterator[Problem]:
    claim = config.metadata.hypothesis
    wanted = claim.baseline if isinstance(claim, Hypothesis) else None
    if wanted is None or config.parent_experiment_id is not None:
        return
    place, names = "metadata.hypothesis.baseline", [run.name for run in config.all_runs()]
    if wanted in names:
        return
    scored_base = [entry for entry in config.metadata.benchmark if BASE_MODEL in entry.models]
    if wanted == BASE_MODEL:
        if not scored_base:
            hint = "Add `models: [base]` to a benchmark, so that the model before training is scored."
            yield Problem("the model before training is scored on no benchmark", place, wanted, hint)
        return
    guess = closest(wanted, names)
    known = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
    hint = f"Did you mean '{guess}'?" if guess else f"Runs: {known}."
    yield Problem("no run has this name", place, wanted, hint)


def _selection_problems(config: ExperimentConfig, reported: Reported) -> Iterator[Problem]:
    """Metrics for checkpoint selection or early stopping that no run reports, or that are test scores."""
    seen: set[str] = set()
    for index, run in enumerate(config.all_runs()):
        place = "run" if config.run is not None else f"runs[{index}]"
        name: Any = run.algorithm.params.get("selection_metric")
        if isinstance(name, str) and name not in seen:
            seen.add(name)
            yield from _find_unscored(name, f"{place}.algorithm.params.selection_metric", reported)
    for index, spec in enumerate(config.callbacks):
        name = spec.params.get("metric") if spec.kind == "early_stopping" else None
        if isinstance(name, str):
            yield from _find_unscored(name, f"callbacks[{index}].params.metric", reported)


def _find_unscored(name: str, place: str, reported: Reported) -> Iterator[Problem]:
    if name.startswith("test/"):
        hint = "Use a score on val: a test set only reports."
        yield Problem("a score on a test set must not choose", place, name, hint)
    elif name.startswith(_SCORES) and not reported.is_open and name not in reported.names:
        yield Problem("no run is scored by this metric", place, name, reported.nearest(name))
