"""Base models: frozen, loaded once and shared by all runs of the process that use the same model.

A model is a folder, a name on the Hugging Face hub, or a GGUF file. `families` refuses unsupported configs before
weights are loaded; `probing` refuses loaded models that do not behave as expected.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import contextlib
import hashlib
import threading
import weakref
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ....errors import BackendError
from ....log import get_logger
from .. import memory
from ..memory_plan import Sizes
from . import attention, families, hybrids, probing
from .experts import find_experts
from .head import Head
from .lora import Switch, install, quantize
from .products import Product
from .turns import Turns


@dataclass(frozen=True, slots=True)
class BaseKey:
    """Identity of a base: runs with an equal key share it."""

    model: str
    gguf_file: str | None
    dtype: torch.dtype
    device: torch.device
    four_bit: bool = False
    """Whether the linear layers are stored in four bits."""


@dataclass(eq=False)
class Base:
    """A frozen model with its tokenizer, properties and shared caches."""

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
    """Digest of the weights, independent of where they were loaded from."""
    recurrent: bool = False
    """Whether layers carry a state from token to token, so that cached text can be continued only at its end."""
    turns: Turns = field(default_factory=Turns)
    """Held while the model runs."""
    host: threading.Lock = field(default_factory=threading.Lock)
    """Held while a run prepares tensors in Python: runs that compete for the interpreter take five times as long as one
    after another."""
    fusible: bool | None = None
    """Whether the fused decoder works for this model; None until it has been tried."""
    packed_head: Product | None = None
    """A second copy of the output layer, packed for decoding; None if there is none."""
    gpu_layers: Any = None
    """The layers of the fused body on a GPU; False if it does not work, None until it has been tried."""
    spaces: list[Any] = field(default_factory=list[Any])
    """Free buffers of graph decoders, for reuse."""
    joiner: Any = None
    """Joins the training passes of several runs; None until the first run that may be joined starts."""
    loops: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """Sampling loops shared by several runs, by their limits."""

    @property
    def device(self) -> torch.device:
        return self.key.device

    @property
    def vocab_size(self) -> int:
        return self.head.weight.shape[0]

    def hidden(self, tokens: Tensor, positions: Tensor, layout: attention.Layout) -> Tensor:
        """Return the last hidden state of each token of one row, (T, hidden)."""
        at: Any = positions[None]
        at.evsys_layout = layout  # StableLM passes only the position ids to its layers
        output = self.body(input_ids=tokens[None], position_ids=at, use_cache=False, evsys_layout=layout)
        return output.last_hidden_state[0]


type BeforeLoading = Callable[[Sizes, BaseKey], None]
"""Called before a base is loaded; not called if the base is already loaded."""

_loaded: weakref.WeakValueDictionary[BaseKey, Base] = weakref.WeakValueDictionary()  # freed with the last user
_loading = threading.Lock()


def open_base(
    model: str,
    *,
    device: str,
    dtype: str,
    gguf_file: str | None,
    threads: int | None,
    four_bit: bool = False,
    before_loading: BeforeLoading | None = None,
) -> Base:
    """Return the base for the values of a config; load it unless a run of this process already uses it."""
    if threads is not None:
        torch.set_num_threads(threads)
    place = pick_device(device)
    folder = Path(model).expanduser()
    if folder.suffix == ".gguf" and folder.is_file():
        folder, gguf_file = folder.parent, folder.name
    elif not folder.is_dir() and (model.startswith(("/", ".", "~")) or model.count("/") > 1):
        raise BackendError(
            f"model.name: there is no folder or GGUF file {model}. Give a folder with a transformers model, a GGUF "
            "file, or a name on the Hugging Face hub."
        )
    name = str(folder.resolve()) if folder.is_dir() else model
    key = BaseKey(name, gguf_file, pick_dtype(dtype, place), place, four_bit)
    # Two arms that start at once must not load the same weights twice.
    with _loading:
        base = _loaded.get(key)
        if base is None:
            base = _loaded[key] = _load(key, before_loading)
    return base


def pick_device(name: str) -> torch.device:
    """Return the device of a name; `auto` means a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    device = torch.device(name)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise BackendError(
                f"backend.params.device is '{name}', and this machine has {count} CUDA devices. Use auto or cpu."
            )
        return torch.device("cuda", device.index or 0)
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of a name; `auto` means bfloat16 if the hardware supports it, otherwise float32."""
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    return torch.bfloat16 if _cpu_has_bfloat16() else torch.float32


def _cpu_has_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _load(key: BaseKey, before_loading: BeforeLoading | None = None) -> Base:
    attention.register()
    log = get_logger(__name__)
    stored = "nf4" if key.four_bit else str(key.dtype).removeprefix("torch.")
    log.info("loading %s as %s on %s", key.model, stored, key.device)
    with _without_progress_bars():
        config, tokenizer, model = _from_transformers(key, before_loading)
    model.requires_grad_(False)
    model.eval()
    output, body = model.get_output_embeddings(), getattr(model, model.base_model_prefix, None)
    if output is None or body is None:
        raise families.explain_refusal(key.model, type(model).__name__, "it has no output layer to read tokens from")
    # Before `install` changes the model: names and tensors are still those of the files.
    fingerprint = _fingerprint(model)
    switch = install(model, skip=[output])
    if key.four_bit:
        quantize(model, switch, key.device)
        model.to(key.device)
    head = probing.head_of(model, output, key.model)
    text = config.get_text_config()
    base = Base(
        key,
        model,
        body,
        head,
        switch,
        tokenizer,
        context_length=context_length_of(text, key.model),
        hidden_size=int(getattr(text, "hidden_size", head.weight.shape[1])),
        stop_tokens=_stop_tokens(tokenizer, model),
        fingerprint=fingerprint,
        recurrent=hybrids.route_recurrence(model),
    )
    probing.check(base)
    if len(tokenizer) > base.vocab_size:
        log.warning(
            "the tokenizer of %s has %d tokens, and the model has weights for %d. Texts with others are refused; give "
            "it the tokenizer that it was made with",
            key.model,
            len(tokenizer),
            base.vocab_size,
        )
    if probing.is_mixture(model):
        how = "name them in backend.params.lora_targets" if find_experts(model) else "they cannot be adapted"
        log.info("adapters of %s leave its experts as they are unless asked to (%s)", key.model, how)
    return base


@dataclass(frozen=True, slots=True)
class Preview:
    """The properties of a model that are known before its weights are loaded."""

    tokenizer: Any
    context_length: int
    sizes: Sizes | None
    device: Any
    dtype: Any


def read_config(model: str, dtype: str) -> Preview | None:
    """Preview a model for the CPU from local files; None if its config or tokenizer cannot be read."""
    from transformers import AutoConfig, AutoTokenizer

    def read(load: Callable[[], Any]) -> Any | None:
        try:
            return load()
        except Exception:  # loading the model reports the error
            return None

    config = read(lambda: AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False))
    tokenizer = read(lambda: AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False))
    if config is None or tokenizer is None:
        return None
    families.check_family(model, config)
    context, cpu = context_length_of(config.get_text_config(), model, warns=False), torch.device("cpu")
    return Preview(tokenizer, context, read(lambda: Sizes.of(config)), cpu, pick_dtype(dtype, cpu))


def context_length_of(config: Any, model: str, *, warns: bool = True) -> int:
    """Return the maximum number of tokens of a text."""
    longest = int(getattr(config, "max_position_embeddings", None) or 2048)
    ropes: Any = getattr(config, "rope_parameters", None) or {}
    for rope in (ropes, *(part for part in ropes.values() if isinstance(part, dict))):
        if rope.get("rope_type") in ("dynamic", "longrope"):
            # Beyond this length, the values of a token depend on the longest text in the row.
            stated = rope.get("original_max_position_embeddings") or getattr(
                config, "original_max_position_embeddings", longest
            )
            if int(stated) < longest:
                message = "texts for %s may have %d tokens, not %d: with longer ones it reads positions in another way"
                if warns:
                    get_logger(__name__).warning(message, model, stated, longest)
                longest = int(stated)
    return longest


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


def _from_transformers(key: BaseKey, before_loading: BeforeLoading | None) -> tuple[Any, Any, Any]:
    from transformers import AutoConfig, AutoTokenizer

    gguf: dict[str, Any] = {"gguf_file": key.gguf_file} if key.gguf_file else {}
    try:
        # Explicit, because otherwise transformers asks on the terminal whether to run the model's own code.
        config = AutoConfig.from_pretrained(key.model, trust_remote_code=False, **gguf)
        families.check_family(key.model, config)
        sizes = Sizes.of(config)
        if before_loading is not None:
            before_loading(sizes, key)
        tokenizer = AutoTokenizer.from_pretrained(key.model, trust_remote_code=False, **gguf)
        model = load_plain(key, attention.NAME)
        return config, tokenizer, model
    except BackendError:
        raise
    except Exception as error:
        if memory.is_out_of_memory(error):
            raise memory.no_room(f"the model {key.model}", key.device) from memory.forget_frames(error)
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BackendError(
            f"model.name: {key.model} cannot be loaded: {reason.rstrip('.')}. "
            "Give a folder with a transformers model, a GGUF file, or a name on the Hugging Face hub."
        ) from error


def load_plain(key: BaseKey, attention_name: str | None = None) -> Any:
    """Load the model with transformers, without LoRA layers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if key.gguf_file:
        from transformers import GgufConfig

        # Without this `quantization_config`, transformers treats the weights as quantized and cannot save them.
        options = {"gguf_file": key.gguf_file, "quantization_config": GgufConfig(dequantize=True)}
    else:
        options = families.options_to_load_with(AutoConfig.from_pretrained(key.model, trust_remote_code=False))
    model, stated = AutoModelForCausalLM.from_pretrained(
        key.model,
        dtype=key.dtype,
        attn_implementation=attention_name,
        trust_remote_code=False,
        output_loading_info=True,
        **options,
    )
    _check_complete(key.model, stated)
    # `quantize` moves a four-bit base layer by layer, so that the device never holds all dense weights.
    return model if key.four_bit else model.to(key.device)


