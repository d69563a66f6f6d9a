"""`fireworks`: the adapter as a model of a Fireworks account, over its REST API; deploying it is left to its owner.

A model is made, every file is put to an address that the service signs for it, and the service checks what came.
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
"""What the service takes."""


class Fireworks:
    """The adapter as a model of a Fireworks account; needs the variable FIREWORKS_API_KEY."""

    name: ClassVar[str] = "fireworks"
    library: ClassVar[str] = "peft"

    class Config(Strict):
        """Params of `fireworks`."""

        account: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
        """The account that the model belongs to."""
        model: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
        """Its name there, which must be new."""
        base_model: str = Field(pattern=r"^accounts/[^/]+/models/[^/]+$")
        """What the service calls the base model, e.g. accounts/fireworks/models/qwen3-8b."""
        base: str | None = None
        """Folder of the base model, where its name alone does not lead there."""
        url: str = "https://api.fireworks.ai"
        """Where the API is."""

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
            # Without it the service has no chat completions for an adapter.
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
            self._ask(http, "POST", path, {"modelId": self.cfg.model, "model": described})
            one = f"{path}/{self.cfg.model}"
            sizes = {name: file.stat().st_size for name, file in files.items()}
            signed = self._ask(http, "POST", f"{one}:getUploadEndpoint", {"filenameToSize": sizes})
            urls = cast(dict[str, str], signed.get("filenameToSignedUrls") or {})
            # Before the first byte goes: half an upload would be a model that cannot be used.
            if missing := sorted(files.keys() - urls.keys()):
                raise DataError(f"Fireworks named no address for {missing[0]!r}. Delete {one} there and deploy again.")
            for name, file in files.items():
                self._put(urls[name], file, sizes[name])
            self._ask(http, "GET", f"{one}:validateUpload")
        location = f"accounts/{self.cfg.account}/models/{self.cfg.model}"
        return replace(built, location=location, facts={**built.facts, "model": location})

    def _ask(self, http: httpx.Client, method: str, path: str, body: Any = None) -> dict[str, Any]:
        try:
            answer = http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise DataError(f"Fireworks could not be reached at {self.cfg.url}: {error}. Nothing is live.") from None
        if answer.status_code >= 300:
            # A service may quote the request that it refuses, and the key with it.
            said = hide(answer.text[:300], os.environ.get(_KEY))
            raise DataError(f"Fireworks refused {method} {path} with status {answer.status_code}: {said}")
        found: Any = answer.json() if answer.content else {}
        return cast(dict[str, Any], found) if isinstance(found, dict) else {}

    def _put(self, url: str, file: Path, size: int) -> None:
        """The address is its own permission, so the key does not go there."""
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
    """The kinds of layers that are adapted; the config may name every single layer."""
    given: Any = config.get("target_modules") or []
    names = [str(one) for one in cast(list[Any], given)] if isinstance(given, list) else [str(given)]
    return sorted({name.rpartition(".")[2] for name in names})
