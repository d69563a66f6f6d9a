"""`evsys benchmark`: what runs are scored on."""

from __future__ import annotations

from .workspace_verbs import workspace_group

benchmark = workspace_group("benchmark", "List, inspect, add and verify benchmarks.")
