"""The `harbor` package: whether it is there, new enough, and quiet."""

from __future__ import annotations

import logging
import os
import re
from importlib.metadata import PackageNotFoundError, version

from ...errors import MissingExtraError, TrainingError

OLDEST = (0, 25)

_QUIET = {
    "HARBOR_TELEMETRY": "0",  # nothing about a run leaves the machine unasked
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # importing litellm would otherwise fetch a price list
}


def require_harbor() -> None:
    """Refuse to go on without a Harbor that can be trusted; what the user has set stays as it is."""
    try:
        found = version("harbor")
    except PackageNotFoundError:
        raise MissingExtraError("engine 'harbor'", "harbor") from None
    if _numbers(found) < OLDEST:
        raise TrainingError(
            f"harbor {found} is installed, and before 0.25 an agent could write its own reward file and be believed. "
            "Install harbor>=0.25,<0.26."
        )
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    harbor_logger = logging.getLogger("harbor")
    if not harbor_logger.handlers:
        harbor_logger.addHandler(logging.NullHandler())  # what goes wrong in a trial is told by its rollout


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])
