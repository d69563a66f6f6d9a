"""The dashboard: record experiments, store them on a server, and show them in a browser.

`client/` records what a run reports and sends it, `server/` stores what clients send, and `local/` reads the records
on this disk. `views/` computes the answers of the read API from either; `API.md` and `shapes/` describe the API.
"""

from __future__ import annotations

from .client.client import DashboardClient
from .client.experiment_run import ExperimentRun

__all__ = ["DashboardClient", "ExperimentRun"]
