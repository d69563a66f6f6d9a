"""`mock`: the small numpy model of the mock backend, without a server, a key or a cost.

    inference: { kind: mock, params: { checkpoint: outputs/first/run/checkpoints/final/sampler } }

It answers from the weights of a checkpoint, or, without one, from the untrained weights of its model's name. The same
seed gives the same answers. Tools are known to it only as far as the conversation describes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from ..renderer import get_renderer
from .sampled import SampledChatClient, SampledParams


class MockClient(SampledChatClient):
    """The mock backend's model as an inference client; for trying things out and for tests."""

    name: ClassVar[str] = "mock"

    class Config(SampledParams):
        """Params of `inference.kind: mock`."""

        model: str | None = Field(default=None, min_length=1)
        """Any name; each has weights of its own. By default that of the checkpoint."""
        checkpoint: str | None = Field(default=None, min_length=1)
        """Folder of a sampler or state that a run on the mock backend saved; by default untrained weights."""
        seed: int = 0
        """Decides the untrained weights, and the samples of calls that bring no seed."""
        hidden: int = Field(default=64, ge=8, le=1024)
        """Width of the untrained model; a checkpoint has its own."""
        context_length: int = Field(default=4096, ge=16)
        """Most tokens (bytes) of a conversation and its answer."""

    concurrency = 8

    def __init__(self, **params: Any) -> None:
        from ...backends.mock.client import MockTrainingClient, Settings, read_checkpoint

        super().__init__()
        self.config = config = self.Config(**params)
        about: dict[str, Any] = read_checkpoint(config.checkpoint)[1] if config.checkpoint else {}
        self.model: str = config.model or about.get("model", "mock")
        hidden: int = about.get("hidden", config.hidden)
        settings = Settings(self.model, config.seed, hidden=hidden, context_length=config.context_length)
        self._training = MockTrainingClient(settings, Path())
        opened = self._training.open_sampler(config.checkpoint) if config.checkpoint else self._training.sampler()
        try:
            self._sampler = opened.result()
        except BaseException:
            self._training.close()
            raise
        self._renderer = get_renderer(self._sampler.tokenizer)

    def close(self) -> None:
        """Let go of the model; a closed mock client cannot be used again."""
        self._training.close()
