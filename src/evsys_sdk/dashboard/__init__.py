"""Room 14: what happened, shared.

`client.py` writes down what a run reports and sends it, `server/` keeps what clients send, and `local.py` shows what is
recorded on this disk. `API.md` and `shapes/` say what can be read from either.
"""

from __future__ import annotations

from .client import DashboardClient
from .experiment_run import ExperimentRun

__all__ = ["DashboardClient", "ExperimentRun"]
