"""`evsys dataset`: what can be trained on."""

from __future__ import annotations

from .workspace_verbs import workspace_group

dataset = workspace_group("dataset", "List, inspect, add and verify datasets.")
