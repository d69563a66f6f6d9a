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
    """Where to compute: `cpu`, `cuda`, `cuda:1`; auto takes a GPU where there is one."""
    dtype: Literal["auto", "float32", "bfloat16", "nf4"] = "auto"
    """How base weights are stored and computed with; auto takes bfloat16 where the hardware has it. nf4 stores linear
    layers in four bits, and computes as auto does. Adapters are always float32."""
    exact: bool = False
    """Compute in float32, so that sampling and training agree to about five digits; bfloat16 agrees to about one."""
    gguf_file: str | None = None
    """Name of the GGUF file, where `model.name` is a folder that holds one."""
    lora_alpha: float = Field(default=32.0, gt=0)
    """Adapters count this much divided by their rank, so that a learning rate suits every rank."""
    lora_targets: list[str] | None = Field(default=None, min_length=1)
    """Linear layers to adapt, e.g. [q_proj, v_proj]; by default all but the output layer and the experts of a mixture.
    "*" is all of them, experts.gate_up_proj and experts.down_proj are the experts."""
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of an adapter's inputs that is left out at random while training."""
    tokens_at_once: int | None = Field(default=None, ge=1)
    """Tokens in one pass; a larger batch takes several, with the same result. By default 2048 on a CPU, 8192 on a
    GPU."""
    recompute: Literal["auto", "always", "never"] = "auto"
    """Run layers a second time for the gradient instead of keeping what they computed: the same numbers in much less
    memory, and half as long again. auto does so where it would not fit otherwise."""
    max_context: int | None = Field(default=None, ge=2)
    """Longest sequence, where the model's own limit needs more memory than there is."""
    share_prefixes: bool = True
    """Read what several sequences of a batch begin with only once."""
    merge_samplers: bool = True
    """Add the adapter into a copy of the weights to sample faster; needs memory for that copy."""
    samples_at_once: int | None = Field(default=None, ge=1)
    """Samples that grow together; by default 32 on a CPU, 512 on a GPU."""
    cached_tokens: int | None = Field(default=None, ge=16)
    """Tokens that all of these may hold together; by default 65536 on a CPU, 262144 on a GPU."""
    join_passes: Literal["auto", "always", "never"] = "auto"
    """Compute what several runs on the same base ask for at the same time in one pass; auto does so on a GPU. Numbers
    are the same up to rounding."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of torch, for the whole process; by default what torch chooses."""
    devices: int = Field(default=1, ge=1, le=64)
    """Train and sample one run on so many GPUs, or in so many processes on a CPU: each has the whole base, data and
    samples are split, gradients are summed. Numbers are the same up to rounding."""

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
        """Load the base, unless another run has it already, and start an adapter on it."""
        from .client import LocalTrainingClient

        if self.config.devices == 1:
            return self.start(LocalTrainingClient, model, run_dir)
        from .parallel import prepare_parallel

        return prepare_parallel(self, model, run_dir)

    def start(self, kind: type[LocalTrainingClient], model: Any, run_dir: Path) -> dict[str, Any]:
        """The same for one process, with a client of a kind."""
        from ..client import start_of
        from .memory_plan import Sizes

        ref, with_optimizer = start_of(model)
        # What fits is decided before weights are read; a base that is there already does not ask.
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
        """Finish what is queued and end the threads; the base goes when its last user has gone."""
        if (client := handles.get("training_client")) is not None:
            client.close()

    def load(self, model: str, before_loading: Callable[[Any, Any], None] | None = None) -> Any:
        """The base model of a name, on the device and in the type that the params ask for."""
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
        """The tokenizer and the context of a model, before it is loaded; None where its files say too little.

        A run that cannot fit into `room` bytes of main memory is refused.
        """
        from .base.loading import read_config
        from .memory_plan import refuse_if_hopeless

        found = read_config(locate_model(model.name), self._computed_in)
        if found is not None and room is not None and found.sizes is not None:
            needs = self._find_needs(model, found.device, found.dtype)
            name = Path(model.name).name
            refuse_if_hopeless(found.sizes, needs, fixed=self._fixed, model=name, room=room, where="this machine")
        return found

    def arms_that_fit(self, model: Any) -> int:
        """How many runs of a model share one GPU, by its memory; 1 where they would not be joined."""
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
        """What the config asks for, as far as there is memory for it."""
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

        wanted = self._find_needs(model, key.device, key.dtype, loaded=loaded)
        return fit(sizes, wanted, fixed=self._fixed, model=model.name)

    @property
    def _fixed(self) -> set[str]:
        """What the config sets itself."""
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
    """The folder of a model of one word, below `outputs/models` or in this user's cache; else the name itself."""
    if "/" in name or Path(name).exists():
        return name
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(os.environ.get("EVSYS_CACHE_DIR") or base / "evsys-sdk").absolute()
    places = (in_project("outputs/models") / name, cache / "models" / name)
    return next((str(place) for place in places if place.is_dir()), name)
