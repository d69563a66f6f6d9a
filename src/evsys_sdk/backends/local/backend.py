"""The `local` backend: train and sample on this machine, on a CPU or on GPUs.

    model: { name: ./SmolLM2-135M-Instruct }     # a folder, a GGUF file, or a name on the Hugging Face hub
    backend: { kind: local, params: { device: auto } }

The base model is loaded once per process and shared by all arms; each arm trains its own LoRA adapter.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from ...config.base import Strict
from ...paths import in_project

if TYPE_CHECKING:
    from .client import LocalTrainingClient


class LocalConfig(Strict):
    """Params of `backend.kind: local`."""

    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """Device: `cpu`, `cuda`, `cuda:1`; auto uses a GPU if there is one."""
    dtype: Literal["auto", "float32", "bfloat16", "nf4"] = "auto"
    """Dtype of base weights and computation; auto uses bfloat16 if the hardware supports it, otherwise float32. nf4
    stores linear layers in four bits and computes like auto. Adapters are always float32."""
    exact: bool = False
    """Compute in float32, so that log-probabilities of sampling and training agree to about five digits; with bfloat16
    they agree to about one."""
    gguf_file: str | None = None
    """Name of the GGUF file if `model.name` is a folder with GGUF files."""
    lora_alpha: float = Field(default=32.0, gt=0)
    """The adapter is scaled by lora_alpha / lora_rank, so that a learning rate suits every rank."""
    lora_targets: list[str] | None = Field(default=None, min_length=1)
    """Linear layers to adapt, e.g. [q_proj, v_proj]; by default all but the output layer and the experts of a mixture.
    "*" adapts all but the output layer; experts.gate_up_proj and experts.down_proj adapt the experts."""
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout probability of the adapter's inputs in training."""
    tokens_at_once: int | None = Field(default=None, ge=1)
    """Tokens per pass; a larger batch takes several passes, with the same result. By default 2048 on a CPU, 8192 on a
    GPU."""
    recompute: Literal["auto", "always", "never"] = "auto"
    """Recompute layers in the backward pass (gradient checkpointing): same result, much less memory, about 1.5 times
    the time. auto recomputes only rows that would not fit into memory otherwise."""
    max_context: int | None = Field(default=None, ge=2)
    """Maximum sequence length, if the model's own limit needs too much memory."""
    share_prefixes: bool = True
    """Compute a common prefix of several sequences in a batch only once."""
    merge_samplers: bool = True
    """Merge the adapter into a copy of the weights for faster sampling; needs memory for that copy."""
    samples_at_once: int | None = Field(default=None, ge=1)
    """Samples that are decoded at the same time; by default 32 on a CPU, 512 on a GPU."""
    cached_tokens: int | None = Field(default=None, ge=16)
    """Tokens in the KV cache, for all samples together; by default 65536 on a CPU, 262144 on a GPU."""
    join_passes: Literal["auto", "always", "never"] = "auto"
    """Compute simultaneous requests of several runs on the same base in one pass; auto does so on a GPU. Results are
    equal up to rounding."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of torch, for the whole process; by default torch chooses."""
    devices: int = Field(default=1, ge=1, le=64)
    """Number of GPUs, or of processes on a CPU, for one run: each has the whole base, data and samples are split,
    gradients are summed. Results are equal up to rounding."""

    @model_validator(mode="after")
    def _check_devices(self) -> LocalConfig:
        if self.devices == 1:
            return self
        if os.name == "nt":
            raise ValueError("devices above 1 need Linux or macOS; leave it out")
        if self.device.startswith("cuda:"):
            raise ValueError(f"devices is {self.devices} and device is {self.device}, which is one; set device to cuda")
        if self.join_passes == "always":
            raise ValueError("devices above 1 cannot be combined with join_passes: always; leave out one of them")
        if self.lora_dropout:
            raise ValueError("devices above 1 cannot be combined with lora_dropout; leave out one of them")
        return self


