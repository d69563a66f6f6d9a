"""The JSON requests of the protocol. What they do not know is refused, so nothing a client asks for is dropped."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationError

from ..config.base import Strict
from ..errors import show
from .answer import Refusal

_LONGEST_TTL_S = 10 * 366 * 24 * 3600


class Typed(Strict):
    """Every request may name its type."""

    type: str | None = None


class CreateSession(Typed):
    """Open a session."""

    tags: list[str] = []
    user_metadata: dict[str, Any] | None = None
    sdk_version: str = ""
    project_id: str | None = None
    display_name: str | None = None


class SessionOnly(Typed):
    """A sign of life."""

    session_id: str


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

    session_id: str
    model_seq_id: int = Field(ge=0)
    base_model: str
    user_metadata: dict[str, Any] | None = None
    lora_config: Lora | None = None
    optimizer_config: Optimizer | None = None


class ModelOnly(Typed):
    """Anything that concerns a whole model."""

    model_id: str


class Numbered(Typed):
    """A request that has its place in the order of a model's requests."""

    model_id: str
    seq_id: int = Field(ge=1, lt=2**31)


class Adam(Strict):
    """One step; the values are checked by the backend."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class OptimStep(Numbered):
    """Apply the accumulated gradient."""

    adam_params: Adam


class Saved(Numbered):
    """What both ways of saving share."""

    path: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=150)
    ttl_seconds: int | None = Field(default=None, ge=3600, le=_LONGEST_TTL_S)
    user_metadata: dict[str, str] | None = None


class SaveWeights(Saved):
    """Store weights and optimizer."""

    overwrite: bool = False


class SaveForSampler(Saved):
    """Store weights, or keep them in memory for one sampling session."""

    sampling_session_seq_id: int | None = Field(default=None, ge=0)


class LoadWeights(Numbered):
    """Go back to stored weights."""

    path: str
    optimizer: bool
    weights_access_token: str | None = None


class CreateSamplingSession(Typed):
    """Open weights for sampling."""

    session_id: str
    sampling_session_seq_id: int = Field(ge=0)
    base_model: str | None = None
    model_path: str | None = None


class TextChunk(Strict):
    """Tokens."""

    type: Literal["encoded_text"] = "encoded_text"
    tokens: list[int]


class Prompt(Strict):
    """What is continued."""

    chunks: list[TextChunk] = Field(min_length=1)

    def tokens(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.tokens]


class Sampling(Strict):
    """How to sample; the values are checked by the backend."""

    max_tokens: int | None = None
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    stop: str | list[str] | list[int] | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


class JsonTensor(Strict):
    """A tensor, flat; with the two kinds of indices, in compressed rows."""

    data: list[int] | list[float]
    dtype: Literal["int64", "float32"]
    shape: list[int]
    sparse_crow_indices: list[int] | None = None
    sparse_col_indices: list[int] | None = None


class Sample(Typed):
    """Continue a prompt."""

    sampling_session_id: str
    seq_id: int = Field(ge=0, lt=2**63)
    num_samples: int = Field(default=1, ge=1, le=1024)
    prompt: Prompt
    sampling_params: Sampling
    prompt_logprobs: bool | None = None
    prompt_logprobs_last_n: int | None = Field(default=None, ge=1)
    topk_prompt_logprobs: int = Field(default=0, ge=0)
    topk_sample_logprobs: int = Field(default=0, ge=0)
    target_prompt_logprobs: JsonTensor | None = None
    prompt_alt_tokens_k: Literal[0] = 0
    record_stability_info: Literal[False] | None = None


class Retrieve(Strict):
    """Ask for a result."""

    request_id: str
    allow_metadata_only: bool = False


class WeightsInfo(Strict):
    """Ask what a checkpoint holds."""

    tinker_path: str


class Ttl(Strict):
    """Change how long a checkpoint is kept."""

    ttl_seconds: int | None = Field(ge=3600, le=_LONGEST_TTL_S)


def read[R: Strict](kind: type[R], body: bytes) -> R:
    """The request in `body`, or a refusal that names what is wrong with it."""
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
