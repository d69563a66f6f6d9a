"""The live deployments that a server offers as models, read from the list of promotions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..record.project_files.journals import promotions_file
from ..record.values import text
from ..server.weights.catalog import Offer
from .deployers.openai_server import WEIGHTS, OpenAIServer
from .deployments import Deployment, Deployments


class DeployedModels:
    """The live deployments of `openai_server`; rereads the list of promotions when its file changes."""

    def __init__(self) -> None:
        self._file = promotions_file().absolute()
        self._state = (-1, -1)
        self._deployments = Deployments([], [], {})

    def names(self) -> Sequence[str]:
        """Deployment names whose live deployment is an `openai_server`."""
        deployments = self._read()
        return [
            name
            for name in deployments.live
            if (live := deployments.live_under(name)) and live.kind == OpenAIServer.name
        ]

    def find(self, name: str) -> Offer | None:
        """The live deployment of a name, or the deployment with this id; None unless it is an `openai_server`."""
        deployments = self._read()
        deployment = deployments.live_under(name) or next(
            (entry for entry in deployments.all if entry.id == name), None
        )
        return _offer(deployment) if deployment is not None and deployment.kind == OpenAIServer.name else None

    def base_models(self, backend: str) -> list[str]:
        """The base models of the live deployments on a backend."""
        offers = [offer for name in self.names() if (offer := self.find(name)) is not None]
        return list(dict.fromkeys(offer.base_model for offer in offers if offer.backend == backend))

    def _read(self) -> Deployments:
        try:
            status = self._file.stat()
            state = (status.st_size, status.st_mtime_ns)
        except OSError:
            state = (-1, -1)
        if state != self._state:
            # The state from before the read is stored, so that a line written during the read triggers another read.
            self._state, self._deployments = state, Deployments.read(self._file.parent.parent)
        return self._deployments


def _offer(deployment: Deployment) -> Offer:
    return Offer(
        text(deployment.facts.get("base_model")),
        text(deployment.facts.get("backend")),
        str(Path(deployment.location) / WEIGHTS),
        text(deployment.facts.get("renderer")) or None,
        text(deployment.facts.get("system_prompt")),
        deployment.id,
    )
