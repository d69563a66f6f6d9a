"""`evsys benchmark`: what runs are scored on, and the scoring of any other model on it."""

from __future__ import annotations

from .benchmark_run import run
from .upload import upload_verb
from .workspace_verbs import workspace_group

benchmark = workspace_group("benchmark", "List, inspect, add, verify, upload and run benchmarks.")
benchmark.add_command(upload_verb("benchmark"))
benchmark.add_command(run)
