"""Rollouts: policy x task -> trajectories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .environment import Environment
    from .rollout import Agent, AgentResult, Message, Policy, Rollout, Turn, opening, text_of

__all__ = [
    "Agent",
    "AgentResult",
    "Environment",
    "Message",
    "Policy",
    "Rollout",
    "Turn",
    "opening",
    "text_of",
]

__getattr__ = lazy_names(
    __name__, {"environment": "Environment", "rollout": "Agent AgentResult Message Policy Rollout Turn opening text_of"}
)
