"""Audit a record: `audit` lists the facts, each of which is recomputed and compared with the record.

case           one record and its arms, as read by the facts
arms           facts about single arms: starts and ends, identity, spend
answers        answers compared with scores, token counts and new verdicts of verifiers; `shadow` hides their files
recheck        recompute scores, rewards and conclusions
identity       the weights, code and packages of an arm, hashed when it starts
report         the result of an audit
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .audit import audit_experiment

__all__ = ["audit_experiment"]

__getattr__ = lazy_names(__name__, {"audit": "audit_experiment"})
