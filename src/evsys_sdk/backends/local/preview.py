"""What is known of a model before any weight is read: its tokenizer, how long its texts may be, whether a run fits.

found = preview_model("./model", want=..., room=...)      # raises BackendError with what stands against it
found.tokenizer, found.context_length
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .base import families
from .base.loading import context_length_of, pick_dtype
from .memory_plan import Needs, Sizes, refuse_if_hopeless


@dataclass(frozen=True, slots=True)
class Preview:
    """A model that could be loaded."""

    tokenizer: Any
    context_length: int


def preview_model(
    model: str, *, want: Callable[[Any, Any], Needs], dtype: str, fixed: Collection[str], room: int | None
) -> Preview | None:
    """Look at the files of a model on this machine; None where they are not here, or say too little.

    A run that would not fit into `room` bytes of main memory, even with everything as small as it goes, is refused.
    What it wants depends on where it is and how it is stored.
    """
    from transformers import AutoConfig, AutoTokenizer

    config = _read(lambda: AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False))
    tokenizer = _read(lambda: AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False))
    if config is None or tokenizer is None:
        return None
    families.check_family(model, config)
    if room is not None and (sizes := _read(lambda: Sizes.of(config))) is not None:
        cpu = torch.device("cpu")
        needs = want(cpu, pick_dtype(dtype, cpu))
        refuse_if_hopeless(sizes, needs, fixed=fixed, model=Path(model).name, room=room)
    return Preview(tokenizer, context_length_of(config.get_text_config(), model, warns=False))


def _read(load: Callable[[], Any]) -> Any | None:
    try:
        return load()
    except Exception:  # loading the model says what is wrong with it
        return None
