"""Observers of a run: the contract, and the fan-out that isolates the run from their errors.

A callback overrides the hooks it needs. A callback that fails to start stops the run before anything is spent. After
that, callbacks can end the run only through `RunControl.stop`.

    @register_callback("shout")
    class Shout(Callback):
        def on_step(self, step, metrics):
            print(step, metrics["loss"])
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import EvsysError, TrainingError
from ..log import get_logger
from ..protocols import Row, RunResult

if TYPE_CHECKING:
    from ..rollouts.rollout import Rollout

STOPPED_ON_DASHBOARD = "stopped on the dashboard: "
"""Prefix of the reason of a stop requested on a dashboard."""
DEADLINE = "budget: deadline"
"""Prefix of the reason of a stop that left time to score: the run is complete, and continues with more time."""
_FAILURES_BEFORE_SILENCE = 3


def is_deadline_stop(reason: str | None) -> bool:
    """Whether a run ended early to be scored in time."""
    return (reason or "").startswith(DEADLINE)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Facts about a run at its start."""

    experiment: str
    run_id: str
    run_dir: Path
    config: Mapping[str, Any]
    """The resolved run config, as JSON-like data."""
    total_steps: int | None = None
    """Planned steps, if the recipe knows."""
    steps_done: int = 0
    """Above 0, the run resumes after this step: drop your records of later ones."""
    hypothesis: str | None = None
    measure: str = "loss"
    """The recipe's progress metric, logged with each step ..."""
    measure_mode: Literal["min", "max"] = "min"
    """... and whether lower or higher is better."""
    repeats: tuple[EvalRecord, ...] = ()
    """Evaluations of finished steps that will be recorded again, without their scores: drop your records of them.

        An evaluation that overlaps training is recorded after its step, so a run may resume in between.
    """

    @property
    def next_step(self) -> int:
        """The first step to be recorded; drop existing records from this step on."""
        return self.steps_done + 1 if self.steps_done else 0


@dataclass(frozen=True, slots=True)
class EvalRecord:
    """One evaluation of a model: its set, step and scores."""

    name: str
    split: str
    """`val` and `test` for benchmarks, `eval` or `train_fit` for the run's own rows."""
    step: int
    metrics: Mapping[str, float]
    predictions: Sequence[Mapping[str, Any]] = ()

    def is_of(self, record: Mapping[str, Any]) -> bool:
        """Whether a recorded line of named metrics belongs to this evaluation."""
        return record.get("step") == self.step and any(name in record for name in self.named_metrics)

    @property
    def named_metrics(self) -> dict[str, float]:
        """Scores by logged name: `eval/exact_match`, or `val/<benchmark>/pass@1` for a named set."""
        split_prefix = f"{self.split}/"
        prefix = f"{split_prefix}{self.name}/" if self.name else split_prefix
        return {name if name.startswith(split_prefix) else prefix + name: value for name, value in self.metrics.items()}


@dataclass(slots=True)
class RunControl:
    """Lets an observer stop the loop; thread-safe."""

    stop_reason: str | None = None
    interrupted: bool = False
    """Whether the run was aborted rather than finished early."""
    more_stages: bool = False
    """Whether another stage follows the current one."""
    stage_only: bool = False
    """Whether the stop ends only the stage, and the next one is trained."""
    # Reentrant: the handler of Ctrl-C runs on the main thread, which may hold the lock.
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def stop(self, reason: str, *, interrupted: bool = False, stage: bool = False) -> None:
        """Request a clean stop of the run or `stage` after the current step; the first reason is kept."""
        with self._lock:
            if self.stop_reason is None or self.stage_only:
                self.stop_reason, self.interrupted = reason, interrupted
                self.stage_only = stage and self.more_stages

    def begin_stage(self, *, more: bool) -> None:
        """Clear a stop of the previous stage; `more`: whether another stage follows."""
        with self._lock:
            self.more_stages = more
            if self.stage_only:
                self.stop_reason, self.stage_only = None, False


class Callback:
    """Base of observers: every hook is a no-op until overridden."""

    name = "callback"

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        """Before the first step; an exception here stops the run."""

    def on_data(self, rows: Sequence[Row]) -> None:
        """The rows of the training data."""

    def on_rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Before the step that learns from these rollouts, failed ones included."""

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """After each optimiser step; the first one is step 1."""

    def on_scored(self, record: EvalRecord) -> None:
        """As soon as an overlapping evaluation is done, on its thread; for displays.

        `on_eval` reports it at a fixed step, independently of the machine's speed.
        """

    def on_eval(self, record: EvalRecord) -> None:
        """After an evaluation, during training or at its end."""

    def on_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """After a checkpoint was written."""

    def on_run_end(self, result: RunResult) -> None:
        """Once, for every outcome of the run."""

    def on_experiment_end(self, folder: Path) -> None:
        """Once in the process that started the experiment, after its end; `folder` has the whole record.

        Called on a new instance, which has no state of the runs.
        """

    def findings(self) -> Sequence[str]:
        """Problems found in the run, as sentences for the result."""
        return ()

    def read_decision(self, folder: Path) -> tuple[bool, str, str] | None:
        """A remote decision on an experiment that waits for approval: approved or not, the reason, and the person.

        Called on a new instance every few seconds until there is a decision.
        """
        return None

    def close(self) -> None:
        """Release files and connections."""

    def state(self) -> dict[str, Any]:
        """State for `restore` on resume; saved with each checkpoint as JSON."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
