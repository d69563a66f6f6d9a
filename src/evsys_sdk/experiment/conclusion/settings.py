"""What differs between the runs: the settings that a difference in scores can come from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .evidence import RunEvidence


def find_differing_settings(runs: Sequence[RunEvidence]) -> dict[str, dict[str, Any]]:
    """Run -> the settings that are not the same in all runs; None where a run does not set one."""
    known = [run for run in runs if run.settings]
    if len(known) < 2:
        return {}
    paths = dict.fromkeys(path for run in known for path in run.settings)
    differing = [
        path for path in paths if len({json.dumps(run.settings.get(path), sort_keys=True) for run in known}) > 1
    ]
    return {run.name: {path: run.settings.get(path) for path in differing} for run in known}
