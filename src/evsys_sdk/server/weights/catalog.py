"""Further models of a server, under names defined elsewhere, e.g. by deployments.

The catalog is queried at every request, so a name can move to other weights during operation; each request uses the
weights of its arrival.
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
    """The backend's reference."""
    renderer: str | None = None
    system_prompt: str = ""
    """System message of conversations without one."""
    version: str = ""
    """The model name in responses, which identifies the weights behind a moving name."""


class Catalog(Protocol):
    """Resolves names; may read files, so it is called on a thread."""

    def names(self) -> Sequence[str]: ...
    def find(self, name: str) -> Offer | None: ...
