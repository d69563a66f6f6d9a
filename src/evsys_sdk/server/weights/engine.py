"""The backend of a server: creates models to train and samplers of saved weights."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from pydantic import ValidationError

from ...backends.client import Capabilities, ModelSpec, SamplingClient, TrainingClient
from ...config.checks.problems import problems_in
from ...errors import ConfigError, closest, show
from ...registry import config_model, get_backend
from ..answer import Refusal
from ..settings import ServeSettings


@dataclass(slots=True)
class Engine:
    """One backend with the base models it offers."""

    settings: ServeSettings
    backend: Any
    _hosts: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Base model -> a client that is never trained, for capabilities and for opening saved weights."""
    _samplers: WeakValueDictionary[tuple[str, str], SamplingClient] = field(
        default_factory=WeakValueDictionary[tuple[str, str], SamplingClient]
    )
    """Open samplers by base model and saved weights, while a client uses them."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def start(cls, settings: ServeSettings) -> Engine:
        """Load the base models, so that errors occur before the first client connects."""
        engine = cls(settings, _make_backend(settings))
        for model in settings.models:
            engine.host(model)
        return engine

    def host(self, base_model: str) -> TrainingClient:
        """The untrained client of a base model."""
        self.check_name(base_model)
        with self._lock:
            if base_model not in self._hosts:
                # With the lock held, so that concurrent requests do not load the same weights twice.
                self._hosts[base_model] = self.backend.prepare(
                    model=ModelSpec(base_model), run_dir=self.settings.state_dir / "base" / _folder(base_model)
                )
            return self._hosts[base_model]["training_client"]

    def check_name(self, base_model: str) -> None:
        """Refuse an unknown base model."""
        models = self.settings.models
        if base_model not in models:
            guess = closest(base_model, models)
            hint = f" Did you mean {guess!r}?" if guess else ""
            raise Refusal(
                400, f"there is no base model {show(base_model)} here.{hint} This server has {', '.join(models)}."
            )

    def capabilities(self, base_model: str) -> Capabilities:
        """The capabilities of a base model."""
        return self.host(base_model).capabilities

    def prepare(self, base_model: str, *, run_dir: Path, rank: int, seed: int) -> dict[str, Any]:
        """Create a model to train; blocks while weights load, so not on the event loop."""
        return self.backend.prepare(model=ModelSpec(base_model, lora_rank=rank, seed=seed), run_dir=run_dir)

    async def open_sampler(self, base_model: str, ref: str | None) -> SamplingClient:
        """A sampler of saved weights, or of the base model, shared by all clients for joint batches."""
        key = (base_model, ref or "")
        if (sampler := self._samplers.get(key)) is None:
            host = self.host(base_model)
            # `setdefault`, because another task may have opened it meanwhile
            sampler = self._samplers.setdefault(key, await (host.sampler() if ref is None else host.open_sampler(ref)))
        return sampler

    async def release(self, handles: dict[str, Any]) -> None:
        """Release a model after its running operations, on a thread."""
        await asyncio.to_thread(self.backend.teardown, handles)

    async def close(self) -> None:
        """Release the base models."""
        for handles in self._hosts.values():
            await self.release(handles)
        self._hosts.clear()


def _make_backend(settings: ServeSettings) -> Any:
    extension, params = get_backend(settings.backend), dict(settings.backend_params)
    try:
        return extension(**params)
    except ValidationError as error:
        model = config_model(extension)
        if model is None:
            raise
        problems = problems_in(error, model=model, data=params, at=("--backend-param",))
        raise ConfigError(problems) from None
    except TypeError as error:
        names = ", ".join(params) or "none"
        raise ConfigError(
            f"the backend '{settings.backend}' does not take these --backend-param: {names} ({error})."
        ) from None


def _folder(model: str) -> str:
    return "".join(character if character.isalnum() or character in "-_" else "_" for character in model) or "_"
