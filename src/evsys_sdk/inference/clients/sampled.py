"""The `mock`, `local` and `tinker` clients, which render conversations and sample tokens themselves.

A subclass sets `_sampler` and `_renderer` in its constructor.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ...backends.tinker.config import TinkerConfig
from ...config.base import Strict
from ...config.prices import TokenUsage
from ...errors import ConfigError, Problem
from ...record.run_files.checkpoints import locate_weights
from ..client import ChatClient, ClientRequest, Completion, cut_at_stop
from ..renderer import decode, get_renderer

if TYPE_CHECKING:
    from ...backends.client import Sample, SamplingClient
    from ..renderer import Renderer


class SampledParams(Strict):
    """Params shared by these clients."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum answer length in `run.eval`; by default enough for the longest target. Other callers set their own."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature in `run.eval`, by default 0. Other callers set their own."""


def require_model(kind: str, model: str | None) -> str:
    """The model of a standalone client; only `run.eval` has a default, the trained model."""
    if model is None:
        message = f"inference client '{kind}' needs a model"
        raise ConfigError(Problem(message, path="params.model", hint="Add 'model'."))
    return model


class SampledChatClient(ChatClient):
    """A chat client on top of a sampler."""

    model: str
    _sampler: SamplingClient
    _renderer: Renderer

    async def _complete(self, request: ClientRequest) -> list[Completion]:
        from ...backends.client import SamplingParams

        started = time.monotonic()
        params = SamplingParams(
            request.max_tokens, request.temperature, seed=request.seed, stop=self._stops(request.stop)
        )
        self.totals.count_request()
        try:
            prompt = self._renderer.prompt(request.messages, request.tools)
            samples = await self._sampler.sample(prompt, request.n, params)
        except Exception:
            self.totals.count_failure()
            raise
        seconds = time.monotonic() - started
        return [self._completion(sample, len(prompt), request, seconds) for sample in samples]

    def _stops(self, stop: Sequence[str]) -> Sequence[str] | Sequence[int]:
        """The stop tokens or texts: the end of the turn, and any requested texts."""
        if not stop:
            return self._renderer.stop
        # All as texts, because a request may not mix texts and tokens.
        tokenizer = self._sampler.tokenizer
        return [*(end if isinstance(end, str) else decode(tokenizer, [end]) for end in self._renderer.stop), *stop]

    def _completion(self, sample: Sample, prompt: int, request: ClientRequest, seconds: float) -> Completion:
        message = self._renderer.parse(sample.tokens, request.tools)
        text, was_cut = cut_at_stop(str(message["content"]), request.stop)
        usage = TokenUsage(prompt, len(sample.tokens))
        cost = self._charge(self.model, usage)
        reason = "stop" if was_cut else sample.stop_reason
        answer = {**message, "content": text}
        return Completion(text, answer, reason, usage, cost, seconds, sample.stop_reason, self.model)


class MockClient(SampledChatClient):
    """The mock backend's model as an inference client, for tests and trials.

        inference: { kind: mock, params: { checkpoint: outputs/first/run/checkpoints/final/sampler } }

    It uses the weights of a checkpoint, or else the untrained weights of its model's name. The same seed gives the same
    answers.
    """

    name: ClassVar[str] = "mock"

    class Config(SampledParams):
        """Params of `inference.kind: mock`."""

        model: str | None = Field(default=None, min_length=1)
        """Any name; each has its own weights. Default: that of the checkpoint."""
        checkpoint: str | None = Field(default=None, min_length=1)
        """Folder of a sampler or state that a run on the mock backend saved; by default untrained weights."""
        seed: int = 0
        """Seed of the untrained weights, and of samples in calls without a seed."""
        hidden: int = Field(default=64, ge=8, le=1024)
        """Width of the untrained model; a checkpoint overrides it."""
        context_length: int = Field(default=4096, ge=16)
        """Maximum tokens (bytes) of conversation and answer."""

    concurrency = 8

    def __init__(self, **params: Any) -> None:
        from ...backends.mock.client import MockSettings, MockTrainingClient, read_checkpoint

        super().__init__()
        self.config = config = self.Config(**params)
        about: dict[str, Any] = read_checkpoint(config.checkpoint)[1] if config.checkpoint else {}
        self.model: str = config.model or about.get("model", "mock")
        hidden: int = about.get("hidden", config.hidden)
        settings = MockSettings(self.model, config.seed, hidden=hidden, context_length=config.context_length)
        self._training = MockTrainingClient(settings, Path())
        opened = self._training.open_sampler(config.checkpoint) if config.checkpoint else self._training.sampler()
        try:
            self._sampler = opened.result()
        except BaseException:
            self._training.close()
            raise
        self._renderer = get_renderer(self._sampler.tokenizer)

    def close(self) -> None:
        """Release the model; a closed mock client cannot be used again."""
        self._training.close()


class LocalClient(SampledChatClient):
    """A model in this process as an inference client, with or without an adapter.

        inference: { kind: local, params: { model: ./SmolLM2, checkpoint: outputs/one/run/checkpoints/final/sampler } }

    Concurrent conversations are sampled in one batch. The same seed gives the same answers. A base model that a run in
    this process has loaded is shared. The model knows tools only from the conversation.
    """

    name: ClassVar[str] = "local"

    class Config(SampledParams):
        """Params of `inference.kind: local`."""

        model: str | None = Field(default=None, min_length=1)
        """A folder, a GGUF file, or a name on the Hugging Face hub; optional in `run.eval`, which uses the trained
        model.
        """
        checkpoint: str | None = Field(default=None, min_length=1)
        """Folder of a sampler or state that a run on the local backend saved, or of a LoRA adapter."""
        renderer_name: str | None = None
        """Renderer of conversations; by default the model's chat template."""
        seed: int = 0
        """Seed of samples in calls without a seed."""
        device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
        """Compute device; auto uses a GPU if available."""
        dtype: Literal["auto", "float32", "bfloat16"] = "auto"
        """Data type of weights; auto uses bfloat16 if the hardware supports it."""
        gguf_file: str | None = None
        """Name of the GGUF file in the folder `model`."""
        samples_at_once: int | None = Field(default=None, ge=1)
        """Answers per sampling batch; by default 32 on a CPU, 256 on a GPU."""

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
        # Nothing is trained here, so the client's adapter has the smallest rank.
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
        """Release the model; a closed client cannot be used again."""
        self._training.close()


class TinkerClient(SampledChatClient):
    """A model on a Tinker-protocol server as an inference client.

        inference: { kind: tinker, params: { model: Qwen/Qwen3-8B, checkpoint: "tinker://.../sampler_weights/final" } }

    `server` takes the server params of the `tinker` backend. The same seed gives the same answers if the server
    supports seeds. The model knows tools only from the conversation.
    """

    name: ClassVar[str] = "tinker"

    class Config(SampledParams):
        """Params of `inference.kind: tinker`."""

        model: str | None = Field(default=None, min_length=1)
        """Base model, by the server's name; optional in `run.eval`, which uses the trained model."""
        checkpoint: str | None = Field(default=None, min_length=1)
        """Reference of a sampler that a run saved; by default the base model itself."""
        renderer_name: str | None = None
        """Renderer of conversations; by default the model's chat template."""
        server: TinkerConfig = Field(default_factory=TinkerConfig)
        """Address, key, tokenizer and deadlines, as in the params of the backend."""

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
