"""The model's parameters and initial values.

The base weights are a function of the model's name, so the same YAML gives the same base model everywhere. They come
from an integer hash, not a random generator, so library upgrades do not change them. A small part depends on the run's
seed, like the initial values of a LoRA adapter.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..seeds import mix
from . import copying
from .features import TABLE_ROWS, WORD_ROWS
from .tokenizer import MESSAGE_END, VOCABULARY

type Floats = NDArray[np.floating[Any]]
type Weights = dict[str, Floats]
"""Parameter name -> array. Arrays are replaced, never changed in place, so holding one is a snapshot."""

TABLE: Final = "table"
"""The hashed embedding table; the only parameter whose gradient is sparse (few rows)."""

OUTPUT_SCALE: Final = 30.0
COPY_SCALE: Final = 30.0
"""Factor from stored numbers to logits, so that learning rates usual for LoRA suit this model too."""

_EMBEDDING_SPREAD: Final = 0.03
_OUTPUT_SPREAD: Final = 0.002
_SEED_SHARE: Final = 0.1

_TYPICAL_TEXT: Final = (
    "The quick answer is often the best one. People ask about many things, such as the time of a train, the price "
    "of a ticket, or the weather in another city, and they like to be told at once.\n"
)
"""Byte frequencies of this sentence are all the untrained model knows about language."""


def base_weights(model_name: str, seed: int, *, hidden: int) -> Weights:
    """The initial weights."""
    table = np.zeros((TABLE_ROWS, hidden), np.float32)  # untrained words have no effect
    random = (WORD_ROWS.start, hidden)
    noise = _uniform(f"seed:{seed}/table", random)
    noise *= np.float32(_SEED_SHARE)
    noise += _uniform_base(f"base:{model_name}/table", random)
    noise *= np.float32(_EMBEDDING_SPREAD)
    table[: WORD_ROWS.start] = noise
    return {
        TABLE: table,
        "gain": np.ones(hidden, np.float32),
        "shift": np.zeros(hidden, np.float32),
        "output": np.float32(_OUTPUT_SPREAD) * _uniform_base(f"base:{model_name}/output", (hidden, VOCABULARY)),
        "bias": (_log_frequencies() / OUTPUT_SCALE).astype(np.float32),
        "copy_scores": np.array(copying.INITIAL_SCORES, np.float32) / np.float32(COPY_SCALE),
        "copy_strengths": np.array(copying.INITIAL_STRENGTHS, np.float32) / np.float32(COPY_SCALE),
    }


def _log_frequencies() -> NDArray[np.float64]:
    counts = np.full(VOCABULARY, 0.2)
    counts += np.bincount(np.frombuffer(_TYPICAL_TEXT.encode(), np.uint8), minlength=VOCABULARY)
    counts[MESSAGE_END] = counts.sum() / 30  # untrained answers have about thirty bytes
    return np.log(counts / counts.sum())


def _uniform(label: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Uniform numbers in [-1, 1), determined by a label."""
    start = np.uint64(int.from_bytes(hashlib.sha256(label.encode()).digest()[:8], "little"))
    counter = np.arange(int(np.prod(shape)), dtype=np.uint64)
    counter *= np.uint64(0x9E3779B97F4A7C15)
    counter += start
    numbers = (mix(counter) >> np.uint64(40)).astype(np.float32)  # 24 bits, exact in float32
    numbers *= np.float32(2.0**-23)
    numbers -= np.float32(1)
    return numbers.reshape(shape)


@functools.lru_cache(maxsize=2)
def _uniform_base(label: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The same for what all seeds of a model share: most sweeps have one model. Not to be changed."""
    return _uniform(label, shape)
