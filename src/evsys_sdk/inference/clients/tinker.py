"""`tinker`: a base model or a checkpoint on a server that speaks the Tinker protocol.

    inference: { kind: tinker, params: { model: Qwen/Qwen3-8B, checkpoint: "tinker://.../sampler_weights/final" } }

Everything the `tinker` backend can be told about a server can be told here too, below `server`. The same seed gives the
same answers where the server keeps seeds. Tools are known to the model only as far as the conversation describes them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from ...backends.tinker.config import TinkerConfig
from ...config.prices import Prices
from ...record.run_files.checkpoints import locate_weights
from ..renderer import get_renderer
from .sampled import SampledChatClient, SampledParams, require_model


class TinkerClient(SampledChatClient):
    """A model on a Tinker-protocol server as an inference client."""

    name: ClassVar[str] = "tinker"

    class Config(SampledParams):
        """Params of `inference.kind: tinker`."""

        model: str | None = Field(default=None, min_length=1)
        """Base model, as the server calls it; without it, `run.eval` asks the model just trained."""
        checkpoint: str | None = Field(default=None, min_length=1)
        """Reference of a sampler that a run saved; by default the base model itself."""
        renderer_name: str | None = None
        """How conversations become tokens; by default the model's own chat template."""
        server: TinkerConfig = Field(default_factory=TinkerConfig)
        """Address, key, tokenizer, deadlines and prices, as in the params of the backend."""

    concurrency = 64

    def __init__(self, **params: Any) -> None:
        from ...backends.tinker.backend import TinkerBackend

        super().__init__()
        self.config = config = self.Config(**params)
        self.model: str = require_model("tinker", config.model)
        backend = TinkerBackend(**config.server.model_dump(exclude_unset=True))
        checkpoint = locate_weights(config.checkpoint, sampler=True) if config.checkpoint else None
        self._sampler, self._close = backend.open_sampler(self.model, checkpoint)
        try:
            self._renderer = get_renderer(self._sampler.tokenizer, config.renderer_name)
        except BaseException:
            self._close()
            raise

    def close(self) -> None:
        """End the session; a closed client cannot be used again."""
        self._close()

    def _own_prices(self) -> Prices:
        prices = self.config.server.prices
        return {} if prices is None else {self.model: prices}
