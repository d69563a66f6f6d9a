"""`fireworks`: upload the adapter as a model of a Fireworks account by its REST API; the model is not deployed there.

The deployer creates a model, uploads each file to a signed URL, and asks the service to validate the upload.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, cast

import httpx
from pydantic import Field

from ...config.base import Strict
from ...errors import DataError
from ...files import write_json
from ...redact import hide
from ..deployer import Built
from ..source import Source, read_adapter_config
from ..weights import find_base, read_chat_template
from .adapters import PeftDir

_KEY: Final = "FIREWORKS_API_KEY"
_RANKS: Final = range(4, 65)
"""LoRA ranks that the service accepts."""


class Fireworks:
    """Upload the adapter as a model of a Fireworks account; needs the variable FIREWORKS_API_KEY."""

    name: ClassVar[str] = "fireworks"
    library: ClassVar[str] = "peft"

    class Config(Strict):
        """Params of `fireworks`."""

        account: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
        """Account that owns the model."""
        model: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
        """Name of the model; must be new in the account."""
        base_model: str = Field(pattern=r"^accounts/[^/]+/models/[^/]+$")
        """Fireworks name of the base model, e.g. accounts/fireworks/models/qwen3-8b."""
        base: str | None = None
        """Folder of the base model, if it cannot be found by its name."""
        url: str = "https://api.fireworks.ai"
        """Base URL of the API."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    def build(self, source: Source, folder: Path) -> Built:
        _read_key()  # before anything is built
        config = read_adapter_config(source)
        if int(config["r"]) not in _RANKS:
            raise DataError(
                f"the adapter has rank {config['r']}, and Fireworks takes {_RANKS[0]} to {_RANKS[-1]}. Train with "
                "another lora_rank."
            )
        built = PeftDir(base=self.cfg.base).build(source, folder)
        if template := read_chat_template(find_base(source.base_model, self.cfg.base)):
            # Fireworks offers chat completions only for adapters with a conversation config.
            style = {"style": "jinja", "args": {"template": template}}
            write_json(folder / "fireworks.json", {"conversation_config": style})
        peft = {"baseModel": self.cfg.base_model, "r": int(config["r"]), "targetModules": _targets(config)}
        return replace(built, facts={**built.facts, "peft_details": peft})

    def publish(self, folder: Path, built: Built) -> Built:
        files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
        key, path = _read_key(), f"/v1/accounts/{self.cfg.account}/models"
        timeout = httpx.Timeout(60, write=600)
        with httpx.Client(base_url=self.cfg.url, headers={"authorization": f"Bearer {key}"}, timeout=timeout) as http:
            described = {"kind": "HF_PEFT_ADDON", "peftDetails": built.facts["peft_details"]}
            self._request(http, "POST", path, {"modelId": self.cfg.model, "model": described})
            model_path = f"{path}/{self.cfg.model}"
            sizes = {name: file.stat().st_size for name, file in files.items()}
            signed = self._request(http, "POST", f"{model_path}:getUploadEndpoint", {"filenameToSize": sizes})
            urls = cast(dict[str, str], signed.get("filenameToSignedUrls") or {})
            # Checked before the upload starts, because a partial upload leaves an unusable model.
            if missing := sorted(files.keys() - urls.keys()):
                raise DataError(
                    f"Fireworks named no address for {missing[0]!r}. Delete {model_path} there and deploy again."
                )
            for name, file in files.items():
                self._upload(urls[name], file, sizes[name])
            self._request(http, "GET", f"{model_path}:validateUpload")
        location = f"accounts/{self.cfg.account}/models/{self.cfg.model}"
        return replace(built, location=location, facts={**built.facts, "model": location})

    def _request(self, http: httpx.Client, method: str, path: str, body: Any = None) -> dict[str, Any]:
        try:
            answer = http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise DataError(f"Fireworks could not be reached at {self.cfg.url}: {error}. Nothing is live.") from None
        if answer.status_code >= 300:
            # The response may quote the request, including the key.
            excerpt = hide(answer.text[:300], os.environ.get(_KEY))
            raise DataError(f"Fireworks refused {method} {path} with status {answer.status_code}: {excerpt}")
        data: Any = answer.json() if answer.content else {}
        return cast(dict[str, Any], data) if isinstance(data, dict) else {}

    def _upload(self, url: str, file: Path, size: int) -> None:
        """Upload a file to a signed URL, without the API key."""
        headers = {"content-type": "application/octet-stream", "x-goog-content-length-range": f"{size},{size}"}
        try:
            with file.open("rb") as content:
                answer = httpx.put(url, content=content, headers={**headers, "content-length": str(size)}, timeout=600)
        except httpx.HTTPError as error:
            raise DataError(f"{file.name} could not be uploaded: {type(error).__name__}. Nothing is live.") from None
        if answer.status_code >= 300:
            raise DataError(f"{file.name} was refused with status {answer.status_code}. Nothing is live.")


def _read_key() -> str:
    if not (key := os.environ.get(_KEY, "").strip()):
        raise DataError(f"the deployer fireworks needs a key. Set {_KEY}.")
    return key


def _targets(config: dict[str, Any]) -> list[str]:
    """The module types that the adapter changes; the config may list each layer by its full name."""
    modules: Any = config.get("target_modules") or []
    names = [str(module) for module in cast(list[Any], modules)] if isinstance(modules, list) else [str(modules)]
    return sorted({name.rpartition(".")[2] for name in names})
