"""Models beyond those that were trained here: what a server offers under names that others decide.

A catalog is asked at every request, so that a name can be given to other weights while requests continue: each is
answered by the weights that had the name when it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Offer:
    """Weights under a name."""

    base_model: str
    backend: str
    ref: str
    """Where they are, as the backend opens them."""
    renderer: str | None = None
    system_prompt: str = ""
    """Put before conversations without a system message."""
    version: str = ""
    """What answers call the model: of a name that changes hands, who had it."""


class Catalog(Protocol):
    """Knows names; may read files, so it is asked on a thread."""

    def names(self) -> Sequence[str]: ...
    def find(self, name: str) -> Offer | None: ...