def _check_complete(model: str, stated: Mapping[str, Any]) -> None:
    """Raise if weights are missing, because transformers would initialize them randomly; warn of unused weights."""
    missing, unused = (sorted(map(str, stated.get(kind) or ())) for kind in ("missing_keys", "unexpected_keys"))
    if missing:
        raise BackendError(
            f"model.name: {model} lacks {_few(missing)}. Give a folder in which all weights of the model are, with its "
            "output layer."
        )
    if unused:
        get_logger(__name__).warning("%s holds weights that its config has no place for: %s", model, _few(unused))


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def _stop_tokens(tokenizer: Any, model: Any) -> tuple[int, ...]:
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    listed = configured if isinstance(configured, list) else [configured]
    return tuple(dict.fromkeys(int(token) for token in (tokenizer.eos_token_id, *listed) if token is not None))


def _fingerprint(model: nn.Module) -> str:
    """Return a digest of all tensors, the same for float32 and bfloat16."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        bits = parameter.detach().flatten().to(torch.bfloat16).view(torch.int16)
        # The first values and the sum of all: hashing every byte would take as long as loading.
        digest.update(bits[:64].cpu().numpy().tobytes())
        digest.update(str(int(bits.sum(dtype=torch.int64))).encode())
    return digest.hexdigest()[:16]
