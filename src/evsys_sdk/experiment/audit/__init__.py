"""Whether a record can be believed: `audit` asks every question, `recheck` works the answers out again.

identity     what an arm is made of, hashed when it starts
neighbours   what the experiments beside one say against it
report       what an audit says
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .audit import audit_experiment

__all__ = ["audit_experiment"]

__getattr__ = lazy_names(__name__, {"audit": "audit_experiment"})
