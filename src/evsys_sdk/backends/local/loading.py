"""Base models: loaded once, frozen, shared by every run in the process that asks for the same one.

A model is a folder, a name on the Hugging Face hub, or a GGUF file. After loading it is asked for a few
log-probabilities in its own way and in ours; a model whose parts do not behave as expected is refused there and then.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import contextlib
import hashlib
import threading
import weakref
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import BackendError
from ...log import get_logger
from . import attention, memory
from .head import Head
from .lora import Switch, install
from .products import Product
from .turns import Turns

_PROBE_TOKENS = 12


@dataclass(frozen=True, slots=True)
class BaseKey:
    """What decides which base it is."""

    model: str
    gguf_file: str | None
    dtype: torch.dtype
    device: torch.device


@dataclass(eq=False)
class Base:
    """A frozen model, and what its users need to know about it."""

    key: BaseKey
    model: nn.Module
    body: nn.Module
    head: Head
    switch: Switch
    tokenizer: Any
    context_length: int
    hidden_size: int
    stop_tokens: tuple[int, ...]
    """Tokens that end a text."""
    fingerprint: str
    """The same for the same weights, wherever they were loaded from."""
    turns: Turns = field(default_factory=Turns)
    """Held by whoever runs the model."""
    fusible: bool | None = None
    """Whether the faster decoder works for it; None until it was tried."""
    packed_head: Product | None = None
    """The output layer as decoding wants it, where it is stored once more."""
    gpu_layers: Any = None
    """Its layers for the fused body of a GPU; False where that does not work, None until it was tried."""
    spaces: list[Any] = field(default_factory=list[Any])
    """Places of graph decoders that are free to be used again."""

    @property
    def device(self) -> torch.device:
        return self.key.device

    @property
    def vocab_size(self) -> int:
        return self.head.weight.shape[0]

    def hidden(self, tokens: Tensor, positions: Tensor, layout: attention.Layout) -> Tensor:
        """The last hidden state of each token of one row, (T, hidden)."""
        output = self.body(input_ids=tokens[None], position_ids=positions[None], use_cache=False, evsys_layout=layout)
        return output.last_hidden_state[0]


_loaded: weakref.WeakValueDictionary[BaseKey, Base] = weakref.WeakValueDictionary()
_loading = threading.Lock()


def open_base(model: str, *, device: str, dtype: str, gguf_file: str | None, threads: int | None) -> Base:
    """The base of a name, with everything as a config spells it."""
    if threads is not None:
        torch.set_num_threads(threads)
    place = pick_device(device)
    return load_base(model, gguf_file=gguf_file, dtype=pick_dtype(dtype, place), device=place)


def load_base(model: str, *, gguf_file: str | None, dtype: torch.dtype, device: torch.device) -> Base:
    """The base of a name; loaded unless a run in this process already has it."""
    folder = Path(model).expanduser()
    if folder.suffix == ".gguf" and folder.is_file():
        folder, gguf_file = folder.parent, folder.name
    elif not folder.is_dir() and (model.startswith(("/", ".", "~")) or model.count("/") > 1):
        raise BackendError(
            f"model.name: there is no folder or GGUF file {model}. Give a folder with a transformers model, a GGUF "
            "file, or a name on the Hugging Face hub."
        )
    name = str(folder.resolve()) if folder.is_dir() else model
    key = BaseKey(name, gguf_file, dtype, device)
    with _loading:
        base = _loaded.get(key)
        if base is None:
            base = _loaded[key] = _load(key)
    return base


def pick_device(wanted: str) -> torch.device:
    """The device of a name; `auto` is a GPU where there is one."""
    if wanted == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    device = torch.device(wanted)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise BackendError(
                f"backend.params.device is '{wanted}', and this machine has {count} CUDA devices. Use auto or cpu."
            )
        return torch.device("cuda", device.index or 0)
    return device


def pick_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """How weights are stored; `auto` is bfloat16 where the hardware computes with it, else float32."""
    if wanted != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[wanted]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    return torch.bfloat16 if _cpu_has_bfloat16() else torch.float32


def _cpu_has_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _load(key: BaseKey) -> Base:
    attention.register()
    log = get_logger(__name__)
    log.info("loading %s as %s on %s", key.model, str(key.dtype).removeprefix("torch."), key.device)
    with _without_progress_bars():
        config, tokenizer, model = _from_transformers(key)
    model.requires_grad_(False)
    model.eval()
    output = model.get_output_embeddings()
    if output is None:
        raise BackendError(f"{key.model} ({type(model).__name__}) has no output layer to read tokens from.")
    head = Head(output.weight, getattr(output, "bias", None))
    body = getattr(model, model.base_model_prefix)
    switch = install(model, skip=[output])
    text = config.get_text_config()
    base = Base(
        key,
        model,
        body,
        head,
        switch,
        tokenizer,
        context_length=int(getattr(text, "max_position_embeddings", None) or 2048),
        hidden_size=int(text.hidden_size),
        stop_tokens=_stop_tokens(tokenizer, model),
        fingerprint=_fingerprint(model),
    )
    _check_against_own_forward(base)
    return base


@contextlib.contextmanager
def _without_progress_bars() -> Generator[None]:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _from_transformers(key: BaseKey) -> tuple[Any, Any, Any]:
    from transformers import AutoConfig, AutoTokenizer

    gguf: dict[str, Any] = {"gguf_file": key.gguf_file} if key.gguf_file else {}
    try:
        config = AutoConfig.from_pretrained(key.model, **gguf)
        memory.check_fits(memory.count_parameters(config), key.dtype, key.device, key.model)
        return config, AutoTokenizer.from_pretrained(key.model, **gguf), load_plain(key, attention.NAME)
    except BackendError:
        raise
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BackendError(
            f"model.name: {key.model} cannot be loaded: {reason.rstrip('.')}. "
            "Give a folder with a transformers model, a GGUF file, or a name on the Hugging Face hub."
        ) from error


def load_plain(key: BaseKey, attention_name: str = "sdpa") -> Any:
    """The model as transformers loads it, with nothing of ours in it."""
    from transformers import AutoModelForCausalLM, GgufConfig

    gguf: dict[str, Any] = {}
    if key.gguf_file:
        # Without the second, weights count as quantized although they are not, and cannot be saved.
        gguf = {"gguf_file": key.gguf_file, "quantization_config": GgufConfig(dequantize=True)}
    model = AutoModelForCausalLM.from_pretrained(key.model, dtype=key.dtype, attn_implementation=attention_name, **gguf)
    return model.to(key.device)


def _stop_tokens(tokenizer: Any, model: Any) -> tuple[int, ...]:
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    listed = configured if isinstance(configured, list) else [configured]
    return tuple(dict.fromkeys(int(token) for token in (tokenizer.eos_token_id, *listed) if token is not None))


def _fingerprint(model: nn.Module) -> str:
    """A digest of a few numbers of every tensor, the same whether it was loaded as float32 or bfloat16."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        few = parameter.detach().flatten()[:64].to("cpu", torch.bfloat16)
        digest.update(few.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]


