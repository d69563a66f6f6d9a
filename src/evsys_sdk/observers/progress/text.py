"""Detection of live terminals."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping


def is_live_terminal(environment: Mapping[str, str] | None = None) -> bool:
    """Whether stderr is an interactive UTF-8 terminal that can be redrawn."""
    environment = os.environ if environment is None else environment
    is_dumb = environment.get("TERM", "dumb") in ("dumb", "unknown")
    is_ci = environment.get("CI", "").lower() not in ("", "0", "false")
    shares_terminal = environment.get("EVSYS_ARM_WORKER")  # with the processes of other arms
    plain = is_dumb or is_ci or shares_terminal or environment.get("NO_COLOR")
    return sys.stderr.isatty() and not plain and sys.stderr.encoding.lower().startswith("utf")
