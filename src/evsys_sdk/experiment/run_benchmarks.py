"""The benchmarks of one run: baselines before training, val sets while it continues, the rest once it is over.

A failure here never fails the run and never vanishes: the run is marked unscored, so that it cannot win.
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
    """Scores one run."""

    planned: Sequence[PlannedBenchmark]
    client: TrainingClient
    renderer: Renderer
    observers: Observers
    run_dir: Path
    attempt: int
    identity: str
    """Which untrained model this is: equal ones are scored once for all runs of an experiment."""
    problems: dict[str, str] = field(default_factory=dict[str, str])
    """What is not scored at the moment, and why."""
    history: list[str] = field(default_factory=list[str])
    """Everything that went wrong with a scoring, also where a later one went well."""
    _engines: dict[str, RolloutEngine] = field(default_factory=dict[str, Any])
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _zeros: Counter[str] = field(default_factory=Counter[str])
    """How many scorings of an entry in a row were 0 for every answer."""
    _closed: bool = False
    _scoring: BackgroundScoring | None = None

    def __post_init__(self) -> None:
        write_json(RunFiles(self.run_dir).benchmarks, [one.describe() for one in self.planned])

    @property
    def in_loop(self) -> list[PlannedBenchmark]:
        return [one for one in self.planned if one.entry.run_every is not None]

    @property
    def checkpoints(self) -> CheckpointLog:
        return CheckpointLog.in_dir(self.run_dir)

    @property
    def score_log(self) -> ScoreLog:
        return ScoreLog(self.run_dir)

    def background_scoring(self) -> BackgroundScoring | None:
        """What the training loop asks to score snapshots; None when nothing is scored during training."""
        if self.in_loop and self._scoring is None:
            self._scoring = BackgroundScoring(
                score=self._score_snapshot,
                is_due=lambda step: any(one.is_due(step) for one in self.in_loop),
                observers=self.observers,
                checkpoints=self.checkpoints,
            )
        return self._scoring

    def repeats(self, last: Checkpoint | None) -> tuple[EvalRecord, ...]:
        """What a run that continues from `last` records again, although its step is done."""
        if last is None:
            return ()
        running = int(last.scoring["step"]) if last.scoring else None
        again = [one.blank(running) for one in self.in_loop if running is not None and one.is_due(running)]
        # A run that was scored completely is not resumed.
        lacking = [one for one in self.planned if last.final and one.metric_name("tasks") not in last.metrics]
        return (*again, *(one.blank(last.next_step) for one in lacking))

    def score_baselines(self) -> None:
        """Score the other models that entries name, before training changes the first of them."""
        for planned in self.planned:
            # The same samples for every run, so that they need to be drawn only once.
            sampling = replace(planned.settings.sampling, seed=0)
            one = replace(planned, settings=replace(planned.settings, sampling=sampling))
            for name in one.entry.models:
                record_name = f"{one.split}/{one.label}/{name}"
                what = f"{BASELINE}/{record_name}"
                # Runs share the answers, also those that are trained at the same time: one asks, the others read.
                with exclusive(ExperimentFiles(self.run_dir.parent).baselines_lock, f"the scores of {what}"):
                    result = self._score_safely(one, what, 0, lambda name=name: self._baseline(name))
                if result is not None:
                    record = EvalRecord(record_name, BASELINE, 0, result.flat_metrics, _list_predictions(result))
                    self.score_log.add(record, result)
                    self.observers.on_eval(record)
                    self.checkpoints.add_scores(0, {} if result.problem else record.named_metrics)

    def finish(self, result: RunResult) -> None:
        """Score what is left and write everything into the result of the run."""
        step = int(result.metrics.get("steps", 0))
        if result.status == "completed":
            for one in self._find_unscored(result):
                scoring = self._score(one, step, lambda: self._final_model(result, step), at_end=True)
                if scoring is not None:
                    self.observers.on_eval(scoring.record)
                    result.metrics |= scoring.scores
        baselines = self.checkpoints.scores().get(0, {})
        result.metrics |= {name: value for name, value in baselines.items() if name.startswith(f"{BASELINE}/")}
        self.score_log.settle()
        self._explain(result)

    def close(self) -> None:
        """Cancel what is running; doing it twice is fine."""
        with self._lock:
            self._closed = True
            engines = list(self._engines.values())
        for engine in engines:
            # Without the lock, which a scoring that is about to submit needs to be told that it is too late.
            engine.close()
        if self._scoring is not None:
            self._scoring.close()

    def _find_unscored(self, result: RunResult) -> list[PlannedBenchmark]:
        """What training did not score; a set that has just failed at its end is not tried at once again."""
        unscored = [one for one in self.planned if one.metric_name("tasks") not in result.metrics]
        tried = self._scoring is not None and int(result.metrics.get("steps", 0)) in self._scoring.failures
        return [one for one in unscored if not tried and f"{one.split}/{one.label}" not in self.problems]

    def _explain(self, result: RunResult) -> None:
        if self._scoring is not None:
            for step, reason in self._scoring.failures.items():
                self.history.append(f"after step {step}: {reason}")
        if result.status == "completed":
            lacking = [one for one in self.planned if one.metric_name("tasks") not in result.metrics]
            reasons = [f"{one.split}/{one.label}: {self._reason(one)}" for one in lacking]
            if self._scoring is not None and not lacking:  # the end was scored, but not everything that was to be
                reasons = [f"after step {step}: {reason}" for step, reason in self._scoring.failures.items()]
            if reasons:
                before = result.notes.unscored
                result.notes.unscored = "; ".join([*([before] if before else []), *reasons])
        if self.history:
            result.notes.scoring_problems = self.history
        if not any(one.split == "val" for one in self.planned):
            result.notes.selection = (
                "no benchmark has split val, so a choice among runs would use the very set that it is reported on"
            )

    def _reason(self, one: PlannedBenchmark) -> str:
        failures = list(self._scoring.failures.values()) if self._scoring is not None else []
        return self.problems.get(f"{one.split}/{one.label}") or (failures[-1] if failures else "it was not scored")

    def _score_snapshot(self, step: int, sampler: SamplingClient, everything: bool) -> list[StepScores]:
        due = [one for one in self.in_loop if everything or one.is_due(step)]
        # Steps that are trained again give another model, whose answers must not be taken from the attempt before.
        ref = sampler.ref or f"step {step} of attempt {self.attempt}"
        model = partial(self._sampler_model, sampler, ref)
        found = [self._score(one, step, model, self._pace(one), at_end=everything) for one in due]
        return [scoring for scoring in found if scoring is not None]

    def _pace(self, one: PlannedBenchmark) -> Pace | None:
        """How fast a snapshot is scored while training continues; as fast as it goes once training waits for it."""
        if self._scoring is None:
            return None
        return Pace(one.entry.share, one.settings.limits.concurrency, self._scoring.awaited)

    def _score(
        self, one: PlannedBenchmark, step: int, model: Any, pace: Pace | None = None, *, at_end: bool = False
    ) -> StepScores | None:
        what = f"{one.split}/{one.label}"
        result = self._score_safely(one, what, step, model, pace)
        if result is None:
            return None
        self._zeros[what] = self._zeros[what] + 1 if result.saturated == 0 else 0
        if self._zeros[what] == 2 or (at_end and self._zeros[what] == 1):  # a first 0 in training may only be early
            warn_of_zeros(result, self.run_dir, step)
        record = EvalRecord(one.label, one.split, step, result.flat_metrics, _list_predictions(result))
        self.score_log.add(record, result)
        self.observers.on_scored(record)
        # What is not scored completely is on record, but must choose no checkpoint.
        return StepScores(record, {} if result.problem else record.named_metrics)

    def _score_safely(
        self, one: PlannedBenchmark, what: str, step: int, model: Any, pace: Pace | None = None
    ) -> EvalResult | None:
        """The result, or None; what went wrong is logged and kept."""
        subject: ScoredModel | None = None
        try:
            subject = model()
            result = one.benchmark.score(
                subject, one.settings, journal=self._journal(one, what, step), engine=self._engine(one), pace=pace
            )
            problem = result.problem
        except Exception as error:
            result, problem = None, f"{type(error).__name__}: {error}"
        finally:
            # The client of a hosted model was opened for this scoring; a sampler belongs to the run.
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

    def _journal(self, one: PlannedBenchmark, what: str, step: int) -> Path:
        if what.startswith(f"{BASELINE}/"):
            # The untrained model is that of a backend and a seed; a hosted one is the same for all runs.
            base = f"{self.identity} " if what.endswith(f"/{BASE_MODEL}") else ""
            return ExperimentFiles(self.run_dir.parent).baseline(slug(f"{base}{what}"))
        return RunFiles(self.run_dir).predictions(slug(f"{one.split}-{one.label}"), step)

    def _engine(self, one: PlannedBenchmark) -> RolloutEngine:
        with self._lock:
            if self._closed:
                raise EvalError("the run has ended, so nothing more is scored.")
            key = f"{one.split}/{one.label}"
            if key not in self._engines:
                self._engines[key] = open_engine(one.settings.engine, one.settings.limits)
            return _RunEngine(self, self._engines[key])

    def submit(self, engine: RolloutEngine, requests: Sequence[RolloutRequest]) -> Operation[list[Rollout]]:
        """Start rollouts, unless the run has ended: an engine that was closed would start again for them."""
        with self._lock:
            if self._closed:
                raise EvalError("the run has ended, so nothing more is scored.")
            return engine.submit(requests)

    def _sampler_model(self, sampler: SamplingClient, ref: str) -> ScoredModel:
        return SamplerModel(sampler, self.renderer, self.client.capabilities.context_length, ref)

    def _final_model(self, result: RunResult, step: int) -> ScoredModel:
        """The weights that training ended with, by their own name where they have one."""
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
    """An engine for as long as its run continues; the run closes it."""

    benchmarks: RunBenchmarks
    engine: RolloutEngine

    def submit(self, requests: Sequence[RolloutRequest]) -> Operation[list[Rollout]]:
        return self.benchmarks.submit(self.engine, requests)

    def close(self) -> None: ...


def _list_predictions(result: EvalResult) -> list[dict[str, Any]]:
    return [prediction.shown for prediction in result.predictions]
