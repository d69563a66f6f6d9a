"""The interface of a deployer: it builds something usable elsewhere from trained weights.

    @register_deployer("my_place")
    class MyPlace:
        def build(self, source: Source, folder: Path) -> Built: ...

`build` fills an empty folder and is called once per deployment. The folder becomes the folder of the deployment when
`build` returns, and is deleted when it raises. A deployer that uploads the folder does so in `publish(folder, built)`,
which is called after the model card was written to the folder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from .source import Source


@dataclass(frozen=True, slots=True)
class Built:
    """The result of a build."""

    location: str = ""
    """Path or URL of the result; empty for the folder of the deployment."""
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further facts for the record, e.g. the command that starts the server."""


@runtime_checkable
class Deployer(Protocol):
    """Ships weights to one kind of destination."""

    name: ClassVar[str]
    library: ClassVar[str]
    """Library that loads the result, for `library_name` of the model card; empty means `evsys`."""

    def build(self, source: Source, folder: Path) -> Built: ...


@runtime_checkable
class Publisher(Protocol):
    """A deployer that uploads its build; if `publish` raises, nothing goes live."""

    def publish(self, folder: Path, built: Built) -> Built: ...
