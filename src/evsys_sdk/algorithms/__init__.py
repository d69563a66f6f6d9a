"""The recipes. Each one mainly defines `build_batch`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .base import BaseAlgorithm, TrainingConfig
    from .rl import RL
    from .sft import SFT

__all__ = [
    "RL",
    "SFT",
    "BaseAlgorithm",
    "TrainingConfig",
]

__getattr__ = lazy_names(__name__, {"base": "BaseAlgorithm TrainingConfig", "rl": "RL", "sft": "SFT"})
