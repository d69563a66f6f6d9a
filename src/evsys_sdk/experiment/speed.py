"""How fast runs are: measured on earlier runs of the record, or on the mock backend here and now."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backends.client import AdamParams, ModelSpec, SamplingParams
from ..backends.datum import Datum
from ..config import RunConfig
from ..config.prices import backend_of
from ..paths import in_project
from ..record.folders import latest_results, steps_of_begun
from ..registry import get_backend
from .recipe import is_local_path

if TYPE_CHECKING:
    from ..backends.client import TrainingClient

_RUNS_LOOKED_AT = 200
_TIMED_STEPS = 3
_TIMED_SEQUENCES = 64
_SAMPLES = 16
_SAMPLED = 32
_TOO_FEW_STEPS = 5
"""Shorter runs are mostly start-up."""
_SIMILAR = 2.0
"""Steps of up to so many times as many tokens are of a similar size."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds for a million tokens, and where that comes from."""

    train_s: float
    sample_s: float
    says: str
    start_s: float = 0.0
    """Seconds before the first step, to load the model."""

    def seconds(self, *, trained: int, sampled: int) -> float:
        return (trained * self.train_s + sampled * self.sample_s) / 1e6


def recorded_speed(run: RunConfig, output_dir: Path, *, step_tokens: float | None = None) -> Speed | None:
    """What comparable runs took: the same model on the same backend, with batches of about as many tokens.

    Runs that have ended say what they spent; of those that are still going, the steps so far count.
    """
    ended = [one for result in latest_results(output_dir, _RUNS_LOOKED_AT) if (one := _used(result, run, step_tokens))]
    going = [] if ended else _used_so_far(run, output_dir, step_tokens)
    found, what = (ended, "earlier run") if ended else (going, "unfinished run")
    if not found:
        return None
    rate = sum(seconds for _, seconds in found) / sum(tokens for tokens, _ in found) * 1e6
    runs = f"{len(found)} {what}{'s' if len(found) > 1 else ''}"
    return Speed(rate, rate, f"time is that of {runs} of '{run.model.name}' on '{run.backend.kind}'")


def _used(result: Any, run: RunConfig, step_tokens: float | None) -> tuple[float, float] | None:
    """Tokens and seconds of an earlier run, if it is comparable and says so."""
    try:
        hparams, spend = result["hparams"], result["extras"]["spend"]
        trained, sampled, seconds = (float(spend[key]) for key in ("tokens_trained", "tokens_sampled", "wall_s"))
        steps: float | None = result.get("metrics", {}).get("steps")
    except (KeyError, TypeError, ValueError):
        return None
    usable = trained + sampled > 0 and seconds > 0 and _is_same(hparams, run)
    return (trained + sampled, seconds) if usable and _is_comparable(steps, trained, step_tokens) else None


def _used_so_far(run: RunConfig, output_dir: Path, step_tokens: float | None) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for config, steps in steps_of_begun(output_dir, _RUNS_LOOKED_AT):
        timed = steps[1:]  # the first one is slower
        tokens, seconds = sum(tokens for tokens, _ in timed), sum(seconds for _, seconds in timed)
        if _is_same(config, run) and _is_comparable(len(timed), tokens, step_tokens, least=2):
            found.append((tokens, seconds))
    return found


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


def measured_speed(run: RunConfig, lengths: Sequence[int], *, load: bool = False) -> Speed | None:
    """What sequences like those of a step take on this machine: on the mock backend, and with `load` on the local one.

    None for any other backend: trying it would cost something.
    """
    kind = backend_of(run)
    if kind not in (("mock", "local") if load else ("mock",)) or not lengths or run.backend.params.get("latency_ms"):
        return None
    params = run.backend.params if run.backend.kind == kind else {}
    params = {**params, "context_length": 1 << 20} if kind == "mock" else params
    data = [_sequence(max(length, 2)) for length in lengths[:_TIMED_SEQUENCES]]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="evsys-plan-") as folder:
        backend: Any = get_backend(kind)(**params)
        name = str(in_project(run.model.name)) if is_local_path(run) else run.model.name
        handles = backend.prepare(model=ModelSpec(name, seed=run.seed), run_dir=Path(folder))
        start_s = time.perf_counter() - began if kind == "local" else 0.0
        try:
            train_s, sample_s = _timed(handles["training_client"], data, _TIMED_STEPS if kind == "mock" else 1)
        finally:
            backend.teardown(handles)
    return Speed(train_s, sample_s, "time was measured on this machine just now", start_s)


def _timed(client: TrainingClient, data: Sequence[Datum], steps: int) -> tuple[float, float]:
    """Seconds for a million tokens trained on, and for a million sampled."""
    client.forward_backward(data, "cross_entropy").result()  # the first one is slower
    began = time.perf_counter()
    for _ in range(steps):
        client.forward_backward(data, "cross_entropy").result()
        client.optim_step(AdamParams()).result()
    trained = (time.perf_counter() - began) / steps / sum(len(datum.tokens) for datum in data)
    sampler = client.sampler().result()
    began = time.perf_counter()
    sampler.sample([1], _SAMPLES, SamplingParams(_SAMPLED, seed=0, stop=[])).result()
    sampled = (time.perf_counter() - began) / (_SAMPLES * _SAMPLED)
    return trained * 1e6, sampled * 1e6


def _sequence(length: int) -> Datum:
    return Datum.supervised([32 + at % 90 for at in range(length)], [1.0] * length)