@torch.no_grad()
def _check_against_own_forward(base: Base) -> None:
    """Compare a few log-probabilities with those of the model's own forward pass."""
    count = min(_PROBE_TOKENS, base.context_length)
    tokens = torch.arange(count, device=base.device) * 7 % base.vocab_size
    layout = attention.PackedLayout([attention.Segment(0, count)])
    try:
        ours = base.head.logits(base.hidden(tokens, torch.arange(count, device=base.device), layout))
        base.model.set_attn_implementation("eager")
        own = base.model(input_ids=tokens[None], use_cache=False).logits[0].float()
    except (TypeError, AttributeError, ValueError) as error:
        raise BackendError(_not_understood(base, str(error))) from error
    finally:
        base.model.set_attn_implementation(attention.NAME)
    gap = float((ours.log_softmax(-1) - own.log_softmax(-1)).abs().max())
    allowed = 1e-2 if base.key.dtype == torch.float32 else 1.0
    if not gap <= allowed:
        raise BackendError(_not_understood(base, f"its log-probabilities differ by {gap:.3g} from the model's own"))


def _not_understood(base: Base, reason: str) -> str:
    return (
        f"{base.key.model} ({type(base.model).__name__}) does not work the way the local backend expects: {reason}. "
        "Use a model of another architecture, such as Llama, Qwen or Mistral."
    )
