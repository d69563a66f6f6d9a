"""Whether a record can be believed: `audit` asks every question, `recheck` works the answers out again.

answers        answers against scores, bills and what a verifier says today; `shadow` hides its memory
arms           what the journal tells about single arms, their training, rows and code
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
