"""What the thin installation of SkyRL leaves out, in the small part its JAX engine uses.

SkyRL imports torch to recognise tensors of images, and peft to write the settings of an adapter next to its weights.
The two packages bring some GB with them; these few lines stand in for them. Import this before anything of SkyRL.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import transformers  # looks for torch when it is imported, and must not find the stand-in

assert transformers


class Tensor:
    """Nothing is an instance of it: there are no images here."""


class LoraConfig:
    """The settings of an adapter, as other tools look for them."""

    def __init__(self, **settings: Any) -> None:
        self._settings = {"peft_type": "LORA", **settings}

    def save_pretrained(self, folder: Path) -> None:
        (Path(folder) / "adapter_config.json").write_text(json.dumps(self._settings), encoding="utf-8")


def stand_in(name: str, **content: Any) -> None:
    """Let `import name` find this content."""
    module = ModuleType(name)
    vars(module).update(content)
    sys.modules.setdefault(name, module)


stand_in("torch", Tensor=Tensor)
stand_in("peft", LoraConfig=LoraConfig)
