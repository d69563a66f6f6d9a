"""Params of the backends that speak the Tinker protocol."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from ...config.base import Strict


class Deadlines(Strict):
    """How long nothing may happen before an operation is given up, in seconds.

    The SDK repeats some requests permanently, so these are what ends a run whose server has gone.
    """

    connect_s: float = Field(default=600.0, gt=0)
    """Opening the session and creating or restoring a model."""
    operation_s: float = Field(default=900.0, gt=0)
    """Training operations and checkpoints; the clock starts again whenever one of them ends."""
    sample_s: float = Field(default=900.0, gt=0)
    """Sampling and scoring; the clock starts again whenever a request is answered."""


class TinkerConfig(Strict):
    """Params of `backend.kind: tinker`."""

    base_url: str | None = Field(default=None, min_length=1)
    """Address of the server; by default the environment variable TINKER_BASE_URL, else the provider's own."""
    api_key_env: str = Field(default="TINKER_API_KEY", min_length=1)
    """Environment variable that holds the key; keys are never written in a config."""
    header_env: dict[str, str] = {}
    """Further headers, each with the environment variable that holds its value: `{Authorization: MY_TOKEN}`."""
    tokenizer: str = Field(default="auto", min_length=1)
    """`auto`, `served` (ask an evsys server), a folder, or the name of a model on the Hugging Face hub."""
    deadlines: Deadlines = Field(default_factory=Deadlines)
    """When an operation is given up."""
    sample_retries: bool = True
    """Whether a sampling request that failed on its way is sent again; samples change no weights."""
    checkpoint_ttl_s: int | None = Field(default=None, ge=3600, le=315_360_000)
    """Seconds after which the provider deletes checkpoints; by default never."""
    train_mlp: bool = True
    """Whether the adapter covers the feed-forward layers."""
    train_attn: bool = True
    """Whether the adapter covers attention."""
    train_unembed: bool = True
    """Whether the adapter covers the output layer."""
    project_id: str | None = Field(default=None, min_length=1)
    """Project at the provider that the run belongs to."""
    user_metadata: dict[str, str] = {}
    """Notes that the provider keeps with the session."""
    telemetry: bool = False
    """Whether the SDK may report usage and errors to the server; its reports hold request headers."""
    context_length: int | None = Field(default=None, ge=16)
    """Most tokens of one sequence; by default what the server says of the model."""
    suggested_learning_rate: float | None = Field(default=None, gt=0, le=1)
    """Peak rate of recipes that are given none; by default what the server suggests, else 1e-4."""
    top_k_logprobs: int | None = Field(default=None, ge=0)
    """How many alternatives per position may be asked for; by default what is known of the server."""
    native_losses: list[str] | None = None
    """Losses the server computes itself; the others are computed here, which costs one more forward pass."""
    soft_targets: Literal["native", "expanded"] | None = None
    """Whether soft targets are sent as they are, or as one datum for each alternative."""
    check_model: bool = True
    """Whether a model that the server does not list is refused."""
    use_doctor: bool = True
    """Whether what `evsys doctor` found out about the server is used."""

    @field_validator("native_losses")
    @classmethod
    def _are_known(cls, losses: list[str] | None) -> list[str] | None:
        from ..losses import LOSSES  # here, because it needs numpy and validating a config must stay quick

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
