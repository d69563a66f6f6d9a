"""`openai_server`: serve the weights under a model name of `evsys serve`, from the next request on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

from ...config.base import Strict
from ..deployer import Built
from ..source import Source

WEIGHTS = "weights"
"""Folder of the weights inside the folder of the deployment."""


class OpenAIServer:
    """A model of the OpenAI API of `evsys serve`; the weights are swapped without a failed request."""

    name: ClassVar[str] = "openai_server"
    library: ClassVar[str] = ""

    class Config(Strict):
        """Params of `openai_server`."""

        system_prompt: str = ""
        """System message for conversations without one; defaults to the system prompt that the recipe tuned."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    def build(self, source: Source, folder: Path) -> Built:
        (folder / WEIGHTS).mkdir()
        for file in source.files:
            shutil.copyfile(file, folder / WEIGHTS / file.name)
        facts = {"backend": source.backend, "base_model": source.base_model, "renderer": source.renderer}
        return Built(facts={**facts, "system_prompt": self.cfg.system_prompt or source.system_prompt})