"""The hook methods of a callback."""


class _Completed(Callback):
    """An observer without our base class; it is called for the hooks it defines."""

    def __init__(self, observer: Any) -> None:
        self.name = str(getattr(observer, "name", type(observer).__name__))
        for method in (*HOOKS, "findings", "close", "state", "restore"):
            if callable(hook := getattr(observer, method, None)):
                setattr(self, method, hook)


class Observers(Callback):
    """Several callbacks as one, with their errors isolated."""

    name = "observers"

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = [_complete(callback) for callback in callbacks]
        self._failures = [0] * len(self._callbacks)

    def add(self, callback: Callback) -> None:
        """Add an observer of any class with at least one hook."""
        self._callbacks.append(_complete(callback))
        self._failures.append(0)

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        """Start all callbacks; one that fails to start stops the run."""
        for index, callback in enumerate(self._callbacks):
            try:
                callback.on_run_start(info, control)
            except Exception as error:
                # Callbacks that never started get no further calls.
                self._failures[index:] = [_FAILURES_BEFORE_SILENCE] * (len(self._callbacks) - index)
                raise _unusable(callback, "start", error) from error

    def on_data(self, rows: Sequence[Row]) -> None:
        self._call_all(lambda callback: callback.on_data(rows))

    def on_rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        self._call_all(lambda callback: callback.on_rollouts(step, tuple(rollouts)))

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        # Copies here and below, so that callbacks cannot change the data of the run or of each other.
        self._call_all(lambda callback: callback.on_step(step, dict(metrics)))

    def on_scored(self, record: EvalRecord) -> None:
        self._call_all(lambda callback: callback.on_scored(replace(record, metrics=dict(record.metrics))))

    def on_eval(self, record: EvalRecord) -> None:
        self._call_all(lambda callback: callback.on_eval(replace(record, metrics=dict(record.metrics))))

    def on_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        self._call_all(lambda callback: callback.on_checkpoint(dict(checkpoint)))

    def on_run_end(self, result: RunResult) -> None:
        self._call_all(lambda callback: callback.on_run_end(copy.deepcopy(result)))

    def findings(self) -> list[str]:
        sentences: list[str] = []
        self._call_all(lambda callback: sentences.extend(map(str, callback.findings())))
        return sentences

    def close(self) -> None:
        self._call_all(lambda callback: callback.close(), always=True)

    def state(self) -> dict[str, Any]:
        """The non-empty states, by position and name."""
        states: dict[int, dict[str, Any]] = {}

        def take(callback: Callback) -> None:
            # Check here that it is JSON, so that an error affects only this callback.
            states[id(callback)] = json.loads(json.dumps(callback.state()))

        self._call_all(take)
        by_key = {self._key(index): states.get(id(callback)) for index, callback in enumerate(self._callbacks)}
        return {key: state for key, state in by_key.items() if state}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore each state; a callback that fails to restore stops the run before it trains."""
        for index, callback in enumerate(self._callbacks):
            if self._key(index) in state:
                try:
                    callback.restore(state[self._key(index)])
                except Exception as error:
                    raise _unusable(callback, "continue from its saved state", error) from error

    def _key(self, index: int) -> str:
        # The position separates callbacks of one kind; the name detects a changed list.
        return f"{index}:{self._callbacks[index].name}"

    def _call_all(self, call: Callable[[Callback], None], *, always: bool = False) -> None:
        exited: TrainingError | None = None
        for index, callback in enumerate(self._callbacks):
            if self._failures[index] >= _FAILURES_BEFORE_SILENCE and not always:
                continue
            try:
                call(callback)
                self._failures[index] = 0
            except SystemExit as error:
                message = f"callback '{callback.name}' called sys.exit({error.code!r}). Raise an error instead."
                exited = exited or TrainingError(message)
            except Exception as error:
                self._failures[index] += 1
                silenced = self._failures[index] == _FAILURES_BEFORE_SILENCE
                consequence = "; it will not be called again in this run" if silenced else ""
                get_logger(__name__).warning(
                    "callback '%s' failed: %s: %s%s", callback.name, type(error).__name__, error, consequence
                )
        if exited is not None:
            raise exited


def _complete(callback: Any) -> Callback:
    return callback if isinstance(callback, Callback) else _Completed(callback)


def _unusable(callback: Callback, what: str, error: Exception) -> TrainingError:
    reason = str(error) if isinstance(error, EvsysError) else f"{type(error).__name__}: {error}"
    return TrainingError(
        f"callback '{callback.name}' cannot {what}: {reason.rstrip('.')}. Fix it, or remove it from callbacks."
    )
