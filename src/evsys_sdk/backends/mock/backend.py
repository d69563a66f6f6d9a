"""The `mock` backend: a small, real language model in numpy that runs anywhere in seconds.

    backend: { kind: mock, params: { context_length: 8192 } }

Any model name is accepted and has its own base weights, so the YAML of a large run works unchanged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, Field

from ...config.base import Strict
from ...log import get_logger


class MockBackend:
    """A small numpy language model that learns, samples and resumes exactly; for tests and trials."""

    name: ClassVar[str] = "mock"
    seeded_base: ClassVar[bool] = True
    """The initial weights depend on the seed, so every seed has another untrained model."""

    class Config(Strict):
        """Params of `backend.kind: mock`."""

        model_config = ConfigDict(strict=False, allow_inf_nan=True)

        hidden: int = Field(default=64, ge=8, le=1024)
        """Width of the hidden layer; wider models learn in fewer, slower steps."""
        context_length: int = Field(default=4096, ge=16)
        """Maximum tokens (bytes) of one sequence."""
        latency_ms: float = Field(default=0.0, ge=0)
        """Delay before each operation, to simulate a remote service."""

    def __init__(self, **params: Any) -> None:
        self.config = self.Config(**params)

    def prepare(self, *, model: Any, run_dir: Path) -> dict[str, Any]:
        """Build the model; `model` is a ModelSpec or anything with a name."""
        from ..client import start_of
        from .client import MockSettings, MockTrainingClient

        ref, with_optimizer = start_of(model)
        settings = MockSettings(
            model=model.name,
            seed=getattr(model, "seed", 0),
            lora_rank=getattr(model, "lora_rank", 32),
            **self.config.model_dump(),
        )
        get_logger(__name__).debug("mock model %s, seed %d; lora_rank is recorded only", settings.model, settings.seed)
        client = MockTrainingClient(settings, Path(run_dir))
        if ref:
            try:
                client.load_state(ref, with_optimizer=with_optimizer).result()
            except BaseException:
                client.close()
                raise
        return {"training_client": client, "tokenizer": client.tokenizer, "model_name": model.name}

    def teardown(self, handles: dict[str, Any]) -> None:
        """Finish queued operations and stop the worker's thread."""
        if (client := handles.get("training_client")) is not None:
            client.close()
