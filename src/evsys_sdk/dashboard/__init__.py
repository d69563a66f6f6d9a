"""Room 14: what happened, shared.

`client/` writes down what a run reports and sends it, `server/` keeps what clients send, and `local/` reads what is
recorded on this disk. `views/` answers the same questions from either; `API.md` and `shapes/` say what can be asked.
"""

from __future__ import annotations

from .client.client import DashboardClient
from .client.experiment_run import ExperimentRun

__all__ = ["DashboardClient", "ExperimentRun"]
