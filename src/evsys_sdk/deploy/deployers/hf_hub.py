"""`hf_hub`: upload the weights and model card to a repository of the Hugging Face hub, as one commit per deployment."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal

import httpx
from pydantic import Field

from ...config.base import Strict
from ...errors import DataError
from ..deployer import Built, Deployer
from ..source import Source
from .adapters import PeftDir
from .merged import MergedSafetensors

_LAYOUTS: dict[str, type[Deployer]] = {deployer.name: deployer for deployer in (PeftDir, MergedSafetensors)}


class HfHub:
    """Upload to a repository of the Hugging Face hub; needs the variable HF_TOKEN or `hf auth login`."""

    name: ClassVar[str] = "hf_hub"

    class Config(Strict):
        """Params of `hf_hub`."""

        repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
        """OWNER/NAME of the repository; created if it does not exist."""
        layout: Literal["peft_dir", "merged_safetensors"] = "peft_dir"
        """Content of the repository: the adapter or the merged model."""
        private: bool = True
        """Whether a newly created repository is private."""
        base: str | None = None
        """Folder of the base model, if it cannot be found by its name."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)
        self._layout: Any = _LAYOUTS[self.cfg.layout]

    @property
    def library(self) -> str:
        """Library that loads the chosen layout."""
        return str(self._layout.library)

    def build(self, source: Source, folder: Path) -> Built:
        built: Built = self._layout(base=self.cfg.base).build(source, folder)
        return Built(facts={**built.facts, "layout": self.cfg.layout})

    def publish(self, folder: Path, built: Built) -> Built:
        hub: Any = import_module("huggingface_hub")
        api, repo = hub.HfApi(), self.cfg.repo
        try:
            api.create_repo(repo, private=self.cfg.private, exist_ok=True)
            # `delete_patterns`, because leftover files of an earlier deployment would be loaded with this one.
            commit = api.upload_folder(
                repo_id=repo, folder_path=str(folder), commit_message="Deploy with evsys", delete_patterns="*"
            )
        except hub.errors.HfHubHTTPError as error:
            status = getattr(getattr(error, "response", None), "status_code", "?")
            hint = " Set HF_TOKEN to a token that may write there." if status in (401, 403) else ""
            raise DataError(f"the hub refused {repo} with status {status}: {_first_line(error)}.{hint}") from None
        except (OSError, httpx.HTTPError) as error:
            stated = _first_line(error)
            raise DataError(f"the hub could not be reached for {repo}: {stated}. Nothing is live.") from None
        facts = {**built.facts, "repo": repo, "commit": str(commit.oid)}
        return replace(built, location=f"{str(api.endpoint).rstrip('/')}/{repo}", facts=facts)


def _first_line(error: Any) -> str:
    return next((line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()), type(error).__name__)
