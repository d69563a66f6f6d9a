"""`openai_server`: the weights under a name that `evsys serve` answers to, from the next request on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

from ...config.base import Strict
from ..deployer import Built
from ..source import Source

WEIGHTS = "weights"
"""Folder of the weights inside the deployment's."""


class OpenAIServer:
    """A model of `evsys serve`'s OpenAI API, swapped without a failed request."""

    name: ClassVar[str] = "openai_server"
    library: ClassVar[str] = ""

    class Config(Strict):
        """Params of `openai_server`."""

        system_prompt: str = ""
        """Put before conversations that have no system message of their own; by default what the recipe tuned."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    def build(self, source: Source, folder: Path) -> Built:
        (folder / WEIGHTS).mkdir()
        for file in source.files:
            shutil.copyfile(file, folder / WEIGHTS / file.name)
        facts = {"backend": source.backend, "base_model": source.base_model, "renderer": source.renderer}
        return Built(facts={**facts, "system_prompt": self.cfg.system_prompt or source.system_prompt})
