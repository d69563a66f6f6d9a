"""Find the files of a base model on this disk, and merge an adapter into a base model."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from ..errors import DataError, MissingExtraError
from .source import Source, read_adapter_config

_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)


def find_base(name: str, override: str | None = None) -> Path:
    """The folder of a base model on this disk; raise if it is missing. Nothing is downloaded."""
    model = override or name
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if find_spec("huggingface_hub") is not None and not model.startswith(("/", ".", "~")):
        from huggingface_hub import snapshot_download  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

        try:
            return Path(cast(str, snapshot_download(model, local_files_only=True)))
        except Exception as error:  # many types mean "not on this disk"
            reason = type(error).__name__
    else:
        reason = "there is no such folder"
    raise DataError(
        f"the base model {model!r} is not on this disk ({reason}). Name the folder that has it with "
        "--param base=FOLDER."
    )


def refer_to_base(name: str) -> str:
    """The reference to a base model for exported files: the absolute path of a folder, or the name."""
    folder = Path(name).expanduser()
    return str(folder.resolve()) if folder.is_dir() else name


def find_tool_parser(base: Path) -> str | None:
    """Name of vLLM's tool call parser for the model's chat template; None if the template has no tools."""
    if find_spec("transformers") is None:
        return None
    from transformers import AutoTokenizer  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

    from ..inference.renderer import get_renderer

    try:
        renderer: Any = get_renderer(cast(Any, AutoTokenizer).from_pretrained(str(base), local_files_only=True))
    except Exception:  # e.g. no chat template: the model is served without tools
        return None
    return renderer.tool_parser if renderer.shows_tools else None


def copy_tokenizer(base: Path, folder: Path) -> list[str]:
    """Copy the tokenizer and chat template next to the weights; return the names of the copied files."""
    present = [name for name in _TOKENIZER if (base / name).is_file()]
    if not present:
        raise DataError(f"{base}: there is no tokenizer in it. Name the base model's folder with --param base.")
    for name in present:
        shutil.copyfile(base / name, folder / name)
    return present


def read_chat_template(base: Path) -> str:
    """The chat template of the tokenizer; empty if it has none."""
    file = base / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    try:
        settings: Any = json.loads((base / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    template = cast(dict[str, Any], settings).get("chat_template") if isinstance(settings, dict) else None
    return template if isinstance(template, str) else ""


def merge_adapter(source: Source, base: Path, dtype: str) -> Any:
    """Merge the adapter into the base model with PEFT in float32, and convert the result to `dtype`."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
        from peft import PeftModel  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
        from transformers import (  # pyright: ignore[reportMissingImports]
            AutoConfig,  # pyright: ignore[reportUnknownVariableType]
            AutoModelForCausalLM,  # pyright: ignore[reportUnknownVariableType]
        )
    except ImportError:
        raise MissingExtraError("merging an adapter into its base model", "local") from None
    torch, loader, adapters = cast(Any, torch), cast(Any, AutoModelForCausalLM), cast(Any, PeftModel)
    try:
        model = loader.from_pretrained(str(base), dtype=torch.float32, local_files_only=True)
        if model.config.tie_word_embeddings and "lm_head" in str(read_adapter_config(source).get("target_modules")):
            # The adapter changes the output layer only, so it must be untied from the embedding.
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
            model.config.tie_word_embeddings = False
        merged = adapters.from_pretrained(model, str(source.weights)).merge_and_unload()
    except (OSError, RuntimeError, ValueError, KeyError, AttributeError) as error:
        last = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise DataError(
            f"the adapter in {source.weights} cannot be added to the base model in {base}: {last} Name the base that "
            "it was trained on with --param base."
        ) from None
    named = cast(Any, AutoConfig).from_pretrained(str(base), local_files_only=True).dtype or torch.float32
    target = named if dtype == "as_base" else getattr(torch, dtype)
    if target == torch.float16 and any(float(parameter.abs().max()) > 65504 for parameter in merged.parameters()):
        raise DataError("a weight is larger than half precision can hold. Ship it with --param dtype=float32.")
    return merged.to(target)
