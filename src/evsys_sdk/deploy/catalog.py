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
        self._seen = (-1, -1)
        self._known = Deployments([], [], {})

    def names(self) -> Sequence[str]:
        """Deployment names whose live deployment is an `openai_server`."""
        known = self._look()
        return [name for name in known.live if (one := known.live_under(name)) and one.kind == OpenAIServer.name]

    def find(self, name: str) -> Offer | None:
        """The live deployment of a name, or the deployment with this id; None unless it is an `openai_server`."""
        known = self._look()
        found = known.live_under(name) or next((one for one in known.all if one.id == name), None)
        return _offer(found) if found is not None and found.kind == OpenAIServer.name else None

    def base_models(self, backend: str) -> list[str]:
        """The base models of the live deployments on a backend."""
        offers = [offer for name in self.names() if (offer := self.find(name)) is not None]
        return list(dict.fromkeys(offer.base_model for offer in offers if offer.backend == backend))

    def _look(self) -> Deployments:
        try:
            found = self._file.stat()
            state = (found.st_size, found.st_mtime_ns)
        except OSError:
            state = (-1, -1)
        if state != self._seen:
            # The state from before the read is stored, so that a line written during the read triggers another read.
            self._seen, self._known = state, Deployments.read(self._file.parent.parent)
        return self._known


def _offer(one: Deployment) -> Offer:
    return Offer(
        text(one.facts.get("base_model")),
        text(one.facts.get("backend")),
        str(Path(one.location) / WEIGHTS),
        text(one.facts.get("renderer")) or None,
        text(one.facts.get("system_prompt")),
        one.id,
    )
