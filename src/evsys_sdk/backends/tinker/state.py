"""Checkpoints on a Tinker server: unique names, references, and metadata that the server does not store.

A checkpoint is stored on the server; its reference starts with `tinker://`. `tinker/<name>.json` in the run's folder
has the metadata to resume and to detect mix-ups: model, rank, trained layers, tokenizer.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ...errors import BackendError, show
from ...files import write_json

SCHEME: Final = "tinker://"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FOLDER: Final = "tinker"


@dataclass(frozen=True, slots=True)
class TrainedAdapter:
    """The model and adapter in training."""

    model: str
    rank: int
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True
    renderer: str | None = None
    tokenizer: str | None = None

    def layers(self) -> dict[str, bool]:
        return {name: getattr(self, name) for name in ("train_mlp", "train_attn", "train_unembed")}


def make_name(name: str) -> str:
    """A unique name on the server for a checkpoint: the SDK retries a name conflict for minutes."""
    if not _NAME.fullmatch(name):
        raise BackendError(f"a checkpoint cannot be called {show(name)}. Use letters, digits, '.', '_' and '-'.")
    return f"{name}-{secrets.token_hex(4)}"


def check_reference(ref: str) -> str:
    """Refuse invalid references."""
    if not ref.startswith(SCHEME):
        raise BackendError(
            f"{show(ref)} is not a checkpoint of a Tinker server: those begin with {SCHEME}. Take one from the "
            "checkpoints.jsonl of a run on this backend."
        )
    return ref


def write_sidecar(run_dir: Path, name: str, ref: str, base_url: str, adapter: TrainedAdapter) -> None:
    """Store metadata that the server may lose."""
    about = {"reference": ref, "base_url": base_url, **asdict(adapter)}
    write_json(run_dir / _FOLDER / f"{name}.json", about)


def read_sidecar(run_dir: Path, ref: str) -> dict[str, Any] | None:
    """The metadata of a checkpoint of this run; None for other checkpoints."""
    for path in sorted((run_dir / _FOLDER).glob("*.json")):
        try:
            about: Any = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(about, dict) and about.get("reference") == ref:  # pyright: ignore[reportUnknownMemberType]
            return about  # pyright: ignore[reportUnknownVariableType]
    return None


def check_sidecar(run_dir: Path, ref: str, adapter: TrainedAdapter) -> None:
    """Refuse a checkpoint of another model or adapter than the run's."""
    about = read_sidecar(run_dir, ref)
    for key, ours in ({"model": adapter.model, "rank": adapter.rank, **adapter.layers()}).items() if about else ():
        assert about is not None
        if about.get(key) != ours:
            raise BackendError(
                f"{ref} was saved with {key}={show(about.get(key))}, but the run asks for {show(ours)}. Set it back, "
                "or start a new run."
            )
