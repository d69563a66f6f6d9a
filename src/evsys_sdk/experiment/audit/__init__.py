"""Whether a record can be believed: `audit` is the list of facts, each compared with what is recomputed.

case           one record and its arms, as the facts read them
arms           facts about single arms: starts and ends, identity, spend
answers        answers against scores, bills and what a verifier says today; `shadow` hides its memory
recheck        scores, answers and conclusions worked out again
identity       what an arm is made of, hashed when it starts
report         what an audit says
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .audit import audit_experiment

__all__ = ["audit_experiment"]

__getattr__ = lazy_names(__name__, {"audit": "audit_experiment"})
