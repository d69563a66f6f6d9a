"""The clients that sample tokens themselves, `mock`, `local` and `tinker`: conversation in, sampler asked, answers out.

A client of this kind sets `_sampler` and `_renderer` when it is made.
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
from ..client import AskedChat, ChatClient, Completion, cut_at_stop
from ..renderer import decode, get_renderer

if TYPE_CHECKING:
    from ...backends.client import Sample, SamplingClient
    from ..renderer import Renderer


class SampledParams(Strict):
    """What the params of these clients share."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Longest answer in `run.eval`, which by default leaves room for the longest target; others say it themselves."""
    temperature: float | None = Field(default=None, ge=0)
    """Of the sampling in `run.eval`, by default 0; others say it themselves."""


def require_model(kind: str, model: str | None) -> str:
    """The model of a client that stands by itself; only `run.eval` has one to fall back on, the one just trained."""
    if model is None:
        message = f"inference client '{kind}' needs a model to ask"
        raise ConfigError(Problem(message, path="params.model", hint="Add 'model'."))
    return model


class SampledChatClient(ChatClient):
    """A chat client on top of a sampler."""

    model: str
    _sampler: SamplingClient
    _renderer: Renderer

    async def _complete(self, asked: AskedChat) -> list[Completion]:
        from ...backends.client import SamplingParams

        started = time.monotonic()
        params = SamplingParams(asked.max_tokens, asked.temperature, seed=asked.seed, stop=self._stops(asked.stop))
        self.totals.count_request()
        try:
            prompt = self._renderer.prompt(asked.messages, asked.tools)
            samples = await self._sampler.sample(prompt, asked.n, params)
        except Exception:
            self.totals.count_failure()
            raise
        seconds = time.monotonic() - started
        return [self._completion(sample, len(prompt), asked, seconds) for sample in samples]

    def _stops(self, stop: Sequence[str]) -> Sequence[str] | Sequence[int]:
        """Where an answer ends: at the end of the turn, or at one of the given texts."""
        if not stop:
            return self._renderer.stop
        # As texts, because a request may not mix them with tokens.
        tokenizer = self._sampler.tokenizer
        return [*(end if isinstance(end, str) else decode(tokenizer, [end]) for end in self._renderer.stop), *stop]

    def _completion(self, sample: Sample, prompt: int, asked: AskedChat, seconds: float) -> Completion:
        message = self._renderer.parse(sample.tokens, asked.tools)
        text, was_cut = cut_at_stop(str(message["content"]), asked.stop)
        usage = TokenUsage(prompt, len(sample.tokens))
        cost = self._charge(self.model, usage)
        reason = "stop" if was_cut else sample.stop_reason
        answer = {**message, "content": text}
        return Completion(text, answer, reason, usage, cost, seconds, sample.stop_reason, self.model)


class MockClient(SampledChatClient):
    """The mock backend's model as an inference client; for trying things out and for tests.

        inference: { kind: mock, params: { checkpoint: outputs/first/run/checkpoints/final/sampler } }

    It answers from the weights of a checkpoint, or, without one, from the untrained weights of its model's name. The
    same seed gives the same answers.
    """

    name: ClassVar[str] = "mock"

    class Config(SampledParams):
        """Params of `inference.kind: mock`."""

        model: str | None = Field(default=None, min_length=1)
        """Any name; each has its own weights. By default that of the checkpoint."""
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

    Conversations that are asked at the same time are sampled together. The same seed gives the same answers. A base
    that a run in this process has loaded is shared with it. Tools are known to the model only as far as the
    conversation describes them.
    """

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
        # Nothing is trained here, so the adapter that a client always has may be as small as there is.
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

    Everything the `tinker` backend can be told about a server can be told here too, below `server`. The same seed gives
    the same answers where the server keeps seeds. Tools are known to the model only as far as the conversation
    describes them.
    """

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
