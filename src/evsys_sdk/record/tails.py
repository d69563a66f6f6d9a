"""The ends of what a run writes while it goes on: console, metrics, rollouts; for whoever looks on from outside."""

from __future__ import annotations

from itertools import islice

from .jsonl_file import last_records
from .layout import ExperimentFiles, RunFiles
from .values import Object

_BYTES_A_LINE = 1 << 13
"""How much of a file is read for each line that is asked for; longer lines make the answer shorter."""


def last_console(files: ExperimentFiles, lines: int) -> list[str]:
    """The last lines that an experiment in the background printed; none where it was run on a terminal."""
    try:
        text = files.console.read_bytes()[-lines * 400 :].decode("utf-8", errors="replace")
    except OSError:
        return []
    return text.splitlines()[-lines:]


def last_metrics(run: RunFiles, lines: int) -> list[Object]:
    """The last steps of a run, oldest first."""
    return _last(run, "", lines)


def last_rollouts(run: RunFiles, split: str, lines: int) -> list[Object]:
    """The last answers that were scored on a split, or that `training` was rewarded for; oldest first."""
    return _last(run, split, lines)


def _last(run: RunFiles, split: str, lines: int) -> list[Object]:
    logs = run.logs
    if not split:
        path = logs.metrics
    else:
        path = (logs.below(logs.training.name) if split == logs.training.name else logs.of_split(split)).rollouts
    return list(islice(last_records(path, lines * _BYTES_A_LINE), lines))[::-1]
