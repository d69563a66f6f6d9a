"""Base models: loaded once, frozen, shared by every run in the process that asks for the same one.

A model is a folder, a name on the Hugging Face hub, or a GGUF file. What its config says cannot work is refused before
weights are read (`families`); a model whose parts do not behave as expected is refused right after (`probing`).
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
    """What decides which base it is."""

    model: str
    gguf_file: str | None
    dtype: torch.dtype
    device: torch.device
    four_bit: bool = False
    """Whether the linear layers are stored in four bits."""


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
    recurrent: bool = False
    """Whether layers carry a state from token to token, so that a text can only be continued at its end."""
    turns: Turns = field(default_factory=Turns)
    """Held while the model runs."""
    fusible: bool | None = None
    """Whether the faster decoder works for it; None until it was tried."""
    packed_head: Product | None = None
    """The output layer as decoding wants it, where it is stored once more."""
    gpu_layers: Any = None
    """Its layers for the fused body of a GPU; False where that does not work, None until it was tried."""
    spaces: list[Any] = field(default_factory=list[Any])
    """Places of graph decoders that are free to be used again."""
    joiner: Any = None
    """Where training of several runs meets; None until a run that may be joined starts."""
    loops: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """Threads that sample for several runs, by their limits."""

    @property
    def device(self) -> torch.device:
        return self.key.device

    @property
    def vocab_size(self) -> int:
        return self.head.weight.shape[0]

    def hidden(self, tokens: Tensor, positions: Tensor, layout: attention.Layout) -> Tensor:
        """The last hidden state of each token of one row, (T, hidden)."""
        at: Any = positions[None]
        at.evsys_layout = layout  # StableLM hands down nothing but this
        output = self.body(input_ids=tokens[None], position_ids=at, use_cache=False, evsys_layout=layout)
        return output.last_hidden_state[0]


type BeforeLoading = Callable[[Sizes, BaseKey], None]
"""Called with what will be loaded, once it is known to fit and unless it is there already."""

_loaded: weakref.WeakValueDictionary[BaseKey, Base] = weakref.WeakValueDictionary()  # gone with its last user
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
    """The base of a name, with everything as a config spells it; loaded unless a run in this process has it."""
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
    # Before anything of ours is put into the model: names and tensors are those of the files.
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
    """What the files of a model say before any weight is read."""

    tokenizer: Any
    context_length: int
    sizes: Sizes | None
    device: Any
    dtype: Any


def read_config(model: str, dtype: str) -> Preview | None:
    """A model whose files are on this machine, to be run on its CPU; None where they are not, or say too little."""
    from transformers import AutoConfig, AutoTokenizer

    def read(load: Callable[[], Any]) -> Any | None:
        try:
            return load()
        except Exception:  # loading the model says what is wrong with it
            return None

    config = read(lambda: AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False))
    tokenizer = read(lambda: AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False))
    if config is None or tokenizer is None:
        return None
    families.check_family(model, config)
    context, cpu = context_length_of(config.get_text_config(), model, warns=False), torch.device("cpu")
    return Preview(tokenizer, context, read(lambda: Sizes.of(config)), cpu, pick_dtype(dtype, cpu))


def context_length_of(config: Any, model: str, *, warns: bool = True) -> int:
    """How many tokens a text may have."""
    longest = int(getattr(config, "max_position_embeddings", None) or 2048)
    ropes: Any = getattr(config, "rope_parameters", None) or {}
    for rope in (ropes, *(part for part in ropes.values() if isinstance(part, dict))):
        if rope.get("rope_type") in ("dynamic", "longrope"):
            # Beyond this the numbers of a token depend on how long the longest text of the row is.
            stated = rope.get("original_max_position_embeddings") or getattr(
                config, "original_max_position_embeddings", longest
            )
            if int(stated) < longest:
                said = "texts for %s may have %d tokens, not %d: with longer ones it reads positions in another way"
                if warns:
                    get_logger(__name__).warning(said, model, stated, longest)
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
        # Said outright: left open, transformers asks on the terminal whether to run code that comes with the model.
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
    """The model as transformers loads it, with nothing of ours in it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if key.gguf_file:
        from transformers import GgufConfig

        # Without the second, weights count as quantized although they are not, and cannot be saved.
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
    # Four bits are made of it layer by layer, so that the device never holds all of it.
    return model if key.four_bit else model.to(key.device)


def _check_complete(model: str, stated: Mapping[str, Any]) -> None:
    """Refuse a model of which weights are missing: they would be made up, other ones each time."""
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
    """A digest of all tensors, the same whether they were loaded as float32 or bfloat16."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        bits = parameter.detach().flatten().to(torch.bfloat16).view(torch.int16)
        # A few numbers and a sum of all: reading out every byte would take as long as loading.
        digest.update(bits[:64].cpu().numpy().tobytes())
        digest.update(str(int(bits.sum(dtype=torch.int64))).encode())
    return digest.hexdigest()[:16]
