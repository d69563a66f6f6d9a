"""`local`: a model on this machine, with the sampler of the local backend.

    inference: { kind: local, params: { model: ./SmolLM2, checkpoint: outputs/first/run/checkpoints/final/sampler } }

Conversations that are asked at the same time are sampled together. The same seed gives the same answers. A base that a
run in this process has loaded is shared with it. Tools are known to the model only as far as the conversation describes
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from ..renderer import get_renderer
from .sampled import SampledChatClient, SampledParams, require_model


class LocalClient(SampledChatClient):
    """A model in this process as an inference client, with or without an adapter."""

    name: ClassVar[str] = "local"

    class Config(SampledParams):
        """Params of `inference.kind: local`."""

        model: str | None = Field(default=None, min_length=1)
        """A folder, a GGUF file, or a name on the Hugging Face hub; without it, `run.eval` asks the trained model."""
        checkpoint: str | None = Field(default=None, min_length=1)
        """Folder of a sampler or state that a run on the local backend saved, or of a LoRA adapter."""
        renderer_name: str | None = None
        """How conversations become tokens; by default the model's own chat template."""
        seed: int = 0
        """Decides the samples of calls that bring no seed."""
        device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
        """Where to compute; auto takes a GPU where there is one."""
        dtype: Literal["auto", "float32", "bfloat16"] = "auto"
        """How weights are stored; auto takes bfloat16 where the hardware has it."""
        gguf_file: str | None = None
        """Name of the GGUF file, where `model` is a folder that holds one."""
        samples_at_once: int | None = Field(default=None, ge=1)
        """Answers that are sampled together; by default 32 on a CPU, 256 on a GPU."""

    concurrency = 32

    def __init__(self, **params: Any) -> None:
        from ...backends.client import ModelSpec
        from ...backends.local.backend import LocalBackend

        super().__init__()
        self.config = config = self.Config(**params)
        self.model: str = require_model("local", config.model)
        backend = LocalBackend(
            device=config.device,
            dtype=config.dtype,
            gguf_file=config.gguf_file,
            samples_at_once=config.samples_at_once,
        )
        handles = backend.prepare(model=ModelSpec(self.model, seed=config.seed, lora_rank=1), run_dir=Path())
        self._training = handles["training_client"]
        try:
            opened = self._training.open_sampler(config.checkpoint) if config.checkpoint else self._training.sampler()
            self._sampler = opened.result()
            self._renderer = get_renderer(self._sampler.tokenizer, config.renderer_name)
        except BaseException:
            self._training.close()
            raise

    def close(self) -> None:
        """Let go of the model; a closed client cannot be used again."""
        self._training.close()

    def _stops(self, stop: Sequence[str] | None) -> Sequence[str] | Sequence[int]:
        """Token by token where that is enough, which is quicker than looking for texts."""
        return super()._stops(stop) if stop else self._renderer.stop
