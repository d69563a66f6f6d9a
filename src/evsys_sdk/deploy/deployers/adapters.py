"""Deployers for the adapter alone: `peft_dir` in PEFT's layout, `vllm` with a config and a start script for vLLM."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from ...config.base import Strict
from ...files import write_json, write_text
from ..deployer import Built
from ..source import ADAPTER, ADAPTER_CONFIG, Source, read_adapter_config
from ..weights import copy_tokenizer, find_base, find_tool_parser, read_chat_template, refer_to_base


class PeftDir:
    """The adapter in PEFT's layout, with tokenizer and chat template."""

    name: ClassVar[str] = "peft_dir"
    library: ClassVar[str] = "peft"

    class Config(Strict):
        """Params of `peft_dir`."""

        base: str | None = None
        """Folder of the base model, if it cannot be found by its name."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    def build(self, source: Source, folder: Path) -> Built:
        source.require_adapter(self.name)
        config = read_adapter_config(source)
        base = find_base(source.base_model, self.cfg.base)
        shutil.copyfile(source.weights / ADAPTER, folder / ADAPTER)
        # The config of PEFT may refer to the base model by a path of the training machine.
        write_json(folder / ADAPTER_CONFIG, {**config, "base_model_name_or_path": refer_to_base(source.base_model)})
        copied = copy_tokenizer(base, folder)
        facts = {"tokenizer": copied, "chat_template": bool(read_chat_template(base))}
        parser = find_tool_parser(base)
        return Built(facts={**facts, "tool_call_parser": parser} if parser else facts)


class VLLM:
    """The adapter with a config and a start script for vLLM; the server is not started."""

    name: ClassVar[str] = "vllm"
    library: ClassVar[str] = "peft"

    class Config(Strict):
        """Params of `vllm`."""

        base: str | None = None
        """Folder of the base model, if it cannot be found by its name."""
        served_name: str = "adapter"
        """Name of the model in requests."""
        port: int = Field(default=8000, ge=1, le=65535)
        """Port of the server."""
        max_model_len: int | None = Field(default=None, ge=1)
        """Maximum context length in tokens; defaults to the limit of the model."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    def build(self, source: Source, folder: Path) -> Built:
        parser = PeftDir(base=self.cfg.base).build(source, folder).facts.get("tool_call_parser")
        rank = int(read_adapter_config(source)["r"])
        base = refer_to_base(self.cfg.base or source.base_model)
        settings: dict[str, Any] = {
            "enable-lora": True,
            "max-lora-rank": _round_rank(rank),
            "port": self.cfg.port,
            "max-model-len": self.cfg.max_model_len,
            "enable-auto-tool-choice": True if parser else None,
            "tool-call-parser": parser,
        }
        lines = [f"{key}: {str(value).lower()}" for key, value in settings.items() if value is not None]
        write_text(folder / "vllm.yaml", "\n".join([*lines, ""]))
        # The script resolves its own folder at run time, so that a deployment can be copied to the serving machine.
        name = shlex.quote(self.cfg.served_name)
        command = f'vllm serve {shlex.quote(base)} --config "$here/vllm.yaml" --lora-modules {name}="$here"'
        script = f'#!/bin/sh\nhere=$(cd "$(dirname "$0")" && pwd)\nexec {command}\n'
        write_text(folder / "serve.sh", script)
        (folder / "serve.sh").chmod(0o755)
        return Built(facts={"command": "sh serve.sh", "served_name": self.cfg.served_name, "tool_call_parser": parser})


def _round_rank(rank: int) -> int:
    """The smallest `max-lora-rank` of vLLM that fits the adapter."""
    return next((limit for limit in (8, 16, 32, 64, 128, 256, 320, 512) if limit >= rank), rank)
