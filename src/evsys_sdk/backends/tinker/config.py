"""Params of the backends with the Tinker protocol."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from ...config.base import Strict


class Deadlines(Strict):
    """Seconds without progress before an operation is given up.

    The SDK repeats some requests indefinitely, so these limits end a run whose server is gone.
    """

    connect_s: float = Field(default=600.0, gt=0)
    """For opening the session, and creating or restoring a model."""
    operation_s: float = Field(default=900.0, gt=0)
    """For training operations and checkpoints; restarts whenever one of them ends."""
    sample_s: float = Field(default=900.0, gt=0)
    """For sampling and scoring; restarts whenever a request is answered."""


class TinkerConfig(Strict):
    """Params of `backend.kind: tinker`."""

    base_url: str | None = Field(default=None, min_length=1)
    """Address of the server; by default the environment variable TINKER_BASE_URL, else the provider's."""
    api_key_env: str = Field(default="TINKER_API_KEY", min_length=1)
    """Environment variable of the key; keys are never written in a config."""
    header_env: dict[str, str] = {}
    """Additional headers with the environment variables of their values: `{Authorization: MY_TOKEN}`."""
    tokenizer: str = Field(default="auto", min_length=1)
    """`auto`, `served` (from an evsys server), a folder, or the name of a model on the Hugging Face hub."""
    deadlines: Deadlines = Field(default_factory=Deadlines)
    """Time limits of operations."""
    sample_retries: bool = True
    """Whether to repeat a failed sampling request; samples change no weights."""
    checkpoint_ttl_s: int | None = Field(default=None, ge=3600, le=315_360_000)
    """Seconds after which the provider deletes checkpoints; by default never."""
    train_mlp: bool = True
    """Whether the adapter covers the feed-forward layers."""
    train_attn: bool = True
    """Whether the adapter covers attention."""
    train_unembed: bool = True
    """Whether the adapter covers the output layer."""
    project_id: str | None = Field(default=None, min_length=1)
    """The provider's project for the run."""
    user_metadata: dict[str, str] = {}
    """Notes stored by the provider with the session."""
    telemetry: bool = False
    """Whether the SDK may report usage and errors to the server; its reports contain request headers."""
    context_length: int | None = Field(default=None, ge=16)
    """Maximum tokens of one sequence; by default the server's value for the model."""
    suggested_learning_rate: float | None = Field(default=None, gt=0, le=1)
    """Default peak rate of recipes; by default the server's suggestion, else 1e-4."""
    top_k_logprobs: int | None = Field(default=None, ge=0)
    """Maximum number of alternatives per position; by default the known value of the server."""
    native_losses: list[str] | None = None
    """Losses computed by the server; others are computed here, with one additional forward pass."""
    soft_targets: Literal["native", "expanded"] | None = None
    """Whether soft targets are sent natively, or as one datum per alternative."""
    check_model: bool = True
    """Whether to refuse a model that the server does not list."""
    use_doctor: bool = True
    """Whether to use the results of `evsys doctor` about the server."""

    @field_validator("native_losses")
    @classmethod
    def _are_known(cls, losses: list[str] | None) -> list[str] | None:
        from ..losses import LOSSES  # imported here, because numpy would slow down config validation

        unknown = sorted(set(losses or ()) - LOSSES)
        if unknown:
            raise ValueError(f"there is no loss '{unknown[0]}'. Known: {', '.join(sorted(LOSSES))}.")
        return losses

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError("this is not an address. Begin it with http:// or https://.")
        if url is not None and "@" in url.partition("//")[2].partition("/")[0]:
            raise ValueError("an address must not hold a password. Use api_key_env or header_env.")
        return None if url is None else url.rstrip("/")


class SkyRLConfig(TinkerConfig):
    """Params of `backend.kind: skyrl`."""

    base_url: str | None = Field(default="http://127.0.0.1:8000", min_length=1)
    """Address of the SkyRL server."""
