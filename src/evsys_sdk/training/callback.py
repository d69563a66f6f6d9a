"""Observers of a run: the contract, and the fan-out that keeps them from harming it.

A callback overrides the moments it cares about. One that cannot start stops the run before anything is spent; after
that, nothing a callback does can end the run, except by asking for it through `RunControl.stop`.

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
"""How the reason of a stop begins that was asked for over a dashboard."""
DEADLINE = "budget: deadline"
"""Prefix of the reason of a stop that left time to score: the run is complete, and continues when it gets more time."""
_FAILURES_BEFORE_SILENCE = 3


def is_deadline_stop(reason: str | None) -> bool:
    """Whether a run ended early to be scored in time."""
    return (reason or "").startswith(DEADLINE)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What is known about a run when it starts."""

    experiment: str
    run_id: str
    run_dir: Path
    config: Mapping[str, Any]
    """The resolved run config, as JSON-like data."""
    total_steps: int | None = None
    """How many steps are planned, where the recipe knows."""
    steps_done: int = 0
    """Above 0 the run resumes after this step: drop whatever you recorded for later ones."""
    hypothesis: str | None = None
    measure: str = "loss"
    """What the recipe says it is getting on by, logged with each step ..."""
    measure_mode: Literal["min", "max"] = "min"
    """... and whether less or more of it is better."""
    repeats: tuple[EvalRecord, ...] = ()
    """Scorings of steps already done that will be recorded again, without their scores: drop what you have of them.

    A scoring that overlaps training is recorded later than its step, so a run may resume between the two.
    """

    @property
    def next_step(self) -> int:
        """The first step whose records will be written; whatever is there from this step on must go."""
        return self.steps_done + 1 if self.steps_done else 0


@dataclass(frozen=True, slots=True)
class EvalRecord:
    """One scoring of a model: which set, at which step, what came out."""

    name: str
    split: str
    """`val` and `test` for benchmarks, `eval` or `train_fit` for the run's own rows."""
    step: int
    metrics: Mapping[str, float]
    predictions: Sequence[Mapping[str, Any]] = ()

    def is_of(self, record: Mapping[str, Any]) -> bool:
        """Whether a recorded line of named metrics is about this scoring; any of its metrics shows it."""
        return record.get("step") == self.step and any(name in record for name in self.named_metrics)

    @property
    def named_metrics(self) -> dict[str, float]:
        """Scores as they are logged: `eval/exact_match`, or `val/<benchmark>/pass@1` where the set has a name."""
        own = f"{self.split}/"
        prefix = f"{own}{self.name}/" if self.name else own
        return {name if name.startswith(own) else prefix + name: value for name, value in self.metrics.items()}


@dataclass(slots=True)
class RunControl:
    """How an observer asks the loop to stop; safe to call from any thread."""

    stop_reason: str | None = None
    interrupted: bool = False
    """Whether the run was aborted rather than finished early."""
    more_stages: bool = False
    """Whether another stage follows the one that is trained."""
    stage_only: bool = False
    """Whether the stop ends a stage, and the next one is trained."""
    # Reentrant: Ctrl-C is handled on the main thread, which may be asking for a stop itself at that moment.
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def stop(self, reason: str, *, interrupted: bool = False, stage: bool = False) -> None:
        """Ask for a clean stop after the current step, of the `stage` or of the run; the first reason is kept."""
        with self._lock:
            if self.stop_reason is None or self.stage_only:
                self.stop_reason, self.interrupted = reason, interrupted
                self.stage_only = stage and self.more_stages

    def begin_stage(self, *, more: bool) -> None:
        """Forget a stop of the stage before; `more`: whether another stage follows."""
        with self._lock:
            self.more_stages = more
            if self.stage_only:
                self.stop_reason, self.stage_only = None, False


class Callback:
    """Base of observers: every moment is a no-op until overridden."""

    name = "callback"

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        """Before the first step; an exception here stops the run."""

    def on_data(self, rows: Sequence[Row]) -> None:
        """The rows that will be trained on."""

    def on_rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Before the step that learns from these attempts, failed ones included."""

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """After each optimiser step; the first one is step 1."""

    def on_scored(self, record: EvalRecord) -> None:
        """As soon as a scoring that overlaps training is done, from the thread that made it; for displays.

        `on_eval` hears of it at a fixed step, however fast the machine is.
        """

    def on_eval(self, record: EvalRecord) -> None:
        """After a scoring, during training or at its end."""

    def on_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """After a checkpoint was written."""

    def on_run_end(self, result: RunResult) -> None:
        """Once, however the run ended."""

    def on_experiment_end(self, folder: Path) -> None:
        """Once, where the experiment was started: it has ended, and `folder` holds all of its record.

        The callback is made anew for this, so it knows nothing of the runs but what is on disk.
        """

    def findings(self) -> Sequence[str]:
        """What it noticed about the run, in sentences; they go into the result."""
        return ()

    def read_decision(self, folder: Path) -> tuple[bool, str, str] | None:
        """What somebody elsewhere said to an experiment that waits for an approval: yes or no, why, and who.

        The callback is made anew for this, and asked every few seconds until there is an answer.
        """
        return None

    def close(self) -> None:
        """Release files and connections."""

    def state(self) -> dict[str, Any]:
        """What `restore` needs when the run resumes; saved with each checkpoint as JSON."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
