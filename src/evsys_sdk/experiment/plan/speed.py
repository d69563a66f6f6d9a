"""How fast runs are: measured on earlier runs of the record, or on the mock backend here and now."""

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
"""Shorter runs are mostly start-up."""
_MUCH_FASTER = 30
_SIMILAR = 2.0
"""Steps of up to so many times as many tokens are of a similar size."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds for a million tokens, and where that comes from."""

    train_s: float
    sample_s: float
    says: str
    whole_steps: bool = False
    """Whether `train_s` contains what is sampled for a step."""

    def seconds(self, *, trained: int = 0, sampled: int = 0) -> float:
        return (trained * self.train_s + sampled * self.sample_s) / 1e6


def read_speed(run: RunConfig, output_dir: Path, *, step_tokens: float | None = None) -> Speed | None:
    """What comparable runs took: the same model on the same backend, with batches of about as many tokens.

    Steps and scorings count as they were timed; a run of which only the end is on record says what it spent in all.
    Those that are still going count where none has ended.
    """
    runs = list(latest_run_times(output_dir, _RUNS_LOOKED_AT, lambda config: _is_same(config, run)))
    ended = [one for one in runs if one.result is not None and _says_how_fast(one, step_tokens)]
    going = [one for one in runs if one.result is None and _says_how_fast(one, step_tokens)]
    found, what = (ended, "earlier run") if ended else (going, "unfinished run")
    train_s = _rate([_train_time(one) for one in found])
    if train_s is None:
        return None
    answered = [scoring for one in found for scoring in one.scorings if not _is_repeated(scoring, train_s)]
    sample_s = _rate(answered) or train_s
    says = f"{len(found)} {what}{'s' if len(found) > 1 else ''} of '{run.model.name}' on '{run.backend.kind}'"
    timed = any(one.steps for one in found)
    return Speed(train_s, sample_s, f"time is that of {says}", whole_steps=timed)


def _says_how_fast(run: RunTimes, step_tokens: float | None) -> bool:
    tokens, seconds = _train_time(run)
    if run.steps:
        timed = len(run.steps) - 1
        return timed > 0 and _is_comparable(timed, tokens, step_tokens, least=2)
    steps = number(part(run.result, "metrics").get("steps"))
    trained = number(part(run.result, "extras", "spend").get("tokens_trained")) or 0.0
    return tokens > 0 and seconds > 0 and _is_comparable(steps, trained, step_tokens)


def _is_repeated(scoring: tuple[float, float], train_s: float) -> bool:
    """Whether answers of an earlier attempt were read again: no model answers so much faster than it trains."""
    tokens, seconds = scoring
    return seconds / tokens * 1e6 < train_s / _MUCH_FASTER


def _train_time(run: RunTimes) -> tuple[float, float]:
    """Tokens and seconds of the steps, without the first, which is slower; else of everything."""
    if run.steps:
        return sum(tokens for tokens, _ in run.steps[1:]), sum(seconds for _, seconds in run.steps[1:])
    spend = part(run.result, "extras", "spend")
    tokens = (number(spend.get("tokens_trained")) or 0.0) + (number(spend.get("tokens_sampled")) or 0.0)
    return tokens, number(spend.get("wall_s")) or 0.0


def _rate(times: Sequence[tuple[float, float]]) -> float | None:
    """Seconds for a million tokens."""
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
    """Whether a run says something about another: enough steps to outweigh the start, and steps of a similar size."""
    if steps is None or step_tokens is None:
        return steps is None or steps >= least
    return steps >= least and 1 / _SIMILAR <= tokens / steps / step_tokens <= _SIMILAR


def measure_speed(run: RunConfig, lengths: Sequence[int]) -> Speed | None:
    """What sequences like those of a step take on the mock backend; None for others, which take long or cost money."""
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
    """Seconds for a million tokens trained on, and for a million sampled."""
    client.forward_backward(data[:_WARM_UP], "cross_entropy").result()  # the first one is slower
    began = time.perf_counter()
    for _ in range(steps):
        client.forward_backward(data, "cross_entropy").result()
        client.optim_step(AdamParams()).result()
    trained = (time.perf_counter() - began) / steps / sum(len(datum.tokens) for datum in data)
    sampler = client.sampler().result()
    began = time.perf_counter()
    # Nothing ends an answer early: the time is divided by the full number of tokens.
    sampler.sample([1], _SAMPLES, SamplingParams(_SAMPLED, seed=0, stop=[])).result()
    sampled = (time.perf_counter() - began) / (_SAMPLES * _SAMPLED)
    return trained * 1e6, sampled * 1e6


def _make_sequence(length: int, number: int) -> Datum:
    """Tokens unlike those of any other number from the first on: what sequences share is read only once."""
    tokens = np.random.default_rng(number).integers(32, 122, length).tolist()
    return Datum.supervised([32 + number % 90, *tokens[1:]], [1.0] * length)
