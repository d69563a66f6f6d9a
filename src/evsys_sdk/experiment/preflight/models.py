"""Check the model of a run: its folder, memory, context length, initial checkpoint and renderer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...backends.checkpoint_name import MANIFEST
from ...backends.client import ModelSpec
from ...backends.local.backend import locate_model
from ...config import ModelConfig, RunConfig
from ...config.prices import backend_of
from ...errors import EvsysError, Problem, closest, problems_of, suggest
from ...inference.renderer import Renderer, get_renderer
from ...inference.renderers.chat_template import CHAT_TEMPLATE, WITH_HERMES
from ...inference.renderers.cookbook import cookbook_renderers, list_names
from ...paths import in_project
from ...protocols import Algorithm, traits_of
from ...registry import get_backend
from ..arms.recipe import is_local_path, resolve_checkpoint
from .recipes import StillClient
from .report import CheckReport

_GIB = 1024**3
_ON_DISK = ("mock", "local")
"""Backends whose checkpoints are folders."""
_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
_RENDERERS = (
    "role_colon",
    "llama3",
    "qwen3",
    "qwen3_disable_thinking",
    "qwen3_instruct",
    "qwen3_vl",
    "qwen3_vl_instruct",
    "qwen3_5",
    "qwen3_5_disable_thinking",
    "deepseekv3",
    "deepseekv3_disable_thinking",
    "deepseekv3_thinking",
    "kimi_k2",
    "kimi_k25",
    "kimi_k25_disable_thinking",
    "nemotron3",
    "nemotron3_disable_thinking",
    "gpt_oss_no_sysprompt",
    "gpt_oss_low_reasoning",
    "gpt_oss_medium_reasoning",
    "gpt_oss_high_reasoning",
)
"""Renderers of tinker-cookbook; other names are looked up in it if it is installed."""


def model_problems(run: RunConfig, place: str) -> Iterator[Problem]:
    """Yield the problems that prevent the model of a run from loading."""
    kind, model = backend_of(run), run.model
    if kind == "local":
        yield from _folder_problems(run, f"{place}.model.name")
    yield from _checkpoint_problems(model, kind, f"{place}.model")
    yield from _renderer_problems(model.renderer_name, f"{place}.model.renderer_name")


def look_at_model(run: RunConfig, algorithm: Algorithm, report: CheckReport, place: str) -> StillClient:
    """Return a stand-in client with the tokenizer and context length of a run; report if the model cannot train.

    The mock backend uses bytes as tokens. The local backend uses the tokenizer of the model if its files, torch and
    transformers are on this machine. In all other cases the context length is unknown, and every row fits.
    """
    kind = backend_of(run)
    if kind == "mock":
        own = run.backend.params.get("context_length") if run.backend.kind == "mock" else None
        return StillClient(run.model.name, own if isinstance(own, int) else 4096)
    found: Any = None
    renderer: Renderer | None = None
    if kind == "local" and find_spec("transformers") is not None and find_spec("torch") is not None:
        with report.at(f"{place}.model.name", "Choose another model."), suppress(ValidationError):
            if (found := _preview(run, algorithm)) is not None:
                renderer = get_renderer(found.tokenizer, run.model.renderer_name)
    if found is None or renderer is None:
        return StillClient(run.model.name)
    limit = run.backend.params.get("max_context")
    longest = min(found.context_length, limit) if isinstance(limit, int) else found.context_length
    return StillClient(run.model.name, longest, found.tokenizer, renderer, kind)


def _preview(run: RunConfig, algorithm: Algorithm) -> Any:
    """Preview the files of a model with the local backend; None if they are not on this machine."""
    folder = in_project(locate_model(run.model.name))
    if not folder.is_dir() and (is_local_path(run) or not _is_in_hub_cache(run.model.name)):
        return None
    spec = ModelSpec(str(folder) if folder.is_dir() else run.model.name, lora_rank=traits_of(algorithm).lora_rank)
    params = run.backend.params if run.backend.kind == "local" else {}
    backend: Any = get_backend("local")(**params)
    return backend.preview(spec, room=None if _is_on_gpu(run) else _total_memory())


def _is_on_gpu(run: RunConfig) -> bool:
    device = str(run.backend.params.get("device", "auto"))
    # The device file, because importing torch takes seconds.
    return device.startswith("cuda") or (device == "auto" and Path("/dev/nvidia0").exists())


def _folder_problems(run: RunConfig, place: str) -> Iterator[Problem]:
    name = run.model.name
    folder = in_project(locate_model(name))
    if not folder.exists():
        if is_local_path(run):
            yield Problem("there is no such model folder or file", place, name, _nearest(folder))
        elif os.environ.get("HF_HUB_OFFLINE") == "1" and not _is_in_hub_cache(name):
            hint = "Download it first, name a local folder, or unset HF_HUB_OFFLINE."
            yield Problem(
                "this model is not on this machine, and HF_HUB_OFFLINE forbids to fetch it", place, name, hint
            )
        return
    if folder.is_dir() and not any(folder.glob("config*.json")) and not any(folder.glob("*.gguf")):
        hint = "Name the folder that has the model's config.json in it, or a GGUF file."
        yield Problem("this folder holds no model: it has no config.json", place, name, hint)
        return
    yield from _memory_problems(folder, run, place)


def _memory_problems(folder: Path, run: RunConfig, place: str) -> Iterator[Problem]:
    """Report weights that are larger than the memory of the machine."""
    if _is_on_gpu(run):
        return
    files = [folder] if folder.is_file() else [one for pattern in _WEIGHTS for one in folder.glob(pattern)]
    needed, there = sum(one.stat().st_size for one in files), _total_memory()
    if needed > there:
        message = (
            f"its weights take at least {needed / _GIB:.1f} GB, and this machine has {there / _GIB:.1f} GB of memory"
        )
        yield Problem(message, place, run.model.name, "Choose a smaller model, or a backend elsewhere, such as tinker.")


@cache
def _total_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _nearest(path: Path) -> str:
    parent = path.absolute().parent
    if not parent.is_dir():
        return f"The folder {parent} does not exist either; check the path."
    guess = closest(path.name, (entry.name for entry in parent.iterdir()))
    return f"Did you mean '{guess}'?" if guess else f"Check the path; the folder {parent} exists."


def _is_in_hub_cache(name: str) -> bool:
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    # The folder name that huggingface_hub uses; importing huggingface_hub is slow.
    return (hub / f"models--{name.replace('/', '--')}").is_dir()


def _checkpoint_problems(model: ModelConfig, kind: str, place: str) -> Iterator[Problem]:
    for key in ("load_checkpoint_path", "init_from_checkpoint"):
        reference: str | None = getattr(model, key)
        if reference is None:
            continue
        try:
            found = resolve_checkpoint(reference)
        except EvsysError as error:
            yield from problems_of(error, f"{place}.{key}")
            continue
        if kind in _ON_DISK:
            yield from _find_stored_problems(Path(found).expanduser(), kind, f"{place}.{key}", reference)


def _find_stored_problems(folder: Path, kind: str, place: str, reference: str) -> Iterator[Problem]:
    if not folder.is_dir():
        yield Problem("there is no such checkpoint", place, reference, _nearest(folder))
        return
    is_peft = kind == "local" and (folder / "adapter_config.json").is_file()
    if not (folder / MANIFEST).is_file():
        if not is_peft:
            hint = "Name a folder of a finished checkpoint, or the folder of a run, whose last one is taken."
            yield Problem("this folder holds no complete checkpoint", place, reference, hint)
        return
    try:
        about: Any = json.loads((folder / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        yield Problem(f"its {MANIFEST} cannot be read", place, reference, "Use an earlier checkpoint of the run.")
        return
    made_by = "local" if about.get("backend") == "local" or is_peft else "mock"
    if made_by != kind:
        message = f"this checkpoint was made by the backend '{made_by}', and the run trains on '{kind}'"
        yield Problem(message, place, reference, f"Name a checkpoint of '{kind}', or set backend.kind: {made_by}.")


def _renderer_problems(name: str | None, place: str) -> Iterator[Problem]:
    known: tuple[str, ...] = (CHAT_TEMPLATE, WITH_HERMES, *_RENDERERS)
    if name is None or name in known:
        return
    if find_spec("tinker_cookbook") is not None:
        known = (*known, *registered_renderers())
        if name in known:
            return
    hint = suggest(name, known) or f"Known: {', '.join(sorted(known))}. Remove it for the model's own."
    yield Problem("no renderer has this name", place, name, hint)


@cache
def registered_renderers() -> tuple[str, ...]:
    """Names of all renderers registered in tinker-cookbook; empty if it is not installed."""
    package = cookbook_renderers()
    return () if package is None else tuple(list_names(package))