"""The moments of a run, as methods of a callback."""


class _Completed(Callback):
    """An observer without our base class: it hears the moments that it has a method for."""

    def __init__(self, observer: Any) -> None:
        self.name = str(getattr(observer, "name", type(observer).__name__))
        for method in (*HOOKS, "findings", "close", "state", "restore"):
            if callable(own := getattr(observer, method, None)):
                setattr(self, method, own)


class Observers(Callback):
    """Several callbacks as one, each fenced off from the run and from the others."""

    name = "observers"

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = [_complete(callback) for callback in callbacks]
        self._failures = [0] * len(self._callbacks)

    def add(self, callback: Callback) -> None:
        """One more observer; it may be of any class that has one of the hooks."""
        self._callbacks.append(_complete(callback))
        self._failures.append(0)

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        """Start all of them; the one that cannot start stops the run."""
        for index, callback in enumerate(self._callbacks):
            try:
                callback.on_run_start(info, control)
            except Exception as error:
                # Those that never started have nothing to say about how the run ended.
                self._failures[index:] = [_FAILURES_BEFORE_SILENCE] * (len(self._callbacks) - index)
                raise _unusable(callback, "start", error) from error

    def on_data(self, rows: Sequence[Row]) -> None:
        self._tell(lambda callback: callback.on_data(rows))

    def on_rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        self._tell(lambda callback: callback.on_rollouts(step, tuple(rollouts)))

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        # Copies, here and below: what one of them does to its own reaches neither the run nor the others.
        self._tell(lambda callback: callback.on_step(step, dict(metrics)))

    def on_scored(self, record: EvalRecord) -> None:
        self._tell(lambda callback: callback.on_scored(replace(record, metrics=dict(record.metrics))))

    def on_eval(self, record: EvalRecord) -> None:
        self._tell(lambda callback: callback.on_eval(replace(record, metrics=dict(record.metrics))))

    def on_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        self._tell(lambda callback: callback.on_checkpoint(dict(checkpoint)))

    def on_run_end(self, result: RunResult) -> None:
        self._tell(lambda callback: callback.on_run_end(copy.deepcopy(result)))

    def findings(self) -> list[str]:
        found: list[str] = []
        self._tell(lambda callback: found.extend(str(one) for one in callback.findings()))
        return found

    def close(self) -> None:
        self._tell(lambda callback: callback.close(), always=True)

    def state(self) -> dict[str, Any]:
        """The states of those that have one, by position and name."""
        states: dict[int, dict[str, Any]] = {}

        def take(callback: Callback) -> None:
            # It is saved as JSON; what cannot be must be noticed here, where it costs only this observer.
            states[id(callback)] = json.loads(json.dumps(callback.state()))

        self._tell(take)
        found = {self._key(index): states.get(id(callback)) for index, callback in enumerate(self._callbacks)}
        return {key: state for key, state in found.items() if state}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Give each its state back; one that cannot continue stops the run before it trains."""
        for index, callback in enumerate(self._callbacks):
            if self._key(index) in state:
                try:
                    callback.restore(state[self._key(index)])
                except Exception as error:
                    raise _unusable(callback, "continue from its saved state", error) from error

    def _key(self, index: int) -> str:
        # Two callbacks of one kind have a state each, and another list of callbacks must not get them.
        return f"{index}:{self._callbacks[index].name}"

    def _tell(self, message: Callable[[Callback], None], *, always: bool = False) -> None:
        exited: TrainingError | None = None
        for index, callback in enumerate(self._callbacks):
            if self._failures[index] >= _FAILURES_BEFORE_SILENCE and not always:
                continue
            try:
                message(callback)
                self._failures[index] = 0
            except SystemExit as error:  # it asks for the end of the run, whatever its code
                said = f"callback '{callback.name}' called sys.exit({error.code!r}). Raise an error instead."
                exited = exited or TrainingError(said)
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
        f"callback '{callback.name}' cannot {what}: {reason.rstrip('.')}. Repair that, or remove it from callbacks."
    )
