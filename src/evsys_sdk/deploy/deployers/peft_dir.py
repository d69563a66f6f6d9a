"""`peft_dir`: the adapter as PEFT, vLLM and others load it, with tokenizer and chat template beside it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

from ...config.base import Strict
from ...files import write_json
from ..base_model import copy_tokenizer, find_base, read_chat_template
from ..deployer import Built
from ..source import ADAPTER, ADAPTER_CONFIG, Source, read_adapter_config


class PeftDir:
    """The adapter in PEFT's layout, with tokenizer and chat template."""

    name: ClassVar[str] = "peft_dir"
    library: ClassVar[str] = "peft"

    class Config(Strict):
        """Params of `peft_dir`."""

        base: str | None = None
        """Folder of the base model, where its name alone does not lead there."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    def build(self, source: Source, folder: Path) -> Built:
        source.require_adapter(self.name)
        config = read_adapter_config(source)
        base = find_base(source.base_model, self.cfg.base)
        shutil.copyfile(source.weights / ADAPTER, folder / ADAPTER)
        write_json(folder / ADAPTER_CONFIG, {**config, "base_model_name_or_path": source.base_model})
        copied = copy_tokenizer(base, folder)
        return Built(facts={"tokenizer": copied, "chat_template": bool(read_chat_template(base))})
