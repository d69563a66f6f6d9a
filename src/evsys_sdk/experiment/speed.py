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
from ..record.folders import latest_results
from ..registry import get_backend

if TYPE_CHECKING:
    from ..backends.client import TrainingClient

_RUNS_LOOKED_AT = 200
_TIMED_STEPS = 3
_TIMED_SEQUENCES = 64
_SAMPLES = 16
_SAMPLED = 32


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds for a million tokens, and where that comes from."""

    train_s: float
    sample_s: float
    says: str

    def seconds(self, *, trained: int, sampled: int) -> float:
        return (trained * self.train_s + sampled * self.sample_s) / 1e6


def recorded_speed(run: RunConfig, output_dir: Path) -> Speed | None:
    """What runs of the same model on the same backend took, by what they say they spent."""
    found = [used for result in latest_results(output_dir, _RUNS_LOOKED_AT) if (used := _used(result, run)) is not None]
    if not found:
        return None
    rate = sum(seconds for _, seconds in found) / sum(tokens for tokens, _ in found) * 1e6
    runs = f"{len(found)} earlier run{'s' if len(found) > 1 else ''}"
    return Speed(rate, rate, f"time is that of {runs} of '{run.model.name}' on '{run.backend.kind}'")


def _used(result: Any, run: RunConfig) -> tuple[float, float] | None:
    """Tokens and seconds of an earlier run, if it was of the same model on the same backend and says so."""
    try:
        hparams, spend = result["hparams"], result["extras"]["spend"]
        same = (hparams["backend"]["kind"], hparams["model"]["name"]) == (run.backend.kind, run.model.name)
        tokens, seconds = float(spend["tokens_trained"]) + float(spend["tokens_sampled"]), float(spend["wall_s"])
    except (KeyError, TypeError, ValueError):
        return None
    return (tokens, seconds) if same and tokens > 0 and seconds > 0 else None


def measured_speed(run: RunConfig, lengths: Sequence[int]) -> Speed | None:
    """What the mock backend takes on this machine for sequences like those of a step; None for any other backend."""
    if backend_of(run) != "mock" or not lengths or run.backend.params.get("latency_ms"):
        return None
    params = {**(run.backend.params if run.backend.kind == "mock" else {}), "context_length": 1 << 20}
    data = [_sequence(max(length, 2)) for length in lengths[:_TIMED_SEQUENCES]]
    with tempfile.TemporaryDirectory(prefix="evsys-plan-") as folder:
        backend: Any = get_backend("mock")(**params)
        handles = backend.prepare(model=ModelSpec(run.model.name, seed=run.seed), run_dir=Path(folder))
        try:
            train_s, sample_s = _timed(handles["training_client"], data)
        finally:
            backend.teardown(handles)
    return Speed(train_s, sample_s, "time was measured on this machine just now")


def _timed(client: TrainingClient, data: Sequence[Datum]) -> tuple[float, float]:
    """Seconds for a million tokens trained on, and for a million sampled."""
    client.forward_backward(data, "cross_entropy").result()  # the first one is slower
    began = time.perf_counter()
    for _ in range(_TIMED_STEPS):
        client.forward_backward(data, "cross_entropy").result()
        client.optim_step(AdamParams()).result()
    trained = (time.perf_counter() - began) / _TIMED_STEPS / sum(len(datum.tokens) for datum in data)
    sampler = client.sampler().result()
    began = time.perf_counter()
    sampler.sample([1], _SAMPLES, SamplingParams(_SAMPLED, seed=0, stop=[])).result()
    sampled = (time.perf_counter() - began) / (_SAMPLES * _SAMPLED)
    return trained * 1e6, sampled * 1e6


def _sequence(length: int) -> Datum:
    return Datum.supervised([32 + at % 90 for at in range(length)], [1.0] * length)
