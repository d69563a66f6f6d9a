"""Params of the backend `fireworks`."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field, model_validator

from ..tinker.config import TinkerConfig

FIREWORKS: Final = "https://api.fireworks.ai"
"""Default address of Fireworks' client."""
SERVERLESS: Final = "/training/v1/serverless"
"""Path of the gateway to shared trainers."""

_REFUSED: Final = {
    "header_env": "Fireworks is asked with its key alone",
    "project_id": "Fireworks has no projects; a key belongs to one account",
    "checkpoint_ttl_s": "Fireworks' client takes no time to live for checkpoints",
}
"""Params of `tinker` that this provider's client would not take, and why."""


class FireworksConfig(TinkerConfig):
    """Params of `backend.kind: fireworks`."""

    base_url: str | None = Field(default=FIREWORKS, min_length=1)
    """Address of Fireworks, without a path."""
    api_key_env: str = Field(default="FIREWORKS_API_KEY", min_length=1)
    """Environment variable of the key; keys are never written in a config."""
    tokenizer: str = Field(default="auto", min_length=1)
    """A folder, or the name of a model on the Hugging Face hub; required, because Fireworks names none."""
    lora_alpha: int = Field(default=32, ge=1)
    """LoRA alpha: the adapter's output is scaled by alpha / rank."""
    delete_session: bool = True
    """Whether to delete the training session at the end, which frees its slot; checkpoints stay."""

    @model_validator(mode="before")
    @classmethod
    def _can_be_done(cls, params: Any) -> Any:
        if isinstance(params, dict):
            for name, reason in _REFUSED.items():
                if params.get(name):  # pyright: ignore[reportUnknownMemberType]
                    raise ValueError(f"{name} cannot be used here: {reason}. Remove it.")
            url: Any = params.get("base_url")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            if isinstance(url, str) and url.rstrip("/").endswith(SERVERLESS):
                raise ValueError(f"base_url is the address without {SERVERLESS}, which is added here. Remove the path.")
        return params  # pyright: ignore[reportUnknownVariableType]
