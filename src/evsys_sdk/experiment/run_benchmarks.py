"""Score one run on its benchmarks: baselines before training, val sets during it, the rest at the end.

A failed scoring does not fail the run. The run is marked unscored instead, so that it cannot win.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.metadata import BASE_MODEL
from ..data.workspace.reference import slug
from ..errors import EvalError
from ..eval.benchmark import open_engine
from ..eval.pace import Pace
from ..eval.scored_model import ClientModel, SamplerModel, ScoredModel, as_scored_model
from ..eval.scores import EvalResult, warn_of_zeros
from ..files import write_json
from ..log import get_logger
from ..protocols import RunResult
from ..record.evidence import hash_value
from ..record.layout import ExperimentFiles, RunFiles
from ..record.lock import exclusive
from ..record.run_files.checkpoints import Checkpoint, CheckpointLog
from ..record.run_files.scores import ScoreLog
from ..registry import get_inference
from ..training.callback import EvalRecord, Observers
from ..training.scoring import BackgroundScoring, StepScores
from .benchmark_plan import PlannedBenchmark

if TYPE_CHECKING:
    from ..backends.client import SamplingClient, TrainingClient
    from ..backends.future import Operation
    from ..inference.renderer import Renderer
    from ..rollouts.engine import RolloutEngine, RolloutRequest
    from ..rollouts.rollout import Rollout

BASELINE = "baseline"


@dataclass(slots=True)
class RunBenchmarks:
    """Scores one run on its planned benchmarks."""

    planned: Sequence[PlannedBenchmark]
    client: TrainingClient
    renderer: Renderer
    observers: Observers
    run_dir: Path
    attempt: int
    identity: str
    """The untrained model; runs of an experiment that start from the same one share its scores."""
    problems: dict[str, str] = field(default_factory=dict[str, str])
    """Benchmark -> why it has no score at the moment."""
    history: list[str] = field(default_factory=list[str])
    """Every failure of a scoring, including those that a later scoring repaired."""
    _engines: dict[str, RolloutEngine] = field(default_factory=dict[str, Any])
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _zeros: Counter[str] = field(default_factory=Counter[str])
    """Consecutive scorings of an entry in which every answer scored 0."""
    _closed: bool = False
    _scoring: BackgroundScoring | None = None

    def __post_init__(self) -> None:
        write_json(RunFiles(self.run_dir).benchmarks, [plan.describe() for plan in self.planned])

    @property
    def in_loop(self) -> list[PlannedBenchmark]:
        return [plan for plan in self.planned if plan.entry.run_every is not None]

    @property
    def checkpoints(self) -> CheckpointLog:
        return CheckpointLog.in_dir(self.run_dir)

    @property
    def score_log(self) -> ScoreLog:
        return ScoreLog(self.run_dir)

    def background_scoring(self) -> BackgroundScoring | None:
        """The scorer of snapshots for the training loop; None when nothing is scored during training."""
        if self.in_loop and self._scoring is None:
            self._scoring = BackgroundScoring(
                score=self._score_snapshot,
                is_due=lambda step: any(plan.is_due(step) for plan in self.in_loop),
                observers=self.observers,
                checkpoints=self.checkpoints,
            )
        return self._scoring

    def repeats(self, last: Checkpoint | None) -> tuple[EvalRecord, ...]:
        """The scorings that a run resumed from `last` repeats for steps it has already trained."""
        if last is None:
            return ()
        running = int(last.scoring["step"]) if last.scoring else None
        again = [plan.blank(running) for plan in self.in_loop if running is not None and plan.is_due(running)]
        # A run that was scored completely is not resumed.
        missing = [plan for plan in self.planned if last.final and plan.metric_name("tasks") not in last.metrics]
        return (*again, *(plan.blank(last.next_step) for plan in missing))

    def score_baselines(self) -> None:
        """Score the models that entries name under `models`, before the first training step."""
        for plan in self.planned:
            # One seed for all runs, so that the samples are drawn only once.
            sampling = replace(plan.settings.sampling, seed=0)
            plan = replace(plan, settings=replace(plan.settings, sampling=sampling))
            for name in plan.entry.models:
                record_name = f"{plan.split}/{plan.label}/{name}"
                what = f"{BASELINE}/{record_name}"
                # Runs share the answers: the first samples them, the others wait and read.
                with exclusive(ExperimentFiles(self.run_dir.parent).baselines_lock, f"the scores of {what}"):
                    result = self._score_safely(plan, what, 0, lambda name=name: self._baseline(name))
                if result is not None:
                    record = EvalRecord(record_name, BASELINE, 0, result.flat_metrics, _list_predictions(result))
                    self.score_log.add(record, result)
                    self.observers.on_eval(record)
                    self.checkpoints.add_scores(0, {} if result.problem else record.named_metrics)

    def finish(self, result: RunResult) -> None:
        """Score what has no score yet and write all scores into the result of the run."""
        step = int(result.metrics.get("steps", 0))
        if result.status == "completed":
            for plan in self._find_unscored(result):
                scoring = self._score(plan, step, lambda: self._final_model(result, step), at_end=True)
                if scoring is not None:
                    self.observers.on_eval(scoring.record)
                    result.metrics |= scoring.scores
        baselines = self.checkpoints.scores().get(0, {})
        result.metrics |= {name: value for name, value in baselines.items() if name.startswith(f"{BASELINE}/")}
        self.score_log.settle()
        self._explain(result)

    def close(self) -> None:
        """Cancel running scorings; may be called twice."""
        with self._lock:
            self._closed = True
            engines = list(self._engines.values())
        for engine in engines:
            # Outside the lock, which a scoring takes before it submits.
            engine.close()
        if self._scoring is not None:
            self._scoring.close()

    def _find_unscored(self, result: RunResult) -> list[PlannedBenchmark]:
        """The benchmarks that training did not score, without those whose scoring has just failed."""
        unscored = [plan for plan in self.planned if plan.metric_name("tasks") not in result.metrics]
        tried = self._scoring is not None and int(result.metrics.get("steps", 0)) in self._scoring.failures
        return [plan for plan in unscored if not tried and f"{plan.split}/{plan.label}" not in self.problems]

    def _explain(self, result: RunResult) -> None:
        if self._scoring is not None:
            for step, reason in self._scoring.failures.items():
                self.history.append(f"after step {step}: {reason}")
        if result.status == "completed":
            missing = [plan for plan in self.planned if plan.metric_name("tasks") not in result.metrics]
            reasons = [f"{plan.split}/{plan.label}: {self._reason(plan)}" for plan in missing]
            if self._scoring is not None and not missing:  # the last step is scored, an earlier one is not
                reasons = [f"after step {step}: {reason}" for step, reason in self._scoring.failures.items()]
            if reasons:
                before = result.notes.unscored
                result.notes.unscored = "; ".join([*([before] if before else []), *reasons])
        if self.history:
            result.notes.scoring_problems = self.history
        if not any(plan.split == "val" for plan in self.planned):
            result.notes.selection = (
                "no benchmark has split val, so a choice among runs would use the very set that it is reported on"
            )

    def _reason(self, plan: PlannedBenchmark) -> str:
        failures = list(self._scoring.failures.values()) if self._scoring is not None else []
        return self.problems.get(f"{plan.split}/{plan.label}") or (failures[-1] if failures else "it was not scored")

    def _score_snapshot(self, step: int, sampler: SamplingClient, everything: bool) -> list[StepScores]:
        due = [plan for plan in self.in_loop if everything or plan.is_due(step)]
        # A step trained again gives another model, which must not reuse the answers of the earlier attempt.
        ref = sampler.ref or f"step {step} of attempt {self.attempt}"
        model = partial(self._sampler_model, sampler, ref)
        scorings = [self._score(plan, step, model, self._pace(plan), at_end=everything) for plan in due]
        return [scoring for scoring in scorings if scoring is not None]

    def _pace(self, plan: PlannedBenchmark) -> Pace | None:
        """The share of the sampler that a scoring may take while training continues."""
        if self._scoring is None:
            return None
        return Pace(plan.entry.share, plan.settings.limits.concurrency, self._scoring.awaited)

    def _score(
        self, plan: PlannedBenchmark, step: int, model: Any, pace: Pace | None = None, *, at_end: bool = False
    ) -> StepScores | None:
        what = f"{plan.split}/{plan.label}"
        result = self._score_safely(plan, what, step, model, pace)
        if result is None:
            return None
        self._zeros[what] = self._zeros[what] + 1 if result.saturated == 0 else 0
        if self._zeros[what] == 2 or (at_end and self._zeros[what] == 1):  # a 0 early in training is no finding
            warn_of_zeros(result, self.run_dir, step)
        record = EvalRecord(plan.label, plan.split, step, result.flat_metrics, _list_predictions(result))
        self.score_log.add(record, result)
        self.observers.on_scored(record)
        # An incomplete scoring is recorded, but must not select a checkpoint.
        return StepScores(record, {} if result.problem else record.named_metrics)

    def _score_safely(
        self, plan: PlannedBenchmark, what: str, step: int, model: Any, pace: Pace | None = None
    ) -> EvalResult | None:
        """Score and return the result; a failure is logged, kept in `problems`, and gives None."""
        subject: ScoredModel | None = None
        try:
            subject = model()
            result = plan.benchmark.score(
                subject, plan.settings, journal=self._journal(plan, what, step), engine=self._engine(plan), pace=pace
            )
            problem = result.problem
        except Exception as error:
            result, problem = None, f"{type(error).__name__}: {error}"
        finally:
            # The client of a hosted model belongs to this scoring; a sampler belongs to the run.
            if isinstance(subject, ClientModel):
                subject.client.close()
        self.problems.pop(what, None)
        if problem is not None:
            self.problems[what] = problem
            self.history.append(f"{what} after step {step}: {problem}")
            get_logger(__name__).error("%s after step %d is not scored: %s", what, step, problem)
        elif result is not None:
            get_logger(__name__).info("%s after step %d: %s", what, step, result.flat_metrics)
        return result

    def _journal(self, plan: PlannedBenchmark, what: str, step: int) -> Path:
        if what.startswith(f"{BASELINE}/"):
            # An untrained model depends on backend and seed; a hosted one is the same for all runs.
            base = f"{self.identity} " if what.endswith(f"/{BASE_MODEL}") else ""
            return ExperimentFiles(self.run_dir.parent).baseline(slug(f"{base}{what}"))
        return RunFiles(self.run_dir).predictions(slug(f"{plan.split}-{plan.label}"), step)

    def _engine(self, plan: PlannedBenchmark) -> RolloutEngine:
        with self._lock:
            if self._closed:
                raise EvalError("the run has ended, so nothing more is scored.")
            key = f"{plan.split}/{plan.label}"
            if key not in self._engines:
                self._engines[key] = open_engine(plan.settings.engine, plan.settings.limits)
            return _RunEngine(self, self._engines[key])

    def submit(self, engine: RolloutEngine, requests: Sequence[RolloutRequest]) -> Operation[list[Rollout]]:
        """Start rollouts, unless the run has ended; a closed engine would start again."""
        with self._lock:
            if self._closed:
                raise EvalError("the run has ended, so nothing more is scored.")
            return engine.submit(requests)

    def _sampler_model(self, sampler: SamplingClient, ref: str) -> ScoredModel:
        return SamplerModel(sampler, self.renderer, self.client.capabilities.context_length, ref)

    def _final_model(self, result: RunResult, step: int) -> ScoredModel:
        """The weights at the end of training, by their saved name if they have one."""
        ref = result.artifacts.get("final_sampler")
        sampler = (self.client.open_sampler(ref) if ref else self.client.sampler()).result()
        ref = ref or f"step {step} of attempt {self.attempt}"
        prompt = result.notes.system_prompt
        if prompt is None:
            return self._sampler_model(sampler, ref)
        renderer, length = self.renderer.with_system_prompt(prompt), self.client.capabilities.context_length
        return SamplerModel(sampler, renderer, length, f"{ref} {hash_value(prompt)[:12]}")

    def _baseline(self, name: str) -> ScoredModel:
        if name == BASE_MODEL:
            return self._sampler_model(self.client.sampler().result(), self.identity)
        kind, _, model = name.partition(":")
        return as_scored_model(get_inference(kind)(model=model), ref=name)


@dataclass(frozen=True, slots=True)
class _RunEngine:
    """An engine that refuses requests after its run has ended; the run closes it."""

    benchmarks: RunBenchmarks
    engine: RolloutEngine

    def submit(self, requests: Sequence[RolloutRequest]) -> Operation[list[Rollout]]:
        return self.benchmarks.submit(self.engine, requests)

    def close(self) -> None: ...


def _list_predictions(result: EvalResult) -> list[dict[str, Any]]:
    return [prediction.shown for prediction in result.predictions]
