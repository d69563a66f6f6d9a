"""`evsys dataset`: what can be trained on."""

from __future__ import annotations

from .upload import upload_verb
from .workspace_verbs import workspace_group

dataset = workspace_group("dataset", "List, inspect, add, verify and upload datasets.")
dataset.add_command(upload_verb("dataset"))
