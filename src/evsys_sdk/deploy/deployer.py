"""The contract of a deployer: weights in, something that can be used elsewhere out.

    @register_deployer("my_place")
    class MyPlace:
        def build(self, source: Source, folder: Path) -> Built: ...

`build` fills an empty folder. It is called once for each deployment; the folder becomes the deployment's own when it
returns, and goes when it raises. A deployer that hands the folder on to somebody else does so in
`publish(folder, built)`, which is called when the model card lies in the folder too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from .source import Source


@dataclass(frozen=True, slots=True)
class Built:
    """What a deployer made."""

    location: str = ""
    """Where it can be found, if not in the deployment's folder."""
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    """What else is worth recording, e.g. the command that starts it."""


@runtime_checkable
class Deployer(Protocol):
    """Ships weights to one kind of place."""

    name: ClassVar[str]
    library: ClassVar[str]
    """What loads the result, as the model card names it; empty where there is none to name."""

    def build(self, source: Source, folder: Path) -> Built: ...


@runtime_checkable
class Publisher(Protocol):
    """A deployer that hands what it built on to a place elsewhere; what it raises means that nothing is live."""

    def publish(self, folder: Path, built: Built) -> Built: ...
