"""The JSON requests of the protocol. Unknown fields are refused, so that no option is silently ignored."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, ValidationError

from ...config.base import Strict
from ...errors import show
from ..answer import Refusal

_LONGEST_TTL_S = 10 * 366 * 24 * 3600
_LONGEST_METADATA = 16_384

type Id = Annotated[str, StringConstraints(max_length=160)]
"""Id of a session, model, sampler or request."""
type Number = Annotated[int, Field(ge=0, lt=10**9)]
"""A client's counter; it becomes part of a name of nine digits."""
type Text = Annotated[str, StringConstraints(max_length=1000)]


def _short(metadata: dict[str, Any]) -> dict[str, Any]:
    try:
        size = len(json.dumps(metadata, allow_nan=False).encode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this cannot be stored as JSON ({error})") from None
    if size > _LONGEST_METADATA:
        raise ValueError(f"{size} bytes of metadata are more than {_LONGEST_METADATA}")
    return metadata


type Metadata = Annotated[dict[str, Any], AfterValidator(_short)]
type Labels = Annotated[dict[str, str], AfterValidator(_short)]


class Typed(Strict):
    """Base: every request may name its type."""

    type: Text | None = None


class CreateSession(Typed):
    """Open a session."""

    tags: list[Text] = Field(default=[], max_length=100)
    user_metadata: Metadata | None = None
    sdk_version: Text = ""
    project_id: Text | None = None
    display_name: Text | None = None


class SessionOnly(Typed):
    """A heartbeat."""

    session_id: Id


class Lora(Strict):
    """The adapter to train."""

    rank: int = Field(default=32, ge=1, le=4096)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class Optimizer(Strict):
    """The optimizer of a model."""

    type: Literal["adamw"] = "adamw"


class CreateModel(Typed):
    """Start training a model."""

    session_id: Id
    model_seq_id: Number
    base_model: Text
    user_metadata: Metadata | None = None
    lora_config: Lora | None = None
    optimizer_config: Optimizer | None = None


class ModelOnly(Typed):
    """A request about a whole model."""

    model_id: Id


class Numbered(Typed):
    """A request with its number in the order of a model's requests."""

    model_id: Id
    seq_id: int = Field(ge=1, lt=2**31)


class AdamSettings(Strict):
    """Adam's parameters; the backend checks the values."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class OptimStep(Numbered):
    """Apply the accumulated gradient."""

    adam_params: AdamSettings


class Saved(Numbered):
    """Fields shared by all save requests."""

    path: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=150)
    ttl_seconds: int | None = Field(default=None, ge=3600, le=_LONGEST_TTL_S)
    user_metadata: Labels | None = None


class SaveWeights(Saved):
    """Store weights and optimizer."""

    overwrite: bool = False


class SaveForSampler(Saved):
    """Store weights, or keep them in memory for one sampling session."""

    sampling_session_seq_id: Number | None = None


class SaveExternal(Saved):
    """Store weights as files for other programs."""

    age_encryption_recipients: Annotated[list[Text], Field(max_length=64)] | None = None


class LoadWeights(Numbered):
    """Load stored weights."""

    path: Text
    optimizer: bool
    weights_access_token: Text | None = None


class CreateSamplingSession(Typed):
    """Open weights for sampling."""

    session_id: Id
    sampling_session_seq_id: Number
    base_model: Text | None = None
    model_path: Text | None = None


class TextChunk(Strict):
    """Tokens."""

    type: Literal["encoded_text"] = "encoded_text"
    tokens: list[int]


class Prompt(Strict):
    """The prompt to continue."""

    chunks: list[TextChunk] = Field(min_length=1)

    def tokens(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.tokens]


type Stops = Annotated[list[Text] | list[int], Field(max_length=64)]


class SamplingSettings(Strict):
    """Sampling options; the backend checks the values."""

    max_tokens: int | None = Field(default=None, lt=2**31)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    stop: Text | Stops | None = None
    temperature: float = 1.0
    top_k: int = Field(default=-1, lt=2**31)
    top_p: float = 1.0


class AsampleRequest(Typed):
    """Continue a prompt."""

    sampling_session_id: Id
    seq_id: int = Field(ge=0, lt=2**63)
    num_samples: int = Field(default=1, ge=1, le=1024)
    prompt: Prompt
    sampling_params: SamplingSettings
    prompt_logprobs: bool | None = None
    prompt_logprobs_last_n: int | None = Field(default=None, ge=1, lt=2**31)
    topk_prompt_logprobs: int = Field(default=0, ge=0, lt=2**31)
    topk_sample_logprobs: int = Field(default=0, ge=0, lt=2**31)
    target_prompt_logprobs: None = None
    prompt_alt_tokens_k: Literal[0] = 0
    record_stability_info: Literal[False] | None = None


class Retrieve(Strict):
    """Fetch a result."""

    request_id: Id
    allow_metadata_only: bool = False


class WeightsInfo(Strict):
    """Query a checkpoint."""

    tinker_path: Text


class Ttl(Strict):
    """Change the lifetime of a checkpoint."""

    ttl_seconds: int | None = Field(ge=3600, le=_LONGEST_TTL_S)


def read[R: Strict](kind: type[R], body: bytes) -> R:
    """Parse the request in `body`; raises a refusal that names the invalid field."""
    try:
        return kind.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise Refusal(400, _sentence(kind, error)) from None


def _sentence(kind: type[Strict], error: ValidationError) -> str:
    problems: list[str] = []
    for problem in error.errors(include_url=False)[:3]:
        place = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "json_invalid":
            return f"the request is not JSON: {problem['msg']}."
        if problem["type"] == "extra_forbidden":
            problems.append(f"{place}: this server does not know the field (it knows {', '.join(kind.model_fields)}).")
        else:
            got = "" if problem["type"] == "missing" else f" (got {show(problem['input'])})"
            problems.append(f"{place or 'the request'}: {problem['msg']}{got}.")
    return " ".join(problems)