class LocalBackend:
    """LoRA training and sampling of a real model in this process, with torch and transformers."""

    name: ClassVar[str] = "local"
    Config: ClassVar[type[LocalConfig]] = LocalConfig

    def __init__(self, **params: Any) -> None:
        self.config = self.Config(**params)

    def prepare(self, *, model: Any, run_dir: Path) -> dict[str, Any]:
        """Load the base, unless another run already uses it, and start an adapter on it."""
        from .client import LocalTrainingClient

        if self.config.devices == 1:
            return self.start(LocalTrainingClient, model, run_dir)
        from .parallel import prepare_parallel

        return prepare_parallel(self, model, run_dir)

    def start(self, kind: type[LocalTrainingClient], model: Any, run_dir: Path) -> dict[str, Any]:
        """Load the base and start a client of the given class in this process."""
        from ..client import start_of
        from .memory_plan import Sizes

        ref, with_optimizer = start_of(model)
        # The memory plan is made before weights are loaded; the callback does not run if the base is already loaded.
        chosen: list[Any] = []
        base = self.load(model.name, lambda sizes, key: chosen.append(self._settings(model, sizes, key, loaded=False)))
        if not chosen:
            chosen.append(self._settings(model, Sizes.of(base.model.config), base.key, loaded=True))
        client = kind.start(base, chosen[0], Path(run_dir))
        if ref:
            try:
                client.load_state(ref, with_optimizer=with_optimizer).result()
            except BaseException:
                client.close()
                raise
        return {"training_client": client, "tokenizer": client.tokenizer, "model_name": model.name, "base": base}

    def teardown(self, handles: dict[str, Any]) -> None:
        """Finish queued calls and end the threads; the base is freed with its last user."""
        if (client := handles.get("training_client")) is not None:
            client.close()

    def load(self, model: str, before_loading: Callable[[Any, Any], None] | None = None) -> Any:
        """Load the base model with the device and dtype of the params."""
        from .base.loading import open_base

        config = self.config
        return open_base(
            locate_model(model),
            device=config.device,
            dtype=self._computed_in,
            four_bit=config.dtype == "nf4",
            gguf_file=config.gguf_file,
            threads=config.threads,
            before_loading=before_loading,
        )

    def preview(self, model: Any, *, room: int | None) -> Any:
        """Return the tokenizer and the context length of a model without loading it; None if its files cannot be read.

        Raises if the run cannot fit into `room` bytes of main memory.
        """
        from .base.loading import read_config
        from .memory_plan import refuse_if_hopeless

        config = read_config(locate_model(model.name), self._computed_in)
        if config is not None and room is not None and config.sizes is not None:
            needs = self._find_needs(model, config.device, config.dtype)
            name = Path(model.name).name
            refuse_if_hopeless(config.sizes, needs, fixed=self._fixed, model=name, room=room, where="this machine")
        return config

    def arms_that_fit(self, model: Any) -> int:
        """Return how many runs of a model fit on one GPU; 1 if their passes cannot be joined."""
        from .memory_plan import arms_that_fit

        if (
            self.config.join_passes == "never"
            or self.config.devices > 1
            or self.config.lora_dropout
            or self.config.device == "cpu"
        ):
            return 1
        return arms_that_fit(
            model.name, lambda device, dtype: self._find_needs(model, device, dtype), self._computed_in
        )

    @property
    def _computed_in(self) -> str:
        if self.config.exact:
            return "float32"
        return "auto" if self.config.dtype == "nf4" else self.config.dtype

    def _settings(self, model: Any, sizes: Any, key: Any, *, loaded: bool) -> Any:
        """Return the settings of the config, reduced to the available memory."""
        from .client import LocalSettings
        from .memory_plan import bytes_per_token
        from .sampling.loop import SamplingLimits
        from .training.passes import PassSettings

        config, on_gpu = self.config, key.device.type == "cuda"
        needs = self._needs(model, sizes, key, loaded=loaded)
        recompute_from = needs.recompute_from if needs.recompute else None
        return LocalSettings(
            model=model.name,
            seed=getattr(model, "seed", 0),
            lora_rank=needs.rank,
            lora_alpha=config.lora_alpha,
            lora_targets=None if config.lora_targets is None else tuple(config.lora_targets),
            max_context=config.max_context,
            merge=needs.merge,
            passes=PassSettings(
                needs.tokens_at_once,
                config.share_prefixes,
                config.lora_dropout,
                config.recompute,
                recompute_from,
                (
                    bytes_per_token(sizes, replace(needs, recompute=False)),
                    bytes_per_token(sizes, replace(needs, recompute=True)),
                ),
                join=config.join_passes == "always" or (config.join_passes == "auto" and on_gpu),
            ),
            sampling=SamplingLimits(
                lanes=config.samples_at_once or (512 if on_gpu else 32),
                cached_tokens=needs.cached_tokens,
                tokens_at_once=needs.tokens_at_once,
            ),
        )

    def _needs(self, model: Any, sizes: Any, key: Any, *, loaded: bool) -> Any:
        from .memory_plan import fit

        needs = self._find_needs(model, key.device, key.dtype, loaded=loaded)
        return fit(sizes, needs, fixed=self._fixed, model=model.name)

    @property
    def _fixed(self) -> set[str]:
        """Names of the params that the config sets to a value."""
        config = self.config
        return {name for name, value in config if name in config.model_fields_set and value not in (None, "auto")}

    def _find_needs(self, model: Any, device: Any, dtype: Any, *, loaded: bool = False) -> Any:
        from .memory_plan import Needs

        config, on_gpu = self.config, device.type == "cuda"
        return Needs(
            device,
            dtype,
            getattr(model, "lora_rank", 32),
            config.lora_targets,
            tokens_at_once=config.tokens_at_once or (8192 if on_gpu else 2048),
            cached_tokens=config.cached_tokens or (262144 if on_gpu else 65536),
            merge=config.merge_samplers,
            four_bit=config.dtype == "nf4",
            recompute=config.recompute == "always",
            loaded=loaded,
            dropout=config.lora_dropout > 0,
        )


def locate_model(name: str) -> str:
    """Return the folder of a model given by a single name, in `outputs/models` or the user's cache; else the name."""
    if "/" in name or Path(name).exists():
        return name
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(os.environ.get("EVSYS_CACHE_DIR") or base / "evsys-sdk").absolute()
    places = (in_project("outputs/models") / name, cache / "models" / name)
    return next((str(place) for place in places if place.is_dir()), name)
