"""The files of a base model: its folder on this disk, or its place in the Hugging Face cache."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from ..errors import DataError

CONFIG = "config.json"
"""Of the base model, in the layout of transformers."""
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
_INDEX = "model.safetensors.index.json"


def find_base(name: str, override: str | None = None) -> Path:
    """The folder with a base model's files; nothing is downloaded."""
    wanted = override or name
    folder = Path(wanted).expanduser()
    if folder.is_dir():
        return folder
    if find_spec("huggingface_hub") is not None and not wanted.startswith(("/", ".", "~")):
        from huggingface_hub import snapshot_download  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

        try:
            return Path(cast(str, snapshot_download(wanted, local_files_only=True)))
        except Exception as error:  # that package has a dozen of them for "it is not here"
            reason = type(error).__name__
    else:
        reason = "there is no such folder"
    raise DataError(
        f"the base model {wanted!r} is not on this disk ({reason}). Name the folder that has it with "
        "--param base=FOLDER."
    )


def read_config(base: Path) -> dict[str, Any]:
    """The model's own description."""
    try:
        found: Any = json.loads((base / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{base / CONFIG} cannot be read ({error}). Name another folder with --param base.") from None
    if not isinstance(found, dict):
        raise DataError(f"{base / CONFIG} holds no object. Name another folder with --param base.")
    return cast(dict[str, Any], found)


def weight_files(base: Path) -> list[Path]:
    """The safetensors files of a base model, in order."""
    if (base / _INDEX).is_file():
        shards: dict[str, str] = json.loads((base / _INDEX).read_text(encoding="utf-8"))["weight_map"]
        found = [base / name for name in dict.fromkeys(shards.values())]
    else:
        found = sorted(base.glob("*.safetensors"))
    missing = [path.name for path in found if not path.is_file()]
    if not found or missing:
        raise DataError(
            f"{base}: its weights are not here as safetensors ({', '.join(missing) or 'no such file'}). Name a folder "
            "that has them with --param base."
        )
    return found


def copy_tokenizer(base: Path, folder: Path) -> list[str]:
    """Tokenizer and chat template beside the weights; returns what was copied."""
    there = [name for name in _TOKENIZER if (base / name).is_file()]
    if not there:
        raise DataError(f"{base}: there is no tokenizer in it. Name the base model's folder with --param base.")
    for name in there:
        shutil.copyfile(base / name, folder / name)
    return there


def read_chat_template(base: Path) -> str:
    """The chat template that the tokenizer brings; empty where there is none."""
    file = base / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    try:
        settings: Any = json.loads((base / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    template = cast(dict[str, Any], settings).get("chat_template") if isinstance(settings, dict) else None
    return template if isinstance(template, str) else ""
