"""The speed of runs, measured on recorded runs, or now on the mock backend."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...backends.client import AdamParams, ModelSpec, SamplingParams
from ...backends.datum import Datum
from ...backends.mock.backend import MockBackend
from ...config import RunConfig
from ...config.prices import backend_of
from ...record.folders import RunTimes, latest_run_times
from ...record.values import number, part

if TYPE_CHECKING:
    from ...backends.client import TrainingClient

_RUNS_LOOKED_AT = 200
_TIMED_STEPS = 3
_TIMED_SEQUENCES = 64
_SAMPLES = 16
_SAMPLED = 32
_WARM_UP = 2
_TOO_FEW_STEPS = 5
"""In shorter runs most of the time is start-up."""
_MUCH_FASTER = 30
_SIMILAR = 2.0
"""Steps are comparable if their tokens differ by at most this factor."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds per million tokens, and their source."""

    train_s: float
    sample_s: float
    description: str
    whole_steps: bool = False
    """Whether `train_s` includes the sampling of a step."""

    def seconds(self, *, trained: int = 0, sampled: int = 0) -> float:
        return (trained * self.train_s + sampled * self.sample_s) / 1e6


def read_speed(run: RunConfig, output_dir: Path, *, step_tokens: float | None = None) -> Speed | None:
    """The speed of comparable runs: the same model and backend, with batches of similar size.

    Recorded durations of steps and scorings are used; for a run without them, its total spend. Unfinished runs are used
    if none has ended.
    """
    runs = [
        past
        for past in latest_run_times(output_dir, _RUNS_LOOKED_AT, lambda config: _is_same(config, run))
        if _is_usable(past, step_tokens)
    ]
    ended = [past for past in runs if past.result is not None]
    used, what = (ended, "earlier run") if ended else (runs, "unfinished run")
    train_s = _rate([_train_time(past) for past in used])
    if train_s is None:
        return None
    scorings = [scoring for past in used for scoring in past.scorings if not _is_repeated(scoring, train_s)]
    sample_s = _rate(scorings) or train_s
    source = f"{len(used)} {what}{'s' if len(used) > 1 else ''} of '{run.model.name}' on '{run.backend.kind}'"
    timed = any(past.steps for past in used)
    return Speed(train_s, sample_s, f"time is that of {source}", whole_steps=timed)


def _is_usable(run: RunTimes, step_tokens: float | None) -> bool:
    tokens, seconds = _train_time(run)
    if run.steps:
        timed = len(run.steps) - 1
        return timed > 0 and _is_comparable(timed, tokens, step_tokens, least=2)
    steps = number(part(run.result, "metrics").get("steps"))
    trained = number(part(run.result, "extras", "spend").get("tokens_trained")) or 0.0
    return tokens > 0 and seconds > 0 and _is_comparable(steps, trained, step_tokens)


def _is_repeated(scoring: tuple[float, float], train_s: float) -> bool:
    """Whether a scoring reused answers of an earlier attempt: it was much faster than training."""
    tokens, seconds = scoring
    return seconds / tokens * 1e6 < train_s / _MUCH_FASTER


def _train_time(run: RunTimes) -> tuple[float, float]:
    """Tokens and seconds of the steps without the slower first one; without recorded steps, of the whole run."""
    if run.steps:
        return sum(tokens for tokens, _ in run.steps[1:]), sum(seconds for _, seconds in run.steps[1:])
    spend = part(run.result, "extras", "spend")
    tokens = (number(spend.get("tokens_trained")) or 0.0) + (number(spend.get("tokens_sampled")) or 0.0)
    return tokens, number(spend.get("wall_s")) or 0.0


def _rate(times: Sequence[tuple[float, float]]) -> float | None:
    """Seconds per million tokens."""
    tokens = sum(tokens for tokens, _ in times)
    return sum(seconds for _, seconds in times) / tokens * 1e6 if tokens else None


def _is_same(config: Any, run: RunConfig) -> bool:
    try:
        return (config["backend"]["kind"], config["model"]["name"]) == (run.backend.kind, run.model.name)
    except (KeyError, TypeError):
        return False


def _is_comparable(
    steps: float | None, tokens: float, step_tokens: float | None, *, least: int = _TOO_FEW_STEPS
) -> bool:
    """Whether a run has enough steps, of a similar size."""
    if steps is None or step_tokens is None:
        return steps is None or steps >= least
    return steps >= least and 1 / _SIMILAR <= tokens / steps / step_tokens <= _SIMILAR


def measure_speed(run: RunConfig, lengths: Sequence[int]) -> Speed | None:
    """Time sequences of these lengths on the mock backend; None on other backends, where that may cost money."""
    if backend_of(run) != "mock" or not lengths or run.backend.params.get("latency_ms"):
        return None
    params = run.backend.params if run.backend.kind == "mock" else {}
    data = [_make_sequence(max(length, 2), number) for number, length in enumerate(lengths[:_TIMED_SEQUENCES])]
    with tempfile.TemporaryDirectory(prefix="evsys-plan-") as folder:
        backend = MockBackend(**{**params, "context_length": 1 << 20})
        handles = backend.prepare(model=ModelSpec(run.model.name, seed=run.seed), run_dir=Path(folder))
        try:
            train_s, sample_s = _time_work(handles["training_client"], data, _TIMED_STEPS)
        finally:
            backend.teardown(handles)
    return Speed(train_s, sample_s, "time was measured on this machine just now")


def _time_work(client: TrainingClient, data: Sequence[Datum], steps: int) -> tuple[float, float]:
    """Seconds per million trained tokens, and per million sampled tokens."""
    client.forward_backward(data[:_WARM_UP], "cross_entropy").result()  # the first call is slower
    began = time.perf_counter()
    for _ in range(steps):
        client.forward_backward(data, "cross_entropy").result()
        client.optim_step(AdamParams()).result()
    trained = (time.perf_counter() - began) / steps / sum(len(datum.tokens) for datum in data)
    sampler = client.sampler().result()
    began = time.perf_counter()
    # Without stop tokens, so that every answer has the full length.
    sampler.sample([1], _SAMPLES, SamplingParams(_SAMPLED, seed=0, stop=[])).result()
    sampled = (time.perf_counter() - began) / (_SAMPLES * _SAMPLED)
    return trained * 1e6, sampled * 1e6


def _make_sequence(length: int, number: int) -> Datum:
    """A sequence with a unique first token, because shared prefixes are computed once."""
    tokens = np.random.default_rng(number).integers(32, 122, length).tolist()
    return Datum.supervised([32 + number % 90, *tokens[1:]], [1.0] * length)
