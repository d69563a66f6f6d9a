"""Resolves model names: a base model, weights saved here, or an offer of the catalog."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from ...backends.client import SamplingClient
from ...errors import EvsysError, closest, show
from ...inference.protocols.exchange import RequestRefused
from ...inference.renderer import Renderer, get_renderer
from ..weights.catalog import Catalog, Offer
from ..weights.checkpoints import EXTERNAL, CheckpointPlace, Checkpoints
from ..weights.engine import Engine

_MOST: Final = 16
"""Maximum number of open weights."""


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """Open weights."""

    name: str
    """The model name in responses."""
    base_model: str
    client: SamplingClient
    renderer: Renderer
    context_length: int
    top_logprobs: int


@dataclass(slots=True)
class OfferedModels:
    """All model names of OpenAI's API."""

    engine: Engine
    checkpoints: Checkpoints
    catalog: Catalog | None = None
    _open: OrderedDict[tuple[str, ...], tuple[SamplingClient, Renderer]] = field(
        default_factory=OrderedDict[tuple[str, ...], tuple[SamplingClient, Renderer]]
    )

    async def describe_all(self) -> list[dict[str, Any]]:
        """The models in the form of `GET /v1/models`."""
        return [
            {"id": name, "object": "model", "created": 0, "owned_by": "evsys"}
            for name in await asyncio.to_thread(self._names)
        ]

    def _names(self) -> list[str]:
        """All usable names: without weights of other backends or bases, and without downloads."""
        settings = self.engine.settings
        catalog = self.catalog
        deployed = [name for name in catalog.names() if self._can_serve(catalog.find(name))] if catalog else []
        saved = [
            str(checkpoint["tinker_path"])
            for checkpoint in self.checkpoints.describe_all()
            if CheckpointPlace.parse(checkpoint["tinker_path"]).kind != EXTERNAL
            and self.checkpoints.get(checkpoint["tinker_path"]).base_model in settings.models
        ]
        return list(dict.fromkeys([*settings.models, *deployed, *saved]))

    def _can_serve(self, offer: Offer | None) -> bool:
        settings = self.engine.settings
        return offer is not None and offer.backend == settings.backend and offer.base_model in settings.models

    async def open(self, name: str) -> OfferedModel:
        """The model of a name; raises OpenAI's error for an unknown one."""
        # On a thread, because deployments and saved weights are files.
        offer = await asyncio.to_thread(self._find, name)
        key = (offer.base_model, offer.ref, offer.renderer or "", offer.system_prompt)
        try:
            if key not in self._open:
                client = await self.engine.open_sampler(offer.base_model, offer.ref or None)
                renderer = get_renderer(client.tokenizer, offer.renderer)
                self._open[key] = (client, renderer.with_system_prompt(offer.system_prompt))
        except EvsysError as error:
            raise RequestRefused(f"the weights of {show(name)} cannot be opened: {error}", status=500) from error
        self._open.move_to_end(key)
        while len(self._open) > _MOST:  # the least recently used; running requests keep it alive
            self._open.popitem(last=False)
        client, renderer = self._open[key]
        able = self.engine.capabilities(offer.base_model)
        return OfferedModel(
            offer.version or name, offer.base_model, client, renderer, able.context_length, able.top_k_logprobs
        )

    def _find(self, name: str) -> Offer:
        settings = self.engine.settings
        if name in settings.models:
            return Offer(name, settings.backend, "")
        if name.startswith("tinker://"):
            record = self.checkpoints.get(name)
            offer = Offer(record.base_model, settings.backend, record.ref)
        else:
            offer = self.catalog.find(name) if self.catalog else None
        if offer is None:
            guess = closest(name, [*settings.models, *(self.catalog.names() if self.catalog else ())])
            hint = f" Did you mean {guess!r}?" if guess else ""
            raise RequestRefused(
                f"there is no model {show(name)} here.{hint}", status=404, param="model", code="model_not_found"
            )
        if not self._can_serve(offer):
            raise RequestRefused(
                f"the weights of {show(name)} belong to {offer.base_model} on the backend {offer.backend}, which this "
                "server does not have. Start it with that --backend and --model.",
                status=404,
                param="model",
                code="model_not_found",
            )
        return offer
